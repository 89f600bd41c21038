"""An executor that computes nothing: time passes on a ManualClock, tokens are a hash.

The step cost is linear in what the step does, which is the shape that a real step's cost
has to first order. Tokens depend on the sequence and the output's index only, so a
request gives the same tokens however it is batched, chunked or preempted: a run in which
they differ has a scheduling bug.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from service.engine.executor import StepFailed
from service.engine.plan import Plan, Sample, StepOutcome
from telemetry.clock import ManualClock

_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """Nanoseconds of one step: base + per prefill token + per decode row + per context token."""

    base_ns: int = 20_000_000
    prefill_token_ns: int = 200_000
    decode_row_ns: int = 1_000_000
    context_token_ns: int = 1_000

    def step_ns(self, plan: Plan) -> int:
        prefill_tokens = sum(len(chunk.tokens) for chunk in plan.prefills)
        context_tokens = sum(row.start for row in plan.decodes)
        return (
            self.base_ns
            + self.prefill_token_ns * prefill_tokens
            + self.decode_row_ns * len(plan.decodes)
            + self.context_token_ns * context_tokens
        )


def sim_token(seq_id: int, output_index: int, vocab: int) -> int:
    """The token that sequence `seq_id` has as output `output_index`."""
    mixed = ((seq_id + 1) * _MIX + output_index * 0xBF58476D1CE4E5B9) & ((1 << 64) - 1)
    return (mixed ^ (mixed >> 31)) % vocab


class SimExecutor:
    """Implements `service.engine.executor.Executor` in virtual time.

    `fail_steps` names step ids that end in StepFailed. It checks what a real device would
    suffer from: rows of unknown slots, block tables too short, cache positions that were
    never written.
    """

    def __init__(
        self,
        clock: ManualClock,
        blocks_total: int,
        block_tokens: int = 16,
        cost: LinearCost | None = None,
        vocab: int = 1000,
        fail_steps: frozenset[int] = frozenset(),
    ) -> None:
        self._clock = clock
        self._blocks_total = blocks_total
        self._block_tokens = block_tokens
        self._cost = cost or LinearCost()
        self._vocab = vocab
        self._fail_steps = fail_steps
        self._launched: deque[tuple[int, StepOutcome]] = deque()
        self._free_ns = 0
        self._slots: dict[int, int] = {}
        self._written: dict[tuple[int, int], int] = {}

    @property
    def block_tokens(self) -> int:
        return self._block_tokens

    @property
    def blocks_total(self) -> int:
        return self._blocks_total

    def launch(self, plan: Plan) -> None:
        """Check the plan and schedule its end in virtual time."""
        for slot in plan.stopped_slots:
            self._slots.pop(slot, None)
        for start in plan.started:
            assert start.slot not in self._slots, f"slot {start.slot} is taken"
            self._slots[start.slot] = start.seq_id
        for row in plan.decodes:
            self._touch(row.seq_id, row.slot, row.blocks, row.start, 1)
        for chunk in plan.prefills:
            self._touch(chunk.seq_id, chunk.slot, chunk.blocks, chunk.start, len(chunk.tokens))
        begin_ns = max(self._clock.now_ns(), self._free_ns)
        end_ns = begin_ns + self._cost.step_ns(plan)
        self._free_ns = end_ns
        samples = tuple(
            Sample(sim_token(row.seq_id, row.output_index, self._vocab))
            for row in plan.sampled_rows
        )
        self._launched.append((plan.step_id, StepOutcome(samples, begin_ns, end_ns)))

    def collect(self) -> StepOutcome:
        """Let time pass until the oldest launched step is done."""
        step_id, outcome = self._launched.popleft()
        self._clock.advance(max(0, outcome.sample_ns - self._clock.now_ns()))
        if step_id in self._fail_steps:
            raise StepFailed(f"step {step_id} was told to fail")
        return outcome

    def _touch(self, seq_id: int, slot: int, blocks: Sequence[int], start: int, count: int) -> None:
        assert self._slots.get(slot) == seq_id, f"slot {slot} is not sequence {seq_id}'s"
        for position in range(start):
            cell = (blocks[position // self._block_tokens], position % self._block_tokens)
            owner = self._written.get(cell)
            assert owner == seq_id, f"position {position} of {seq_id} holds {owner}'s keys"
        for position in range(start, start + count):
            cell = (blocks[position // self._block_tokens], position % self._block_tokens)
            self._written[cell] = seq_id
