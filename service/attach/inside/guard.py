"""Keeps what goes wrong in our code away from the engine: it is counted, and after a few errors the
hook, or all of them, is turned off, with the reason in the sidecar.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

_MOST_ERRORS = 3

TurnOff = Callable[[str, str, bool], None]
"""`hook`, `reason`, whether nothing at all is observed any more."""


class Guarded(Protocol):
    """Has a guard for each of its hooks."""

    def guard_of(self, hook: str, is_vital: bool) -> Guard: ...


P = ParamSpec("P")
Owner = TypeVar("Owner", bound=Guarded)


class Guard:
    """The errors of one hook. Read `is_on` before calling what may raise, and `failed` after it
    raised. `is_vital`: without this hook the others' facts would be wrong."""

    def __init__(self, hook: str, turn_off: TurnOff, *, is_vital: bool) -> None:
        self.is_on = True
        self._hook, self._turn_off, self._is_vital = hook, turn_off, is_vital
        self._errors = 0

    def failed(self, error: Exception) -> None:
        """An error of ours; the engine goes on."""
        self._errors += 1
        if self._errors < _MOST_ERRORS or not self.is_on:
            return
        self.is_on = False
        self._turn_off(self._hook, where(error), self._is_vital)


def where(error: BaseException) -> str:
    """The kind of an error and the place where it was raised. Its text is left out: it may hold
    values of requests."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" at {Path(code.co_filename).name}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return f"{type(error).__name__}{place}"


def guarded(
    hook: str, *, is_vital: bool = True
) -> Callable[[Callable[Concatenate[Owner, P], None]], Callable[Concatenate[Owner, P], None]]:
    """A method that raises nothing, and is not called any more after a few errors."""

    def wrap(
        method: Callable[Concatenate[Owner, P], None],
    ) -> Callable[Concatenate[Owner, P], None]:
        @wraps(method)
        def call(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> None:
            guard = self.guard_of(hook, is_vital)
            if guard.is_on:
                try:
                    method(self, *args, **kwargs)
                except Exception as error:
                    guard.failed(error)

        return call

    return wrap
