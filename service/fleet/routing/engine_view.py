"""What the router knows of one engine: its last report, and what it sent itself since.

A report is old when it comes. Which of this router's requests and ends it contains is counted, not
timed: the engine says how many it had received and ended (`EngineReported`). What is beyond these
counts is added to the report or taken off it, so that a burst within one signal age spreads. Other
routers' requests are seen in the next report.

Prompts drain at the pace of the fitted cost while a report ages. The correction for what was sent
is exact for requests; their lengths are predictions.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from service.engine.inbox import SetStepCost
from service.engine.planning.budget import LEAST_SHARE
from service.fleet.routing.ring import hash_of
from telemetry.facts.engine_records import StepCostSet
from telemetry.facts.fleet.routing_records import EngineReported

ASSUMED_COST = SetStepCost(
    base_ns=20_000_000, prefill_token_ns=100_000, decode_row_ns=300_000, context_token_ns=500
)
"""Cost of a step of an engine that has fitted none yet: only the ratio between busy and idle ones
matters."""
ASSUMED_MAX_SEQS, ASSUMED_BUDGET_TOKENS = 256, 2048
_ENDS_KEPT = 256
"""Ends since the last report that are remembered."""
SILENT_NS = 3_000_000_000
"""An engine that has not reported for so long is expected to stay silent for as long again."""


class Sent(msgspec.Struct, gc=False):
    """A request of this router that the engine has not ended. `ordinal` counts those of the
    engine, from 1; `tokens` of its prompts are believed to be computed there, of which each has
    `context_tokens`, and `sequences` generate from them, of which `live` have not ended."""

    request_id: str
    ordinal: int
    sent_ns: int
    tokens: int
    context_tokens: int
    anchors: tuple[int, ...]
    sequences: int = 1
    live: int = 1
    prompts: int = 1


class _Gone(NamedTuple):
    """What ended of a request: the `number`-th of its kind. With the last of its sequences the
    blocks of its prompt become free."""

    number: int
    sent: Sent
    sequences: int
    is_last: bool


class EngineView:
    """One engine. After each change what predictions are made from is worked out again. In slots:
    a choice reads a few engines of a thousand, and each of them has to come from memory."""

    __slots__ = (
        "_choice_ends", "_choices", "_context", "_ended", "_ends", "_fitted", "_free_blocks",
        "_received", "_residents", "_unseen", "_waiting_tokens", "block_tokens", "budget_tokens",
        "choices_ended", "context_token_ns", "context_tokens", "cost", "decode_ns", "draining",
        "ended_count", "free_blocks", "incarnation", "index", "max_seqs", "mixed_ns", "name",
        "name_hash", "outstanding", "pair_ns", "prefill_ns", "prefix_number", "ready_ns",
        "report", "residents", "row_ns", "rows", "sent_count", "signal_ns", "spare_ns",
        "target_ns", "token_ns", "used_blocks",
    )  # fmt: skip

    def __init__(
        self, index: int, name: str, incarnation: int, block_tokens: int, joined_ns: int
    ) -> None:
        self.index = index
        self.name = name
        self.name_hash = hash_of(name)
        self.incarnation = incarnation
        self.block_tokens = block_tokens
        self.draining = False
        self.report: EngineReported | None = None
        self._fitted: StepCostSet | None = None
        self.outstanding: dict[str, Sent] = {}
        self.sent_count = self.ended_count = self.choices_ended = 0
        self.prefix_number: int | None = None
        # in the report, of those that were sent and ended
        self._received = self._ended = self._choices = 0
        self._unseen: deque[Sent] = deque()  # sent, and not in the report
        # not in the report: requests, and sequences of requests that went on
        self._ends: deque[_Gone] = deque(maxlen=_ENDS_KEPT)
        self._choice_ends: deque[_Gone] = deque(maxlen=_ENDS_KEPT)
        # what predictions read
        self.signal_ns = joined_ns
        self.ready_ns = float(joined_ns)
        self.max_seqs = ASSUMED_MAX_SEQS
        self.budget_tokens = ASSUMED_BUDGET_TOKENS
        self.target_ns: int | None = None
        self.free_blocks: float | None = None
        self.used_blocks = self._free_blocks = 0
        self._take_cost(ASSUMED_COST)
        self._count()

    def goes_back(self, report: EngineReported) -> bool:
        """Whether it contains fewer requests, or fewer ends, than the report before it."""
        choices = self._choices if report.choices_ended is None else report.choices_ended
        fewer = report.received < self._received or report.ended < self._ended
        return self.report is not None and (fewer or choices < self._choices)

    def take_report(self, report: EngineReported) -> None:
        """A newer report of this incarnation, which does not go back."""
        self.report = report
        self._received = min(report.received, self.sent_count)
        self._ended = min(report.ended, self.ended_count)
        said = report.choices_ended  # None: all, they came on the same connection
        self._choices = self.choices_ended if said is None else min(said, self.choices_ended)
        self.draining = self.draining or report.draining
        if report.cost is not None:
            self._fitted = report.cost
        if self._fitted is not None:
            self._take_cost(step_cost_at(self._fitted, report.drift))
        self.max_seqs, self.budget_tokens = report.max_seqs, report.budget_tokens
        self.target_ns, self.used_blocks = report.target_ns, report.blocks_used
        self._free_blocks = report.blocks_total - report.blocks_used
        while self._unseen and self._unseen[0].ordinal <= report.received:
            self._unseen.popleft()
        while self._ends and self._ends[0].number <= report.ended:
            self._ends.popleft()
        while self._choice_ends and self._choice_ends[0].number <= self._choices:
            self._choice_ends.popleft()
        self.signal_ns = report.at_ns - report.age_ns
        self._count()
        self.ready_ns = self.signal_ns + report.prompt_tokens * self.token_ns
        for sent in self._unseen:
            self.ready_ns = max(self.ready_ns, sent.sent_ns) + sent.tokens * self.token_ns

    def sent(self, sent: Sent) -> None:
        """A request was sent here."""
        self.sent_count = sent.ordinal
        self.outstanding[sent.request_id] = sent
        self._unseen.append(sent)
        self._residents += sent.live
        self._context += sent.context_tokens * sent.live
        self._waiting_tokens += sent.tokens
        self._price()
        self.ready_ns = max(self.ready_ns, sent.sent_ns) + sent.tokens * self.token_ns

    def has_further(self, request_id: str) -> bool:
        """Whether a request has more sequences than one that have not ended."""
        return self.outstanding[request_id].live > 1

    def choice_ended(self, request_id: str) -> None:
        """The engine wrote the end of a sequence of a request that has others."""
        sent = self.outstanding[request_id]
        assert sent.live > 1, sent
        sent.live -= 1
        self.choices_ended += 1
        self._choice_ends.append(_Gone(self.choices_ended, sent, 1, False))
        self._count()

    def ended(self, request_id: str, by_engine: bool) -> Sent:
        """A request is over; `by_engine`: the engine wrote its end, and counts it."""
        sent = self.outstanding.pop(request_id)
        self.ended_count += by_engine
        if not self._contains(sent):
            self._unseen.remove(sent)  # but a report that is under way may
        self._ends.append(_Gone(self.ended_count, sent, sent.live, True))
        self._count()
        return sent

    def _contains(self, sent: Sent) -> bool:
        """Whether the last report counts a request, ended since or not."""
        return self.report is not None and sent.ordinal <= self.report.received

    def _count(self) -> None:
        """What is there: the report, with what was sent since, without what ended since."""
        report = self.report
        residents = context = waiting_tokens = received = 0
        if report is not None:
            received = report.received
            residents = report.running + report.waiting
            context = report.context_tokens + report.prompt_tokens
            waiting_tokens = report.prompt_tokens
        for sent in self._unseen:
            residents += sent.live
            context += sent.context_tokens * sent.live
            waiting_tokens += sent.tokens
        for ends in (self._ends, self._choice_ends):
            for _, sent, sequences, is_last in ends:
                if sent.ordinal <= received:
                    residents -= sequences
                    context -= sent.context_tokens * sequences
                    if is_last:  # blocks of a prompt are shared
                        waiting_tokens -= sent.context_tokens * sent.prompts
        self._residents, self._context = residents, context
        self._waiting_tokens = waiting_tokens
        self._price()

    def _take_cost(self, cost: SetStepCost) -> None:
        self.cost = cost
        self.prefill_ns = float(cost.prefill_token_ns)
        self.row_ns, self.context_token_ns = float(cost.decode_row_ns), cost.context_token_ns
        self.pair_ns, self.mixed_ns = cost.pair_ns, float(cost.mixed_ns)

    def _price(self) -> None:
        """Rows, context and the time of a step, as they are believed to be now, and what of a step
        is there for prompts, as the engine's own budget gives it
        (`service.engine.planning.budget`). A step without decodes is as long as its prompts
        need."""
        cost, residents, most = self.cost, self._residents, self.max_seqs
        if self.report is not None:
            self.free_blocks = self._free_blocks - self._waiting_tokens / self.block_tokens
        if residents < len(self.outstanding):  # what the router itself has there is certain
            residents = len(self.outstanding)
        self.residents = residents
        self.rows = rows = residents if residents < most else most
        self.context_tokens = float(max(0, self._context))
        decode_ns = float(cost.decode_step_ns(rows, int(self.context_tokens)))
        self.decode_ns = decode_ns
        spare = max(1.0, self.prefill_ns * (self.budget_tokens - rows))
        if rows and self.target_ns is not None:
            spare = min(spare, spare_ns(cost, decode_ns, self.target_ns))
        self.spare_ns = spare
        self.token_ns = self.prefill_ns * (1.0 + decode_ns / spare)


def spare_ns(cost: SetStepCost, decode_ns: float, target_ns: int) -> float:
    """What prompts get of a step with decodes under an inter-token target."""
    return max(1.0, target_ns / cost.spread - decode_ns, decode_ns * LEAST_SHARE)


def step_cost_at(cost: StepCostSet, drift: float) -> SetStepCost:
    """The fitted cost at the present speed."""
    return SetStepCost(
        base_ns=round(cost.base_ns * drift),
        prefill_token_ns=round(cost.prefill_token_ns * drift),
        decode_row_ns=round(cost.decode_row_ns * drift),
        context_token_ns=round(cost.context_token_ns * drift),
        pair_ns=cost.pair_ns * drift,
        mixed_ns=round(cost.mixed_ns * drift),
        spread=cost.spread,
    )
