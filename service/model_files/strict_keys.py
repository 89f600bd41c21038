"""Reads the keys of a model's file strictly: every key is used, known to be ignorable, or refused.

A model with a setting that the server ignores computes something else than its authors meant. So
each reader takes the keys that it uses, lists those that do not matter with a reason, and `finish`
raises an error for all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.config.settings import ConfigError

_NAMES_SHOWN = 5
_VALUE_CHARACTERS = 60
_MOST_NUMBER = 1.7976931348623157e308
_KINDS = {str: "texts", int: "whole numbers", float: "numbers", dict: "objects"}


@dataclass(frozen=True, slots=True)
class IgnoredKey:
    """Why a key is ignored. With `only`, it is ignored with these values or without a value; any
    other value is refused."""

    reason: str
    only: tuple[Any, ...] | None = None

    def covers(self, value: Any) -> bool:
        return self.only is None or value is None or value in self.only


class StrictKeys:
    """The keys of one file, or of one object within it. A key whose value is null counts as
    absent."""

    def __init__(self, path: Path, values: Mapping[str, Any], within: str = "") -> None:
        """`within` is a prefix for key names in error messages."""
        self.path = path
        self._within = within
        self._left = dict(values)

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, which counts as used from now on."""
        value = self._left.pop(key, None)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; required if there is no default. Raises ConfigError."""
        value = self.take(key, default)
        if value is None:
            raise ConfigError(f"{self.path} does not state {self._within}{key}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refused(key, value, "a whole number is expected")
        return value

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` on, for what is a size or divides. Raises ConfigError."""
        value = self.integer(key, default)
        if value < least:
            raise self.refused(key, value, f"a whole number from {least} on is expected")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; required if there is no default. Raises ConfigError."""
        value = self.take(key, default)
        if value is None:
            raise ConfigError(f"{self.path} does not state {self._within}{key}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(key, value, "a number is expected")
        if not abs(value) <= _MOST_NUMBER:  # JSON as Python reads it has NaN and Infinity
            raise self.refused(key, value, "a number is expected")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0, for what divides. Raises ConfigError."""
        value = self.number(key, default)
        if value <= 0:
            raise self.refused(key, value, "a number above 0 is expected")
        return value

    def text(self, key: str) -> str | None:
        """A text; None where there is none. Raises ConfigError."""
        value = self.take(key)
        if value is not None and not isinstance(value, str):
            raise self.refused(key, value, "a text is expected")
        return value

    def list_of(self, key: str, *kinds: type) -> list[Any]:
        """A list of values of `kinds`, empty where there is none. Raises ConfigError."""
        value = self.take(key, [])
        if not isinstance(value, list) or not set(map(type, value)) <= set(kinds):
            names = " or ".join(_KINDS[kind] for kind in kinds)
            raise self.refused(key, value, f"a list of {names} is expected")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """A boolean. Raises ConfigError."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, value, "true or false is expected")
        return value

    def part(self, key: str) -> StrictKeys:
        """The object at a key; it needs a `finish` of its own. Raises ConfigError."""
        value = self.take(key, {})
        if not isinstance(value, dict):
            raise self.refused(key, value, "an object is expected")
        return StrictKeys(self.path, value, f"{self._within}{key}.")

    def peek(self, key: str) -> Any:
        """The value of a key, without using the key."""
        return self._left.get(key)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the keys that are left."""
        return tuple(self._left)

    @property
    def is_empty(self) -> bool:
        return not self._left

    def states(self, key: str) -> bool:
        """Whether the key is present (perhaps null) and has not been taken."""
        return key in self._left

    def refused(self, key: str, value: Any, why: str) -> ConfigError:
        """The error for a value that is not supported."""
        shown = repr(value)
        if len(shown) > _VALUE_CHARACTERS:
            shown = f"{shown[:_VALUE_CHARACTERS]}..."
        return ConfigError(f"{self.path}: {self._within}{key} {shown} is not supported: {why}")

    def finish(self, ignored: Mapping[str, IgnoredKey], prefixes: Iterable[str] = ()) -> None:
        """Check the keys that were not taken: each must be in `ignored` or begin with one of
        `prefixes`. Raises ConfigError with the names of the others."""
        starts = tuple(prefixes)
        unknown: list[str] = []
        for key, value in self._left.items():
            known = ignored.get(key)
            if known is None:
                if not key.startswith(starts):
                    unknown.append(f"{self._within}{key}")
            elif not known.covers(value):
                raise self.refused(key, value, known.reason)
        self._left.clear()
        if unknown:
            raise ConfigError(
                f"{self.path}: unknown {_named('key', unknown)}, which may change what the model "
                "computes; use a checkpoint without, or remove what does not matter"
            )


def _named(what: str, names: list[str]) -> str:
    """The first five names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    plural = what if len(names) == 1 else f"{what}s"
    return f"{plural} {shown}" + (f" and {more} more" if more > 0 else "")


def refuse_tensors(path: Path, names: Iterable[str], why: str) -> None:
    """Raises ConfigError if `names` is not empty."""
    found = sorted(names)
    if found:
        raise ConfigError(f"{path}: {_named('tensor', found)}: {why}")
