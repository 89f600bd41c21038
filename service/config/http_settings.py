"""Connections, browsers, TLS and priorities: what a client may do with a connection."""

from __future__ import annotations

import ipaddress
import os
from typing import Annotated

import msgspec

from service.config.setting import ConfigError, Group, Unit, check_fields, setting

ANY_HOST = "*"
SOCKET_PATH_BYTES = 100  # the kernel allows 107


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of connections and access. `allowed_hosts` empty: the rule of
    `service.gateway.http.browsers`. `key_priorities` states the best priority of single keys."""

    uds: Annotated[
        str | None,
        setting(
            "--uds",
            Group.CONNECTIONS,
            "listen on a unix socket instead of --host and --port",
            metavar="PATH",
            unset="TCP",
        ),
    ] = None
    ssl_certfile: Annotated[
        str | None,
        setting(
            "--ssl-certfile",
            Group.CONNECTIONS,
            "serve HTTPS with this certificate chain (PEM)",
            metavar="FILE",
            unset="plain HTTP",
        ),
    ] = None
    ssl_keyfile: Annotated[
        str | None,
        setting(
            "--ssl-keyfile",
            Group.CONNECTIONS,
            "private key of the certificate (PEM)",
            metavar="FILE",
            unset="the key in --ssl-certfile",
        ),
    ] = None
    max_connections: Annotated[
        int,
        setting(
            "--max-connections",
            Group.CONNECTIONS,
            "open connections; beyond that an idle one is closed for a new one, and when none is "
            "idle the new one gets a 503",
            unit=Unit.CONNECTIONS,
            ge=1,
        ),
    ] = 4096
    max_header_bytes: Annotated[
        int,
        setting(
            "--max-header-bytes",
            Group.CONNECTIONS,
            "largest request line and headers together",
            unit=Unit.BYTES,
            ge=1024,
        ),
    ] = 32 * 1024
    header_timeout_s: Annotated[
        float,
        setting(
            "--header-timeout",
            Group.CONNECTIONS,
            "close a connection whose request line and headers are not complete by then",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            gt=0,
        ),
    ] = 10.0
    body_timeout_s: Annotated[
        float,
        setting(
            "--body-timeout",
            Group.CONNECTIONS,
            "refuse a request whose body is not complete by then",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            gt=0,
        ),
    ] = 60.0
    keep_alive_timeout_s: Annotated[
        float,
        setting(
            "--keep-alive-timeout",
            Group.CONNECTIONS,
            "close a connection that waits so long for its next request",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            gt=0,
        ),
    ] = 75.0
    best_priority: Annotated[
        int,
        setting(
            "--best-priority",
            Group.ACCESS,
            "the best (lowest) priority that a request may ask for when its key has none of its "
            "own; -100 allows any",
            unit=Unit.PRIORITY,
            metavar="NUMBER",
            hint="-100 is the best",
            ge=-100,
            le=100,
        ),
    ] = 0
    allowed_hosts: Annotated[
        tuple[str, ...],
        setting(
            "--allowed-hosts",
            Group.ACCESS,
            "names that a Host header may give besides localhost and addresses, * for any; "
            "without it only those two if --host is a loopback address, else any",
            metavar="HOST",
            lower=True,
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        setting(
            "--cors-origins",
            Group.ACCESS,
            "origins whose web pages may call the server, as in https://my.host; * for any, but "
            "not on /debug and /metrics; without it pages of other origins are refused",
            metavar="ORIGIN",
        ),
    ] = ()
    key_priorities: dict[str, int] = {}

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        check_fields(self)
        for host in self.allowed_hosts:
            if not host or "/" in host:
                raise ConfigError(
                    f"--allowed-hosts {host!r}: give names without scheme or path, as in my.host"
                )
        for origin in self.cors_origins:
            if origin != ANY_HOST and not origin.startswith(("http://", "https://")):
                raise ConfigError(
                    f"--cors-origins {origin!r}: give scheme and host, as in https://my.host"
                )
        self._validate_tls()
        if self.uds is not None and not 0 < len(os.fsencode(self.uds)) <= SOCKET_PATH_BYTES:
            raise ConfigError(f"--uds: give a path of 1 to {SOCKET_PATH_BYTES} bytes")

    @property
    def is_tls(self) -> bool:
        return self.ssl_certfile is not None

    def _validate_tls(self) -> None:
        if self.ssl_certfile is None:
            if self.ssl_keyfile is not None:
                raise ConfigError("--ssl-keyfile needs --ssl-certfile")
            return
        import ssl  # only where it is wanted: the start must not wait for it

        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, lambda: "")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--ssl-certfile {self.ssl_certfile}: certificate or key cannot be used: {error}"
            ) from error


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
