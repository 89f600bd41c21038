"""What tests of transports wait for, in turns and not in seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(find: Callable[[], list[T]], count: int = 1) -> list[T]:
    """What comes, when `count` are there."""
    found: list[T] = []
    for _ in range(10_000_000):
        found += find()
        if len(found) >= count:
            return found
        os.sched_yield()
    raise AssertionError(f"only {found} came")


def becomes(true: Callable[[], bool]) -> None:
    """Wait for it."""
    until(lambda: [True] if true() else [])
