"""Property tests whose examples cost much: few in `make test`, all of them in `make test-slow`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

VARIABLE = "PHASESCOPE_ALL_EXAMPLES"
ALL = bool(os.environ.get(VARIABLE))


def examples(few: int, full: int, **more: Any) -> Callable[[Any], Any]:
    """`settings(max_examples=...)` above `@given`; the test is marked `sampled`, which
    `make test-slow` runs with `full` examples."""

    def drawn(test: Any) -> Any:
        number = full if ALL else few
        limited = settings(max_examples=number, deadline=None, **more)(test)
        return pytest.mark.sampled(limited)

    return drawn
