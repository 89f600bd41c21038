"""The flags of `phasescope serve` that are about connections, browsers, TLS and tenants' keys."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

from service.cli.sizes import parse_bytes
from service.config.http_settings import HttpConfig
from service.config.settings import ConfigError


def add_connection_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--uds", metavar="PATH", help="listen on a unix socket instead of --host and --port"
    )
    group.add_argument(
        "--ssl-certfile", metavar="FILE", help="serve HTTPS with this certificate chain (PEM)"
    )
    group.add_argument("--ssl-keyfile", metavar="FILE", help="its key, where that is apart (PEM)")
    group.add_argument(
        "--max-connections",
        type=int,
        default=4096,
        help="connections that may be open; beyond that one that does nothing gives up its place, "
        "and when all are at work a new one gets a 503",
    )
    group.add_argument(
        "--max-header-bytes",
        type=parse_bytes,
        default=32 << 10,
        metavar="SIZE",
        help="largest request line and headers together",
    )
    group.add_argument(
        "--header-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="close a connection whose request line and headers are not complete by then",
    )
    group.add_argument(
        "--body-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="refuse a request whose body is not complete by then",
    )
    group.add_argument(
        "--keep-alive-timeout",
        type=float,
        default=75.0,
        metavar="SECONDS",
        help="close a connection that waits so long for its next request",
    )


def add_access_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tenant-keys",
        metavar="FILE",
        help="API keys that name their tenant, one 'TENANT KEY [BEST-PRIORITY]' a line",
    )
    group.add_argument(
        "--best-priority",
        type=int,
        default=0,
        metavar="NUMBER",
        help="the best, which is the lowest, priority that a request may ask for when its key has "
        "none of its own; -100 lets everybody have any",
    )
    group.add_argument(
        "--allowed-hosts",
        nargs="+",
        default=[],
        metavar="HOST",
        help="names that a Host header may give besides localhost and addresses, * for any; "
        "without it those two only where --host is of this machine alone, else any",
    )
    group.add_argument(
        "--cors-origins",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="origins whose web pages may call the server, as in https://my.host; * for any, but "
        "not on /debug and /metrics; without it pages of other origins are refused",
    )


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """What the file says: tenants, and best priorities, by key."""

    tenants: dict[str, str] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)


def http_config(args: argparse.Namespace, keys: TenantKeys) -> HttpConfig:
    """Checked with the rest of the gateway's settings."""
    return HttpConfig(
        max_connections=args.max_connections,
        max_header_bytes=args.max_header_bytes,
        header_timeout_s=args.header_timeout,
        body_timeout_s=args.body_timeout,
        keep_alive_timeout_s=args.keep_alive_timeout,
        allowed_hosts=tuple(host.lower() for host in args.allowed_hosts),
        cors_origins=tuple(args.cors_origins),
        ssl_certfile=args.ssl_certfile,
        ssl_keyfile=args.ssl_keyfile,
        uds=args.uds,
        best_priority=args.best_priority,
        key_priorities=keys.priorities,
    )


def read_tenant_keys(path: str | None) -> TenantKeys:
    """From a file of 'TENANT KEY [BEST-PRIORITY]' lines. Raises ConfigError."""
    found = TenantKeys()
    if path is None:
        return found
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"--tenant-keys {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--tenant-keys {path}: not a text file: {error}") from error
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) not in (2, 3) or words[1] in found.tenants:
            raise ConfigError(
                f"--tenant-keys {path}:{number}: expected 'TENANT KEY [BEST-PRIORITY]', "
                "each key once"
            )
        found.tenants[words[1]] = words[0]
        if len(words) == 3:
            found.priorities[words[1]] = _priority(words[2], f"--tenant-keys {path}:{number}")
    if not found.tenants:
        raise ConfigError(f"--tenant-keys {path}: no keys in it; without the flag the API is open")
    return found


def _priority(word: str, where: str) -> int:
    try:
        best = int(word)
    except ValueError:
        best = 101
    if not -100 <= best <= 100:
        raise ConfigError(f"{where}: a priority is a whole number from -100 (the best) to 100")
    return best
