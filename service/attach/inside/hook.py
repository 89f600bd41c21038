"""A place in the engine where the adapter looks, which an exception of ours turns off for good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

TurnOff = Callable[[str, str], None]


class Hook:
    """`is_on` until something of ours raised there; then the sidecar hears why, once."""

    def __init__(self, name: str, turn_off: TurnOff) -> None:
        self.name = name
        self.is_on = True
        self._turn_off = turn_off

    def fail(self, error: BaseException) -> None:
        """Stop looking. Never raises."""
        self.stop(where(error))

    def stop(self, reason: str) -> None:
        if self.is_on:
            self.is_on = False
            self._turn_off(self.name, reason)


def where(error: BaseException) -> str:
    """The type of the exception, and where it was raised. Its text could have what a client
    sent."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    file = PurePath(trace.tb_frame.f_code.co_filename).name
    return f"{type(error).__name__} in {file}, line {trace.tb_lineno}"
