"""Parses the command line's loads and lengths into specs; each error shows the right form."""

from __future__ import annotations

import re

from lab.load.spec import (
    Arrivals,
    ClassSpec,
    Fixed,
    Interval,
    Lengths,
    LongTail,
    Poisson,
    SharedPrefix,
    ShareGpt,
    Slo,
    TailShape,
    Trace,
    Uniform,
    Users,
)
from service.config.settings import ConfigError

LENGTHS_HELP = (
    "PROMPT/OUTPUT in tokens (64/128), LOW-HIGH/LOW-HIGH (16-256/8-64), sharegpt, "
    "sharegpt:MAX_PROMPT/MAX_OUTPUT, shared-prefix:PREFIX+OWN/OUTPUT (512+64/128), "
    "long-tail:lognormal:LOW-HIGH/LOW-HIGH or long-tail:pareto:..."
)
CLASS_HELP = (
    "NAME:key=value,... for instance steady:users=6,lengths=64/200,ttft_ms=500; keys: lengths, "
    "users, rate, burst, interval_s, trace, requests, weight, ttft_ms, itl_ms, tpot_ms, e2e_ms"
)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_SLO_KEYS = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
_INTS = ("users", "burst", "requests")
_FLOATS = ("rate", "interval_s", "weight", *_SLO_KEYS)
_STRINGS = ("lengths", "trace")


def parse_class(text: str) -> ClassSpec:
    """`NAME:key=value,...`. Raises ConfigError."""
    name, colon, rest = text.partition(":")
    if not colon or not _NAME.fullmatch(name):
        raise ConfigError(f"--class {text}: write {CLASS_HELP}")
    where = f"--class {text}"
    given = _pairs(where, rest)
    weight = _float(where, given, "weight")
    return ClassSpec(
        name=name,
        lengths=parse_lengths(given.pop("lengths", "64/64"), where),
        arrivals=parse_arrivals(
            where,
            users=_int(where, given, "users"),
            rate_per_s=_float(where, given, "rate"),
            interval_s=_float(where, given, "interval_s"),
            burst=_int(where, given, "burst"),
            trace=given.pop("trace", None),
        ),
        weight=1.0 if weight is None else weight,
        requests=_int(where, given, "requests"),
        slo=Slo(**{key: _float(where, given, key) for key in _SLO_KEYS}),
    )


def parse_slo(text: str) -> Slo:
    """`ttft_ms=500,itl_ms=50`. Raises ConfigError."""
    where = f"--slo {text}"
    given = _pairs(where, text)
    unknown = [key for key in given if key not in _SLO_KEYS]
    if unknown:
        raise ConfigError(f"{where}: {unknown[0]} is not a target; choose {', '.join(_SLO_KEYS)}")
    return Slo(**{key: _float(where, given, key) for key in _SLO_KEYS})


def parse_arrivals(
    where: str,
    *,
    users: int | None = None,
    rate_per_s: float | None = None,
    interval_s: float | None = None,
    burst: int | None = None,
    trace: str | None = None,
) -> Arrivals | None:
    """The one kind of arrivals that is given, None without any. Raises ConfigError."""
    kinds = {"users": users, "rate": rate_per_s, "interval": interval_s, "trace": trace}
    named = [name for name, value in kinds.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(f"{where}: choose one of {' and '.join(named)}")
    if burst is not None and named not in (["rate"], ["interval"]):
        raise ConfigError(f"{where}: burst needs a rate or an interval beside it")
    if users is not None:
        return Users(users)
    if rate_per_s is not None:
        return Poisson(rate_per_s, 1 if burst is None else burst)
    if interval_s is not None:
        return Interval(interval_s, 1 if burst is None else burst)
    return None if trace is None else Trace(trace)


def parse_lengths(text: str, where: str = "--lengths") -> Lengths:
    """Any form of LENGTHS_HELP. Raises ConfigError."""
    kind, _, rest = text.partition(":")
    if found := re.fullmatch(r"(\d+)/(\d+)", text):
        return Fixed(*map(int, found.groups()))
    if found := re.fullmatch(r"(\d+)-(\d+)/(\d+)-(\d+)", text):
        return Uniform(*map(int, found.groups()))
    if text == "sharegpt":
        return ShareGpt()
    if kind == "sharegpt" and (found := re.fullmatch(r"(\d+)/(\d+)", rest)):
        return ShareGpt(*map(int, found.groups()))
    if kind == "shared-prefix" and (found := re.fullmatch(r"(\d+)\+(\d+)/(\d+)", rest)):
        return SharedPrefix(*map(int, found.groups()))
    shapes = "|".join(TailShape)
    if kind == "long-tail" and (
        found := re.fullmatch(rf"({shapes}):(\d+)-(\d+)/(\d+)-(\d+)", rest)
    ):
        shape, *bounds = found.groups()
        return LongTail(TailShape(shape), *map(int, bounds))
    raise ConfigError(f"{where}: lengths {text!r} are not understood; write {LENGTHS_HELP}")


def lengths_text(lengths: Lengths) -> str:
    """`lengths` in the form that `parse_lengths` reads."""
    match lengths:
        case Fixed(prompt, output):
            return f"{prompt}/{output}"
        case Uniform(p1, p2, o1, o2):
            return f"{p1}-{p2}/{o1}-{o2}"
        case ShareGpt(prompt, output):
            return f"sharegpt:{prompt}/{output}"
        case SharedPrefix(prefix, suffix, output):
            return f"shared-prefix:{prefix}+{suffix}/{output}"
        case LongTail(shape, p1, p2, o1, o2):
            return f"long-tail:{shape.value}:{p1}-{p2}/{o1}-{o2}"


def arrivals_text(arrivals: Arrivals) -> str:
    """A description for people."""
    match arrivals:
        case Poisson(rate, burst):
            return f"{rate:g}/s Poisson" + (f" in bursts of {burst}" if burst > 1 else "")
        case Interval(interval_s, burst):
            return f"{burst} every {interval_s:g} s"
        case Trace():
            return "trace"
        case Users(users):
            return f"{users} users" if users > 1 else "1 user"


def _pairs(where: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise ConfigError(f"{where}: {part!r} is not key=value; write {CLASS_HELP}")
        if key not in (*_INTS, *_FLOATS, *_STRINGS):
            raise ConfigError(f"{where}: {key!r} is not known; write {CLASS_HELP}")
        if key in found:
            raise ConfigError(f"{where}: {key} is given twice")
        found[key] = value
    return found


def _int(where: str, given: dict[str, str], key: str) -> int | None:
    text = given.pop(key, None)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{where}: {key} must be a whole number, not {text!r}") from None


def _float(where: str, given: dict[str, str], key: str) -> float | None:
    text = given.pop(key, None)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{where}: {key} must be a number, not {text!r}") from None
    if not value < float("inf"):
        raise ConfigError(f"{where}: {key} must be finite, not {text!r}")
    return value
