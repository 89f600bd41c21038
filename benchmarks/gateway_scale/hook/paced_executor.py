"""An executor that computes nothing and answers at a steady pace.

It stands in front of the executor that the server loaded and answers every row with a letter,
one step a period: what is left of the engine process is its own work. Imports only what every
version of the service has.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Any

_FIRST_LETTER, _LETTERS = 97, 26


class PacedExecutor:
    """Ends a step at each beat of a metronome; one that is late skips beats, so the pace is
    the most there is and never made up for. All else is the real executor's."""

    def __init__(self, real: Any, period_s: float, blocks_total: int) -> None:
        self._real = real
        self._period_ns = int(period_s * 1e9)
        self._due_ns = 0
        self._outcomes: deque[tuple[Any, int]] = deque()
        self.blocks_total = blocks_total

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def launch(self, plan: Any) -> None:
        from service.engine.plan import Sample, StepOutcome

        now_ns = time.perf_counter_ns()
        self._due_ns += self._period_ns
        if self._due_ns < now_ns:
            self._due_ns = now_ns + self._period_ns
        letter = _FIRST_LETTER + plan.step_id % _LETTERS
        samples = tuple((Sample(letter),) for _ in plan.sampled_rows)
        outcome = StepOutcome(samples, now_ns, max(now_ns, self._due_ns - 100_000))
        self._outcomes.append((outcome, self._due_ns))

    def collect(self) -> Any:
        outcome, due_ns = self._outcomes.popleft()
        wait_ns = due_ns - time.perf_counter_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        return replace(outcome, sample_ns=min(outcome.sample_ns, time.perf_counter_ns()))


def install(period_s: float, blocks_total: int) -> None:
    """Every executor that this process loads from now on is a paced one."""
    import service.device.loader as loader

    load = loader.load_executor

    def load_paced(*args: Any, **named: Any) -> Any:
        loaded = load(*args, **named)
        paced: Any = PacedExecutor(loaded.executor, period_s, blocks_total)
        return replace(loaded, executor=paced)

    loader.load_executor = load_paced
