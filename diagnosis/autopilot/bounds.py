"""Which limits the autopilot may set, and how far: built in, or from a file.

A file is TOML, and replaces what is built in. A limit without a table of its own is not touched:

    [max_num_seqs]
    least = 4
    most = 128

    [max_batched_tokens]
    least = 64
    most = 2048
    values = ["auto"]           # and these

    [prefix_cache]
    values = [true]             # it may be turned on, not off

A rollback may set any value: it was in force before.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from telemetry.facts.limits import AUTO, LimitValue

KNOWN = (
    "max_batched_tokens",
    "max_auto_tokens",
    "max_num_seqs",
    "itl_target_ms",
    "queue_limit",
    "queue_limit_tokens",
    "tenant_max_seqs",
    "tenant_queue_limit",
    "prefix_cache",
    "speculative_tokens",
    "order",
    "refuse_late",
)
_NUMBERS = frozenset(KNOWN) - {"prefix_cache", "order", "refuse_late"}
_WORDS: dict[str, tuple[LimitValue, ...]] = {
    "max_batched_tokens": (AUTO,),
    "itl_target_ms": ("none",),
    "tenant_max_seqs": ("none",),
    "tenant_queue_limit": ("none",),
    "prefix_cache": (True, False),
    "order": ("slo", "arrival"),
    "refuse_late": (True, False),
}
_MOST_BYTES = 64 * 1024


class BoundsError(ValueError):
    """The file cannot be used; the message is one line with the remedy."""


class LimitBounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one limit may become: a number from `least` to `most`, or one of `values`; "none" there
    takes the limit away."""

    least: float | None = None
    most: float | None = None
    values: tuple[bool | str, ...] = ()

    def allows(self, value: LimitValue) -> bool:
        if value is None:
            return "none" in self.values
        if isinstance(value, bool | str):
            return value in self.values
        if isinstance(value, dict) or self.least is None or self.most is None:
            return False
        return self.least <= value <= self.most


Bounds = dict[str, LimitBounds]

DEFAULT_BOUNDS: Bounds = {
    "max_batched_tokens": LimitBounds(least=16, most=8192, values=(AUTO,)),
    "max_auto_tokens": LimitBounds(least=16, most=8192),
    "max_num_seqs": LimitBounds(least=1, most=1024),
    "tenant_max_seqs": LimitBounds(least=1, most=1024),
    "prefix_cache": LimitBounds(values=(True,)),
    "speculative_tokens": LimitBounds(least=0, most=16),
    "order": LimitBounds(values=("slo", "arrival")),
}


def bounds_of(path: str | None) -> Bounds:
    """The bounds of a file, or those built in. Raises BoundsError."""
    return DEFAULT_BOUNDS if path is None else read_bounds(path)


def read_bounds(path: str) -> Bounds:
    """Raises BoundsError."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise BoundsError(f"{path}: {error.strerror}") from error
    if len(raw) > _MOST_BYTES:
        raise BoundsError(f"{path}: larger than {_MOST_BYTES} bytes")
    try:
        found = msgspec.toml.decode(raw, type=dict[str, LimitBounds])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BoundsError(f"{path}: {error}") from error
    for name, one in found.items():
        wrong = _wrong(name, one)
        if wrong:
            raise BoundsError(f"{path}: [{name}]: {wrong}")
    return found


def _wrong(name: str, one: LimitBounds) -> str:
    """What cannot be; empty where all is well."""
    if name not in KNOWN:
        return f"no such limit; the limits are {', '.join(KNOWN)}"
    if (one.least is None) != (one.most is None):
        return "least and most go together"
    if one.least is not None and one.most is not None:
        if name not in _NUMBERS:
            return "it is no number: give values"
        if not 0 <= one.least <= one.most:
            return "least must be from 0 to most"
    known = _WORDS.get(name, ())
    for value in one.values:
        if not any(
            value is word or (value == word and type(value) is type(word)) for word in known
        ):
            allowed = ", ".join(map(_toml, known)) or "none: give least and most"
            return f"values: {_toml(value)} cannot be; allowed: {allowed}"
    if one.least is None and not one.values:
        return "give least and most, or values"
    return ""


def _toml(value: LimitValue) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'
