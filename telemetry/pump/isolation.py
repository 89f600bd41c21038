"""Keeps a part of telemetry that raises from stopping the others.

A part is a fold, a listener of a fold, or a tick of the pump. Exceptions are counted by part. A
listener or a tick misses only the item that it raised on, and is detached when it has raised LIMIT
times in a row: one odd request does not cost the traces of all others, and a broken part does not
log for ever. A fold is detached the first time (`limit=1`): it takes many facts at once, so after
an exception it has seen only some of them and its numbers would be silently wrong. A detached part
stays detached until a restart. Each detachment is a fact, so it is in the journal and the
diagnosis.
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
    """The guarded parts and the number of their exceptions; `lane` has the facts of detachments.
    The first LIMIT exceptions of a part are logged, and the one that detaches it.

    Written by the pump's thread and by callers of guarded parts; any thread may read.
    """

    def __init__(self, clock: Clock) -> None:
        self.lane = Lane(_LANE_FACTS)
        self._clock = clock
        self._errors: dict[str, int] = {}
        self._detached: dict[str, str] = {}

    @property
    def errors(self) -> dict[str, int]:
        """Number of exceptions of each part, 0 included."""
        return dict(self._errors)

    @property
    def detached(self) -> tuple[str, ...]:
        return tuple(self._detached)

    def error(self, name: str) -> str | None:
        """The exception that detached the part; None while it is attached."""
        return self._detached.get(name)

    def guard(self, name: str, call: Callable[[T], None], limit: int = LIMIT) -> Guarded[T]:
        """`call` wrapped so that it never raises. A second part of the same name gets a number."""
        number, unique = 2, name
        while unique in self._errors:
            number, unique = number + 1, f"{name}_{number}"
        self._errors[unique] = 0
        return Guarded(self, unique, call, limit)

    def failed(self, name: str, error: Exception, is_detached: bool) -> None:
        """Count an exception of a part; `is_detached` says that it is not called any more. Call it
        in an except clause, so that the traceback is logged."""
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
    """A part that never raises: it counts exceptions and detaches itself."""

    __slots__ = ("_call", "_errors_in_a_row", "_isolation", "_limit", "is_detached", "name")

    def __init__(
        self, isolation: Isolation, name: str, call: Callable[[T], None], limit: int
    ) -> None:
        self.name = name
        self.is_detached = False
        self._isolation = isolation
        self._call = call
        self._limit = limit
        self._errors_in_a_row = 0

    def __call__(self, item: T) -> None:
        if self.is_detached:
            return
        try:
            self._call(item)
        except Exception as error:
            self._errors_in_a_row += 1
            self.is_detached = self._errors_in_a_row >= self._limit
            self._isolation.failed(self.name, error, self.is_detached)
        else:
            self._errors_in_a_row = 0


def guarded(isolation: Isolation | None, listener: Callable[[T], None]) -> Callable[[T], None]:
    """A listener of the phase fold, guarded if there is an isolation."""
    if isolation is None:
        return listener
    return isolation.guard(f"phases_{part_name(listener)}", listener)


def part_name(call: Callable[..., object]) -> str:
    """The name of a part in metrics: its class or function name in snake case."""
    owner = getattr(call, "__self__", None)
    kind = type(call if owner is None else owner).__name__
    given = getattr(call, "__name__", kind) if owner is None else kind
    name = _WORD.sub("_", given.strip("<>_")).lower()
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name
