"""What a setting is: its flag, type, bounds, unit, default and help, and how its text is read.

A setting is defined as a field of a frozen msgspec struct:

    max_seqs: Annotated[int, setting("--max-num-seqs", Group.SCHEDULER, "...", ge=1)] = 64

The annotation carries everything else. msgspec checks the type and the bounds; this module turns
its refusals into one line that names the place of the value and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from service.config.sizes import format_bytes, parse_bytes
from telemetry.facts.credentials import KeyUnusable, shown_url, usable_key

_WORDS = {"on": True, "true": True, "yes": True, "1": True}
_WORDS |= {"off": False, "false": False, "no": False, "0": False}
_PLACEHOLDERS: dict[object, str] = {int: "N", float: "X"}
ENV_PREFIX = "PHASESCOPE_"


class ConfigError(Exception):
    """A setting or its combination cannot work; the message is one line with the remedy."""


class Group(StrEnum):
    """Sections of `--help`, of the reference and of `phasescope config`, in this order."""

    MODEL = "model"
    ADAPTERS = "adapters"
    SCHEDULER = "scheduler"
    POLICIES = "policies"
    HTTP = "HTTP"
    CONNECTIONS = "connections"
    ACCESS = "access"
    LOGS = "logs"
    TRACING = "tracing"
    MACHINE = "machine"
    RECORDER = "flight recorder"
    METRICS = "SLO and metrics"
    AUTOPILOT = "autopilot"
    CONSOLE = "web console"
    ATTACH = "attached engine"
    FLEET = "fleet"


class Unit(StrEnum):
    """What a number counts."""

    ADAPTERS = "adapters"
    BYTES = "bytes"
    CONNECTIONS = "connections"
    CURRENCY = "currency units an hour"
    FILES = "files"
    FOLDERS = "folders"
    GB_PER_S = "GB/s"
    GFLOP_PER_S = "GFLOP/s"
    MILLISECONDS = "ms"
    PORT = "port number"
    PRIORITY = "priority"
    PROCESSES = "processes"
    REQUESTS = "requests"
    SECONDS = "s"
    SEQUENCES = "sequences"
    SHARE = "share, 0 to 1"
    STEPS = "steps"
    THREADS = "threads"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a number, or of the length of a text."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    min_length: int | None = None

    def meta(self) -> msgspec.Meta:
        """For msgspec, which checks them."""
        make: Callable[..., msgspec.Meta] = msgspec.Meta
        return make(ge=self.ge, gt=self.gt, le=self.le, min_length=self.min_length)

    def describe(self, show: Callable[[float], str]) -> str:
        """In words; empty where a number has none."""
        ge, gt, le = ("" if one is None else show(one) for one in (self.ge, self.gt, self.le))
        if ge and le:
            return f"from {ge} to {le}"
        if gt and le:
            return f"above {gt} and at most {le}"
        if gt:
            return "positive" if self.gt == 0 else f"above {gt}"
        return f"at least {ge}" if ge else f"at most {le}" if le else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What a definition says beside the type.

    `unset` says what applies while the value is None, `unset_word` is how None is written.
    `gpu` and `large_gpu` are the defaults where a GPU computes, and where it has 70 GiB or
    more. `hint` ends the line that refuses a value. A `secret` is never shown, and is a key
    that a header can carry; a `url` is shown without its login. `lower` folds text to lower
    case. A bool with `word` takes `on` or `off` after its flag; any other is a pair of flags,
    `--x` and `--no-x`.
    """

    flag: str
    group: Group
    help: str
    bounds: Bounds
    unit: Unit | None = None
    metavar: str | None = None
    unset: str | None = None
    unset_word: str | None = None
    gpu: int | None = None
    large_gpu: int | None = None
    hint: str = ""
    secret: bool = False
    url: bool = False
    lower: bool = False
    word: bool = False


def setting(
    flag: str,
    group: Group,
    help: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    min_length: int | None = None,
    **details: Any,
) -> Details:
    """The annotation that makes a field a setting; `details` are fields of `Details`."""
    bounds = Bounds(ge, gt, le, min_length)
    return Details(flag=flag, group=group, help=help, bounds=bounds, **details)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, read from the field `field` of the struct `owner`."""

    owner: type[msgspec.Struct]
    field: str
    kind: Any  # the type without None and without the annotation
    default: Any
    details: Details

    @property
    def key(self) -> str:
        """Its name in a config file."""
        return self.details.flag.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.key.upper()

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags as they are typed; a bool has one for either value."""
        flag = self.details.flag
        return (flag, f"--no-{flag[2:]}") if self.is_switch else (flag,)

    @property
    def choices(self) -> tuple[Any, ...]:
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def is_switch(self) -> bool:
        """Whether its flag takes no value."""
        return self.kind is bool and not self.details.word

    @property
    def is_size(self) -> bool:
        return self.details.unit is Unit.BYTES

    @property
    def placeholder(self) -> str:
        """What stands for the value in `--help`."""
        if self.details.metavar is not None:
            return self.details.metavar
        if self.details.url:
            return "URL"
        if self.kind is bool:
            return "{on,off}"
        if self.choices:
            return "{" + ",".join(map(str, self.choices)) + "}"
        return "SIZE" if self.is_size else _PLACEHOLDERS.get(self.kind, "TEXT")

    def parse(self, text: str, where: str) -> Any:
        """The value that a flag's or a variable's text means. Raises ConfigError."""
        if text == self.details.unset_word:
            return None
        try:
            return self.check(self._read(text), where)
        except ValueError:
            raise ConfigError(self._problem(text, where, text)) from None

    def check(self, value: Any, where: str) -> Any:
        """The value if it is allowed, as the struct holds it. Raises ConfigError that begins with
        `where`: a flag, a variable, or a key of a file."""
        if value == self.details.unset_word:
            return None
        if self.is_size and isinstance(value, str):
            try:
                value = parse_bytes(value)
            except ValueError:
                raise ConfigError(self._problem(value, where)) from None
        try:
            found = msgspec.convert(value, self._checked)
        except msgspec.ValidationError:
            raise ConfigError(self._problem(value, where)) from None
        if isinstance(found, float) and not math.isfinite(found):
            raise ConfigError(self._problem(value, where))
        if self.details.secret and isinstance(found, str):
            return _key(found, where)
        if not self.details.lower:
            return found
        return tuple(one.lower() for one in found) if self.is_list else found.lower()

    def format(self, value: Any) -> str:
        """For people; `parse` reads it."""
        if value is None:
            return self.details.unset_word or ""
        if self.kind is bool:
            return "on" if value else "off"
        if self.is_list:
            return ",".join(value)
        if self.is_size:
            return format_bytes(value)
        return f"{value:g}" if isinstance(value, float) else str(value)

    def shown(self, value: Any) -> Any:
        """For people who may not know a login."""
        return shown_url(value) if self.details.url and isinstance(value, str) else value

    def _read(self, text: str) -> Any:
        """Raises ValueError."""
        number = type(self.choices[0]) if self.choices else self.kind
        if self.is_size:
            return parse_bytes(text)
        if number is bool:
            if text.lower() not in _WORDS:
                raise ValueError(text)
            return _WORDS[text.lower()]
        if number in (int, float):
            return number(text)
        return tuple(text.split(",")) if self.is_list else text

    def _problem(self, value: Any, where: str, text: str | None = None) -> str:
        """What is wrong with a value, and what is allowed; `text` is what was typed for it."""
        hint = f"; {self.details.hint}" if self.details.hint else ""
        if value == "" and not self.choices and self.kind is str:
            return f"{where} is empty{hint}"
        quoted = isinstance(value, str) and text is None and self.kind in (int, float, bool)
        shown = "(not shown)" if self.details.secret else repr(value) if quoted else f"{value}"
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = is_number and self.kind in (int, float) and math.isfinite(value)
        if fits and self._bounds and not (self.kind is int and isinstance(value, float)):
            shown = self.format(value) if self.kind is int else f"{value:g}"
            return f"{where} must be {self._bounds}, not {shown}{hint}"
        if self.choices or self.kind is bool:
            words = ", ".join(map(str, self.choices)) or ("on, off" if text else "true, false")
            return f"{where} {shown}: choose one of {words}{hint}"
        return f"{where} {shown}: give {self._wanted}{hint}"

    @property
    def _wanted(self) -> str:
        if self.is_size:
            return "a size such as 512MiB or 2GiB"
        if self.is_list:
            return "a list of texts"
        name = {int: "a whole number", float: "a number"}.get(self.kind, "a text")
        word = f" or {self.details.unset_word}" if self.details.unset_word else ""
        return (f"{name}, {self._bounds}" if self._bounds else name) + word

    @property
    def _checked(self) -> Any:
        """The type that msgspec checks."""
        annotated: Any = Annotated
        kind = annotated[self.kind, self.details.bounds.meta()]
        return kind if self.default is not None else kind | None

    @property
    def _bounds(self) -> str:
        return self.details.bounds.describe(self._bound)

    def _bound(self, number: float) -> str:
        return format_bytes(int(number)) if self.is_size else f"{number:g}"


def _key(text: str, where: str) -> str:
    try:
        return usable_key(text)
    except KeyUnusable as error:
        raise ConfigError(f"{where}: {error}") from error


@cache
def settings_of(owner: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """The settings among the fields of a struct, in their order."""
    found: list[Setting] = []
    for one in msgspec.structs.fields(owner):
        if get_origin(one.type) is Annotated:
            kind, details = get_args(one.type)
            if get_origin(kind) in (Union, UnionType):
                kind = next(part for part in get_args(kind) if part is not type(None))
            found.append(Setting(owner, one.name, kind, one.default, details))
    return tuple(found)


def check_fields(struct: msgspec.Struct) -> None:
    """Check type and bounds of each setting of a struct. Raises ConfigError that names the flag."""
    for one in settings_of(type(struct)):
        one.check(getattr(struct, one.field), one.details.flag)
