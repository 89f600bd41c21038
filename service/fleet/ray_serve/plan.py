"""What a fleet on Ray Serve is, from a TOML file:

key_file = "fleet.key"      # beside this file, or absolute; at the same path on every machine
model = "Qwen/Qwen3-0.6B"   # as for `serve`; else the default one

[gateways]
number = 1
port = 8000

[engines.main]              # any number of groups
number = 2
num_cpus = 4
flags = ["--max-num-seqs", "32"]
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from service.config.setting import ConfigError
from service.fleet.membership.members import MOST_MEMBERS, Role

_MOST_BYTES = 1 << 20
_Count = Annotated[float, msgspec.Meta(ge=0, le=100_000)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
_Flags = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=1024)]
_Group = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,32}$")]
OF_ENGINES = frozenset({"listen", "key_file", "node_name", "role", "uds"})
OF_GATEWAYS = frozenset({"engines", "uds", "ssl_certfile", "ssl_keyfile", "gateways"})
_OF_BOTH = frozenset({"model", "host", "port", "drain_timeout"})


class Gateways(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fleet gateways, at most one a machine: all have one port, for a balancer in front."""

    number: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    host: _Text = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 8000
    num_cpus: _Count = 0
    flags: _Flags = ()


class Engines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of engine nodes that are alike. `host` and `port` are of a node's own HTTP server;
    with port 0 each takes a free one, with another one a machine has at most one of the group."""

    number: Annotated[int, msgspec.Meta(ge=0, le=MOST_MEMBERS)] = 1
    role: Role = Role.ANY
    host: _Text = "127.0.0.1"
    port: _Port = 0
    num_cpus: _Count = 1
    num_gpus: _Count = 0
    flags: _Flags = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole fleet. `num_cpus` and `num_gpus` are what Ray reserves for each."""

    key_file: _Text
    engines: Annotated[dict[_Group, Engines], msgspec.Meta(max_length=64)]
    gateways: Gateways = Gateways()
    model: _Text | None = None
    drain_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 30.0
    start_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0


def read_plan(path: str) -> Plan:
    """Raises ConfigError. `key_file` is absolute then."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ConfigError(f"{path}: larger than {_MOST_BYTES} bytes")
        plan = msgspec.convert(tomllib.loads(content.decode()), Plan)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not plan.engines:
        raise ConfigError(f"{path}: a fleet has engines, as in [engines.main]")
    total = sum(one.number for one in plan.engines.values())
    if total > MOST_MEMBERS:
        raise ConfigError(f"{path}: {total} engines; a fleet has at most {MOST_MEMBERS}")
    key = (file.parent / plan.key_file).resolve()
    return msgspec.structs.replace(plan, key_file=str(key))


def check_given(where: str, given: frozenset[str] | set[str], fixed: frozenset[str]) -> None:
    """Refuse settings among `flags` that the deployment gives itself. Raises ConfigError."""
    for key in sorted(given & (fixed | _OF_BOTH)):
        raise ConfigError(
            f"flags of [{where}]: --{key.replace('_', '-')} is given by the deployment; "
            "the file has keys for what can be chosen (docs/operate/fleet.md)"
        )


def engine_command(plan: Plan, group: str, name: str, listen: str, port: int) -> list[str]:
    """`phasescope engine` with everything that it needs; `port` is of its HTTP server."""
    of = plan.engines[group]
    fixed = ["--listen", listen, "--key-file", plan.key_file, "--node-name", name]
    fixed += ["--role", of.role.value]
    return [*_program("engine"), *fixed, *_common(plan, of.host, port), *of.flags]


def gateway_command(plan: Plan, engines_file: str) -> list[str]:
    """`phasescope serve --engines` with everything that it needs."""
    of = plan.gateways
    fixed = ["--engines", engines_file]
    return [*_program("serve"), *fixed, *_common(plan, of.host, of.port), *of.flags]


def _program(command: str) -> list[str]:
    return [sys.executable, "-m", "service.cli.main", command]


def _common(plan: Plan, host: str, port: int) -> list[str]:
    model = [] if plan.model is None else ["--model", plan.model]
    drain = ["--drain-timeout", f"{plan.drain_timeout_s:g}"]
    return ["--host", host, "--port", str(port), *drain, *model]
