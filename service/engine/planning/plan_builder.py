"""A plan under construction: rows are added while the token budget lasts."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from service.engine.plan import BlockCopy, DecodeRow, Plan, PrefillChunk, SlotStart
from service.engine.planning.budget import PromptTime, StepCostModel
from service.engine.planning.targets import Bounds
from service.engine.sequences.request import Request
from telemetry.costs.step_load import StepLoad
from telemetry.facts.reasons import WaitReason
from telemetry.facts.step_parts import Skip


class PlanBuilder:
    """Rows, skips and the budget of the next step.

    `preempted_for_memory` says that a sequence that generates was preempted so that another could
    grow: this step admits no new ones.
    """

    def __init__(self, budget_tokens: int, tile_rows: int = 0) -> None:
        self.tile_rows = tile_rows
        self.budget_tokens = budget_tokens
        self.budget_left = budget_tokens
        self.preempted_for_memory = False
        self.preempted: list[int] = []
        self.decodes: list[DecodeRow] = []
        self._prefills: list[PrefillChunk] = []
        self._started: list[SlotStart] = []
        self._skips: list[Skip] = []
        self._time: PromptTime | None = None
        self._bounds = Bounds()
        self._begin_ns = 0
        self._due_ns: dict[int, float] = {}

    @property
    def context_tokens(self) -> int:
        """Tokens that the decode rows attend to."""
        return sum(row.start for row in self.decodes)

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self._prefills

    def limit_time(self, bounds: Bounds, cost: StepCostModel, overdue: bool, now_ns: int) -> None:
        """Leave prompts what the decodes of the step leave of its bounds, if costs are known.
        `overdue`: some of them are."""
        rows = len(self.decodes)
        decodes = StepLoad(decode_rows=rows, decode_tokens=rows, context_tokens=self.context_tokens)
        self._time = cost.prompt_time(decodes, bounds, overdue, self.tile_rows)
        if self._time is not None:
            self._bounds, self._begin_ns = bounds, now_ns

    def prompt_tokens(self, request: Request, remaining: int, context: int) -> int:
        """Of a prompt's `remaining` tokens after `context`, how many the step can take."""
        most = min(remaining, self.budget_left)
        if self._time is None:
            return most
        target_ns = request.submit.ttft_target_ns
        bound_ns = self._bounds.prompts_ns.get(target_ns, inf)
        if self._due_ns:
            tighter = (
                ns for one, ns in self._due_ns.items() if target_ns is None or one < target_ns
            )
            bound_ns = min(bound_ns, min(tighter, default=inf))
        before = self.budget_tokens - self.budget_left
        return self._time.tokens(remaining, context, most, bound_ns, request.scores_prompt, before)

    def skip(self, request: Request, reason: WaitReason) -> None:
        """Note why a live request gets no row."""
        self._skips.append(Skip(request.seq_id, reason, None))

    def start(self, start: SlotStart) -> None:
        """A sequence takes its slot in this step."""
        self._started.append(start)

    def add_decode(self, request: Request) -> None:
        """One more token of a running sequence."""
        assert request.slot is not None
        self.decodes.append(
            DecodeRow(
                seq_id=request.seq_id,
                slot=request.slot,
                start=request.computed_tokens,
                blocks=request.blocks,
                output_index=request.next_output_index,
            )
        )
        request.advance(1)
        request.in_flight_samples += 1
        self.budget_left -= 1

    def add_draft_tokens(self, index: int, drafts: Sequence[int]) -> None:
        """Give decode row `index` draft tokens that are verified in the same step."""
        if drafts:
            self.decodes[index] = replace(self.decodes[index], drafts=drafts)
            self.budget_left -= len(drafts)

    def add_prefill(self, request: Request, count: int) -> None:
        """The next `count` tokens of a sequence's prompt."""
        assert request.slot is not None
        is_last = count == request.prefill_tokens - request.computed_tokens
        samples = is_last and request.submit.max_tokens > 0
        reads = request.take_reads(count)
        self._prefills.append(
            PrefillChunk(
                seq_id=request.seq_id,
                slot=request.slot,
                start=request.computed_tokens,
                tokens=request.tokens(request.computed_tokens, count),
                blocks=request.blocks,
                recompute_tokens=request.recompute_tokens(count),
                samples=samples,
                output_index=request.next_output_index,
                reads=reads,
            )
        )
        if self._time is not None:
            self._time.take(count, request.computed_tokens, reads.scored_rows)
            if samples:
                self._keep_in_time(request, self._time)
        request.advance(count)
        request.in_flight_samples += samples
        self.budget_left -= count

    def _keep_in_time(self, request: Request, time: PromptTime) -> None:
        """Prompts with more time that come after this one into the step do not make it late."""
        target_ns, by_ns = request.submit.ttft_target_ns, request.submit.first_token_by_ns
        if target_ns is None or by_ns is None or request.preemptions:
            return
        due_ns = (by_ns - self._begin_ns) / time.spread
        if time.decode_ns + time.spent_ns <= due_ns:
            self._due_ns[target_ns] = min(due_ns, self._due_ns.get(target_ns, inf))

    def build(
        self, step_id: int, stopped_slots: tuple[int, ...], copies: tuple[BlockCopy, ...]
    ) -> Plan:
        """The finished plan; the builder is not used again."""
        if self._time is not None:  # the budget was what time allowed
            bound_ns = min(self._bounds.prompts_ns.values(), default=inf)
            left, before = self.budget_left, self.budget_tokens - self.budget_left
            self._limit_tokens(self._time.tokens(left, 0, left, bound_ns, before=before))
        plan = Plan(
            step_id=step_id,
            decodes=tuple(self.decodes),
            prefills=tuple(self._prefills),
            started=tuple(self._started),
            stopped_slots=stopped_slots,
            preempted=tuple(self.preempted),
            skips=tuple(self._skips),
            budget_tokens=self.budget_tokens,
            copies=copies,
            target_ns=self._bounds.tightest_ns,
        )
        assert plan.scheduled_tokens + self.budget_left == plan.budget_tokens, "budget leaks"
        return plan

    def _limit_tokens(self, left: int) -> None:
        """Leave at most `left` tokens of the budget."""
        surplus = max(0, self.budget_left - left)
        self.budget_left -= surplus
        self.budget_tokens -= surplus
