"""An executor in virtual time: durations from a fitted cost, tokens from the caller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lab.replay.iteration_cost import IterationCost
from lab.replay.noise import Noise
from service.engine.admission import Limits
from service.engine.executor import CountedAdapters
from service.engine.plan import DecodeRow, Plan, PrefillChunk, Sample, StepOutcome
from service.engine.planning.plan_load import load_of_plan
from telemetry.facts.clock import ManualClock


class ModelledDevice(CountedAdapters):
    """Implements `service.engine.executor.Executor` in virtual time.

    `token(seq_id, index)` is output `index` of a sequence. `accepted` has, by sequence and
    position, how many tokens a row with drafts gives, 1 by default. `gap_ns` is the gap after
    the iteration that launched last.
    """

    def __init__(
        self,
        limits: Limits,
        cost: IterationCost,
        noise: Noise,
        clock: ManualClock,
        token: Callable[[int, int], int],
        accepted: dict[int, dict[int, int]] | None = None,
    ) -> None:
        super().__init__()
        self._cost, self._noise, self._clock = cost, noise, clock
        self._token = token
        self._accepted = accepted or {}
        self._launched: deque[tuple[Plan, int, int]] = deque()
        self._free_ns = 0
        self._tokens = 0  # of the step before
        self.gap_ns = cost.gap_ns
        self.block_tokens = limits.block_tokens
        self.blocks_total = limits.blocks_total

    def launch(self, plan: Plan) -> None:
        begin_ns = max(self._clock.now_ns(), self._free_ns)
        load = load_of_plan(plan).after(self._tokens)
        self._tokens = load.tokens
        cost_ns = self._cost.step_ns(load)
        disturbed = self._noise.at(begin_ns, cost_ns)
        span_ns, self.gap_ns = cost_ns, self._cost.gap_ns
        if disturbed is not None:
            span_ns, self.gap_ns = disturbed.span_ns(cost_ns), disturbed.gap_ns
        self._free_ns = begin_ns + span_ns
        self._launched.append((plan, begin_ns, self._free_ns))

    def collect(self) -> StepOutcome:
        plan, begin_ns, end_ns = self._launched.popleft()
        self._clock.advance(max(0, end_ns - self._clock.now_ns()))
        samples = tuple(self._samples(row) for row in plan.sampled_rows)
        return StepOutcome(samples, begin_ns, end_ns)

    def _samples(self, row: DecodeRow | PrefillChunk) -> tuple[Sample, ...]:
        if not isinstance(row, DecodeRow) or not row.drafts:
            return (Sample(self._token(row.seq_id, row.output_index)),)
        accepted = self._accepted.get(row.seq_id, {}).get(row.start, 1)
        count = min(accepted, 1 + len(row.drafts))
        outputs = range(row.output_index, row.output_index + count)
        return tuple(Sample(self._token(row.seq_id, index)) for index in outputs)
