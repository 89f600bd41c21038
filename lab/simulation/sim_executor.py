"""An executor that computes nothing: time passes on a ManualClock, tokens are a hash.

The step cost is linear in what the step does, which is the shape that a real step's cost
has to first order. Tokens depend on the sequence and the output's index only, so a
request gives the same tokens however it is batched, chunked, cached, drafted or preempted:
a run in which they differ has a scheduling bug.

Where a real device would compute nonsense, this one stops: every position that a row
attends to must hold the row's own token, wherever in the cache or the host tier that token
was computed, and by whom is noted, so that a test can ask who read whose blocks.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.engine.executor import CountedAdapters, StepFailed
from service.engine.inbox import SetStepCost
from service.engine.plan import (
    BlockCopy,
    CopyKind,
    DecodeRow,
    Plan,
    PrefillChunk,
    Sample,
    StepOutcome,
)
from service.engine.prompt_output import Pooled, PromptResult, PromptScores
from telemetry.costs.step_load import attention_pairs
from telemetry.facts.clock import ManualClock

_MIX = 0x9E3779B97F4A7C15


class WrongContents(Exception):
    """A row attends to keys and values of another text."""


class Cost(Protocol):
    """A cost model: how long a step takes, in nanoseconds."""

    def step_ns(self, plan: Plan) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """Nanoseconds of one step: base + per prefill token + per decode row + per context token."""

    base_ns: int = 20_000_000
    prefill_token_ns: int = 200_000
    decode_row_ns: int = 1_000_000
    context_token_ns: int = 1_000

    def step_ns(self, plan: Plan) -> int:
        prefill_tokens = plan.scheduled_tokens - len(plan.decodes)
        context_tokens = sum(row.start for row in plan.decodes)
        return (
            self.base_ns
            + self.prefill_token_ns * prefill_tokens
            + self.decode_row_ns * len(plan.decodes)
            + self.context_token_ns * context_tokens
        )

    def as_fitted(self) -> SetStepCost:
        """What a fit would find: the true cost."""
        return SetStepCost(
            base_ns=self.base_ns,
            prefill_token_ns=self.prefill_token_ns,
            decode_row_ns=self.decode_row_ns,
            context_token_ns=self.context_token_ns,
        )


@dataclass(frozen=True, slots=True)
class FittedCost:
    """The cost of a step as an engine has fitted it, all of its terms."""

    fitted: SetStepCost

    def step_ns(self, plan: Plan) -> int:
        cost = self.fitted
        context = sum([row.start for row in plan.decodes])
        total_ns: float = cost.decode_step_ns(len(plan.decodes), context)
        for chunk in plan.prefills:
            tokens = len(chunk.tokens)
            pairs = attention_pairs(tokens, chunk.start)
            total_ns += cost.prefill_token_ns * tokens + cost.pair_ns * pairs
        return round(total_ns + (cost.mixed_ns if plan.prefills else 0))

    def as_fitted(self) -> SetStepCost:
        return self.fitted


def sim_token(seq_id: int, output_index: int, vocab: int) -> int:
    """The token that sequence `seq_id` has as output `output_index`."""
    mixed = ((seq_id + 1) * _MIX + output_index * 0xBF58476D1CE4E5B9) & ((1 << 64) - 1)
    return (mixed ^ (mixed >> 31)) % vocab


def _read(chunk: PrefillChunk) -> PromptResult:
    """What a prompt's chunk gives to read: of each scored token its position; of a pool the number
    of positions that are in it."""
    reads = chunk.reads
    if reads.scores:
        positions = array("f", range(reads.first + 1, reads.stop + 1))
        return PromptScores(reads.first + 1, positions.tobytes(), b"", b"", b"")
    return Pooled(array("f", [reads.stop]).tobytes())


@dataclass(frozen=True, slots=True)
class Cell:
    """One position of a block: a token, and the sequence that computed it."""

    token: int
    writer: int


class SimExecutor(CountedAdapters):
    """Implements `service.engine.executor.Executor` in virtual time.

    `fails` says which plans end in StepFailed. `on_read(reader, writer)` is called when a sequence
    attends to a position that another one computed. Outputs repeat after `period` tokens, so that
    the n-gram proposer finds something. A prompt token that is scored takes `score_row_ns` more;
    its score is its position, so that one that is scored twice or never is seen.
    """

    def __init__(
        self,
        clock: ManualClock,
        blocks_total: int,
        block_tokens: int = 16,
        cost: Cost | None = None,
        vocab: int = 1000,
        fails: Callable[[Plan], bool] = lambda plan: False,
        on_read: Callable[[int, int], None] = lambda reader, writer: None,
        period: int | None = None,
        score_row_ns: int = 0,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._blocks_total = blocks_total
        self._block_tokens = block_tokens
        self._cost = cost or LinearCost()
        self._vocab = vocab
        self._fails = fails
        self._on_read = on_read
        self._period = period
        self._score_row_ns = score_row_ns
        self._launched: deque[tuple[Plan, StepOutcome | None, int]] = deque()
        self._lost: set[int] = set()
        self._free_ns = 0
        self._slots: dict[int, int] = {}
        self._texts: dict[int, list[int]] = {}
        self._cells: list[list[Cell | None]] = [[None] * block_tokens for _ in range(blocks_total)]
        self._host: dict[int, list[Cell | None]] = {}

    @property
    def block_tokens(self) -> int:
        return self._block_tokens

    @property
    def blocks_total(self) -> int:
        return self._blocks_total

    def token(self, seq_id: int, output_index: int) -> int:
        """The true output `output_index` of a sequence."""
        place = output_index % self._period if self._period else output_index
        return sim_token(seq_id, place, self._vocab)

    def read_block(self, block: int) -> tuple[Cell | None, ...]:
        """What a block holds, to be sent to another engine."""
        return tuple(self._cells[block])

    def write_block(self, block: int, cells: Sequence[Cell | None]) -> None:
        """Another engine writes a block."""
        assert len(cells) == self._block_tokens, len(cells)
        self._cells[block] = list(cells)

    def launch(self, plan: Plan) -> None:
        """Check the plan and schedule its end in virtual time."""
        fails = self._fails(plan)
        for copy in plan.copies:
            self._copy(copy, fails)
        for slot in plan.stopped_slots:
            self._slots.pop(slot, None)
        for start in plan.started:
            assert start.slot not in self._slots, f"slot {start.slot} is taken"
            self._slots[start.slot] = start.seq_id
            self._texts[start.seq_id] = [*start.prompt, *start.outputs]
        if fails:
            self._spoil(plan)
        samples = [] if fails else [self._decode(row) for row in plan.decodes]
        for chunk in () if fails else plan.prefills:
            text = self._text(chunk.seq_id, chunk.slot)
            if chunk.seq_id in self._lost:
                samples += [(Sample(0),)] if chunk.samples else []
                continue
            assert text[chunk.start : chunk.start + len(chunk.tokens)] == list(chunk.tokens)
            self._compute(chunk.seq_id, chunk.blocks, chunk.start, chunk.tokens)
            if chunk.samples:
                samples.append(self._sample(chunk.seq_id, chunk.output_index))
        begin_ns = max(self._clock.now_ns(), self._free_ns)
        score_ns = self._score_row_ns * sum(c.reads.scored_rows for c in plan.prefills)
        end_ns = begin_ns + self._cost.step_ns(plan) + score_ns
        self._free_ns = end_ns
        outcome = None
        if not fails:
            prompts = tuple(map(_read, plan.read_chunks))
            outcome = StepOutcome(
                tuple(samples), begin_ns, end_ns, prompts=prompts, score_ns=score_ns
            )
        self._launched.append((plan, outcome, end_ns))

    def collect(self) -> StepOutcome:
        """Advance the clock to the end of the oldest launched step."""
        plan, outcome, end_ns = self._launched.popleft()
        self._clock.advance(max(0, end_ns - self._clock.now_ns()))
        if outcome is None:
            raise StepFailed(f"step {plan.step_id} was told to fail")
        return outcome

    def _sample(self, seq_id: int, output_index: int) -> tuple[Sample, ...]:
        token = self.token(seq_id, output_index)
        self._texts[seq_id].append(token)
        return (Sample(token),)

    def _decode(self, row: DecodeRow) -> tuple[Sample, ...]:
        """Compute the input and the drafts; sample up to the first draft that is not accepted."""
        text = self._text(row.seq_id, row.slot)
        if row.seq_id in self._lost:
            return (Sample(0),)
        assert row.start == len(text) - 1, f"{row.seq_id} decodes at {row.start} of {len(text)}"
        self._compute(row.seq_id, row.blocks, row.start, [text[-1], *row.drafts])
        samples = self._sample(row.seq_id, row.output_index)
        for index, draft in enumerate(row.drafts, 1):
            if samples[-1].token_id != draft:
                break
            samples += self._sample(row.seq_id, row.output_index + index)
        return samples

    def _text(self, seq_id: int, slot: int) -> list[int]:
        assert self._slots.get(slot) == seq_id, f"slot {slot} is not sequence {seq_id}'s"
        return self._texts[seq_id]

    def _compute(
        self, seq_id: int, blocks: Sequence[int], start: int, tokens: Sequence[int]
    ) -> None:
        size = self._block_tokens
        text = self._texts[seq_id]
        for position in range(start):
            cell = self._cells[blocks[position // size]][position % size]
            if cell is None or cell.token != text[position]:
                raise WrongContents(
                    f"position {position} of {seq_id} should hold {text[position]}, holds {cell}"
                )
            if cell.writer != seq_id:
                self._on_read(seq_id, cell.writer)
        for position, token in enumerate(tokens, start):
            self._cells[blocks[position // size]][position % size] = Cell(token, seq_id)

    def _spoil(self, plan: Plan) -> None:
        """Clear what a failed step was to compute. Its sequences end, so their rows in flight may
        have any contents."""
        size = self._block_tokens
        for row in plan.rows:
            self._lost.add(row.seq_id)
            count = 1 if isinstance(row, DecodeRow) else len(row.tokens)
            for position in range(row.start, row.start + count):
                self._cells[row.blocks[position // size]][position % size] = None

    def _copy(self, copy: BlockCopy, fails: bool) -> None:
        """Copy a block; a failing step leaves the target empty."""
        nothing: list[Cell | None] = [None] * self._block_tokens
        if fails and copy.kind is CopyKind.LOAD:
            self._cells[copy.block] = nothing
            return
        if fails:
            self._host[copy.host_slot] = nothing
            return
        match copy.kind:
            case CopyKind.SAVE:
                self._host[copy.host_slot] = list(self._cells[copy.block])
            case CopyKind.LOAD:
                self._cells[copy.block] = list(self._host[copy.host_slot])


class WritingExecutor(SimExecutor):
    """Writes what it computes, and does not compare what it reads: for long texts. `said` gives the
    outputs of a sequence by their index; None: they are a hash."""

    said: Callable[[int, int], int] | None = None

    def token(self, seq_id: int, output_index: int) -> int:
        if self.said is None:
            return super().token(seq_id, output_index)
        return self.said(seq_id, output_index)

    def _compute(
        self, seq_id: int, blocks: Sequence[int], start: int, tokens: Sequence[int]
    ) -> None:
        size = self._block_tokens
        for position, token in enumerate(tokens, start):
            self._cells[blocks[position // size]][position % size] = Cell(token, seq_id)
