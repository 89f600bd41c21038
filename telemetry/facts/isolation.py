"""Keeps a part of telemetry that raises from stopping the others.

A part is a fold, a listener of a fold, or a turn of the pump. What raises is counted by its
name. A listener or a turn misses the one item that it raised on, and is detached when it has
raised LIMIT times in a row: one odd request does not cost the traces of all others, and what is
broken does not log for ever. A fold is detached the first time (`limit=1`): it is given many
facts at once, and one that stopped among them has seen some of them and not the rest, so that
its numbers would be wrong without saying so. Nothing that is detached comes back before a
restart. Each detachment is a fact, so that the journal and the diagnosis know of it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Generic, TypeVar

from telemetry.facts.clock import Clock
from telemetry.facts.recorder import Lane
from telemetry.facts.records import FoldDetached

log = logging.getLogger("phasescope.telemetry")

LIMIT = 3
_LANE_FACTS = 1024
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SUFFIXES = ("_fold", "_thread")

T = TypeVar("T")


class Isolation:
    """The parts that were guarded, what they raised, and `lane` with the detachments. The first
    errors of a part are logged, and its last.

    The pump's thread, and whoever calls a guarded part, writes; any thread may read.
    """

    def __init__(self, clock: Clock) -> None:
        self.lane = Lane(_LANE_FACTS)
        self._clock = clock
        self._errors: dict[str, int] = {}
        self._detached: dict[str, str] = {}

    @property
    def errors(self) -> dict[str, int]:
        """How often each part raised, those that never did included."""
        return dict(self._errors)

    @property
    def detached(self) -> tuple[str, ...]:
        return tuple(self._detached)

    def error(self, name: str) -> str | None:
        """What detached the part; None while it is attached."""
        return self._detached.get(name)

    def guard(self, name: str, call: Callable[[T], None], limit: int = LIMIT) -> Guarded[T]:
        """`call` that does not raise; two parts of one name are told apart by a number."""
        number, unique = 2, name
        while unique in self._errors:
            number, unique = number + 1, f"{name}_{number}"
        self._errors[unique] = 0
        return Guarded(self, unique, call, limit)

    def failed(self, name: str, error: Exception, is_detached: bool) -> None:
        """A part raised; `is_detached` says whether it is called again. While an except clause
        runs, so that the traceback is in the log."""
        self._errors[name] = self._errors.get(name, 0) + 1
        if not is_detached:
            if self._errors[name] <= LIMIT:
                log.exception("telemetry's %s raised: it misses what it was given", name)
            return
        self._detached[name] = f"{type(error).__name__}: {error}"
        log.exception("telemetry's %s is detached until the next start: it raised", name)
        now_ns = self._clock.now_ns()
        self.lane.append(FoldDetached(now_ns, name, type(error).__name__))


class Guarded(Generic[T]):
    """A part behind its guard."""

    __slots__ = ("_book", "_call", "_limit", "_run", "is_detached", "name")

    def __init__(self, book: Isolation, name: str, call: Callable[[T], None], limit: int) -> None:
        self.name = name
        self.is_detached = False
        self._book = book
        self._call = call
        self._limit = limit
        self._run = 0

    def __call__(self, item: T) -> None:
        if self.is_detached:
            return
        try:
            self._call(item)
        except Exception as error:
            self._run += 1
            self.is_detached = self._run >= self._limit
            self._book.failed(self.name, error, self.is_detached)
        else:
            self._run = 0


def guarded(isolation: Isolation | None, listener: Callable[[T], None]) -> Callable[[T], None]:
    """A listener of the phase fold behind its guard, or as it is where nothing isolates it."""
    if isolation is None:
        return listener
    return isolation.guard(f"phases_{part_name(listener)}", listener)


def part_name(call: Callable[..., object]) -> str:
    """What a part is called in metrics: its class, or its function's name, in snake case."""
    owner = getattr(call, "__self__", None)
    kind = type(call if owner is None else owner).__name__
    given = getattr(call, "__name__", kind) if owner is None else kind
    name = _WORD.sub("_", given.strip("<>_")).lower()
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name
