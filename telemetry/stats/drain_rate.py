"""How long the queue needs to drain: the Retry-After of a refused request.

Waiting tokens over the tokens computed per second in the last ten seconds, or in the last step if
that took longer. It is computed on the
pump's thread and only read where requests are refused, because refusals come in bursts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from telemetry.facts.engine_records import EngineIdled, StepRecorded
from telemetry.facts.records import EngineDied, Fact

WINDOW_NS = 10_000_000_000
LONGEST_S = 60


class DrainRate:
    """A fold; `retry_after_s` may be read from any thread."""

    def __init__(self) -> None:
        self.retry_after_s = 1
        self._steps: deque[tuple[int, int]] = deque()
        self._tokens = 0

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case StepRecorded():
                    self._step(fact)
                case EngineIdled() | EngineDied():
                    self.retry_after_s = 1
                case _:
                    pass

    def _step(self, step: StepRecorded) -> None:
        tokens = sum(row.tokens for row in step.rows)
        self._steps.append((step.begin_ns, tokens))
        self._tokens += tokens
        while len(self._steps) > 1 and self._steps[0][0] < step.committed_ns - WINDOW_NS:
            self._tokens -= self._steps.popleft()[1]
        rate = self._tokens / ((step.committed_ns - self._steps[0][0]) / 1e9 or 1.0)
        wanted = round(step.waiting_tokens / rate) if rate > 0 else 1
        self.retry_after_s = min(max(1, wanted), LONGEST_S)
