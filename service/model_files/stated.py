"""What a model's file states, taken key by key: what nobody takes is refused by its name.

A setting that is read past is a model that computes something else than its authors meant. So
each reader takes the keys that it obeys, names those that cannot matter with the reason, and
`finish` refuses the rest: a key of tomorrow is an error today, and never garbage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.config.settings import ConfigError

_NAMES_SHOWN = 5
_VALUE_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Harmless:
    """Why a key need not be obeyed. With `only`, that holds for these values (and for none
    stated) and any other value is refused."""

    reason: str
    only: tuple[Any, ...] | None = None

    def covers(self, value: Any) -> bool:
        return self.only is None or value is None or value in self.only


class Stated:
    """The keys of one file, or of one object within it. A key without a value counts as one
    that is not there, for whoever takes it."""

    def __init__(self, path: Path, values: Mapping[str, Any], within: str = "") -> None:
        """`within` is put before the names of keys in messages."""
        self.path = path
        self._within = within
        self._left = dict(values)

    def take(self, key: str, default: Any = None) -> Any:
        """The value, which counts as obeyed from now on."""
        value = self._left.pop(key, None)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number; without a default it has to be there. Raises ConfigError."""
        value = self.take(key, default)
        if value is None:
            raise ConfigError(f"{self.path} does not state {self._within}{key}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refused(key, value, "a whole number is expected")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Raises ConfigError."""
        value = self.take(key, default)
        if value is None:
            raise ConfigError(f"{self.path} does not state {self._within}{key}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(key, value, "a number is expected")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Raises ConfigError."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, value, "true or false is expected")
        return value

    def part(self, key: str) -> Stated:
        """The object of that key, to be taken apart and finished on its own."""
        value = self.take(key, {})
        if not isinstance(value, dict):
            raise self.refused(key, value, "an object is expected")
        return Stated(self.path, value, f"{self._within}{key}.")

    def peek(self, key: str) -> Any:
        """The value, which does not count as obeyed."""
        return self._left.get(key)

    @property
    def is_empty(self) -> bool:
        return not self._left

    def states(self, key: str) -> bool:
        """Whether the key is there and not taken yet, with a value or without."""
        return key in self._left

    def refused(self, key: str, value: Any, why: str) -> ConfigError:
        """The value cannot be obeyed."""
        shown = repr(value)
        if len(shown) > _VALUE_CHARACTERS:
            shown = f"{shown[:_VALUE_CHARACTERS]}..."
        return ConfigError(f"{self.path}: {self._within}{key} {shown} is not supported: {why}")

    def finish(self, harmless: Mapping[str, Harmless], prefixes: Iterable[str] = ()) -> None:
        """Everything else is known to be harmless, by its name or by how that begins. Raises
        ConfigError that names what is not."""
        begins = tuple(prefixes)
        unknown: list[str] = []
        for key, value in self._left.items():
            known = harmless.get(key)
            if known is None:
                if not key.startswith(begins):
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
    """So many of them by name that the line stays a line."""
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    plural = what if len(names) == 1 else f"{what}s"
    return f"{plural} {shown}" + (f" and {more} more" if more > 0 else "")


def refuse_tensors(path: Path, names: Iterable[str], why: str) -> None:
    """Raises ConfigError if there is one."""
    found = sorted(names)
    if found:
        raise ConfigError(f"{path}: {_named('tensor', found)}: {why}")
