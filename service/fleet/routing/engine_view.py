"""What the router knows of one engine: its last report, and what it sent itself since.

A report is old when it comes. Which of this router's requests and ends it contains is counted, not
timed: the engine says how many it had received and ended (`EngineReported`). What is beyond these
counts is added to the report or taken off it, so that a burst within one signal age spreads. Other
routers' requests are seen in the next report.

Prompts drain at the pace of the fitted cost while a report ages. The correction for what was sent
is exact for requests; their lengths are predictions.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import msgspec

from service.engine.budget import LEAST_SHARE
from service.engine.inbox import SetStepCost
from service.fleet.routing.ring import hash_of
from telemetry.facts.engine_records import StepCostSet
from telemetry.facts.fleet.routing_records import EngineReported

ASSUMED_COST = SetStepCost(
    base_ns=20_000_000, prefill_token_ns=100_000, decode_row_ns=300_000, context_token_ns=500
)
"""Of an engine that has fitted none yet: only the ratio between busy and idle ones matters."""
ASSUMED_MAX_SEQS, ASSUMED_BUDGET_TOKENS = 256, 2048
SILENT_NS = 3_000_000_000
"""An engine that has not reported for so long is expected to stay silent for as long again."""


class Sent(msgspec.Struct, gc=False):
    """A request of this router that the engine has not ended. `ordinal` counts those of the
    engine, from 1; `tokens` of its prompt are believed to be computed there."""

    request_id: str
    ordinal: int
    sent_ns: int
    tokens: int
    context_tokens: int
    anchors: tuple[int, ...]


class EngineView:
    """One engine. After each change `refresh` works out again what predictions are made from."""

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
        self.cost = ASSUMED_COST
        self.outstanding: OrderedDict[str, Sent] = OrderedDict()
        self.sent_count = self.ended_count = 0
        self.prefix_number: int | None = None
        self._unseen: deque[Sent] = deque()  # sent, and not in the report
        self._unseen_ends: deque[tuple[int, Sent]] = deque()  # number of the end, of what was seen
        # what predictions read
        self.signal_ns = joined_ns
        self.ready_ns = float(joined_ns)
        self.residents = 0
        self.rows = 0
        self.context_tokens = 0.0
        self.decode_ns = 0.0
        self.max_seqs = ASSUMED_MAX_SEQS
        self.budget_tokens = ASSUMED_BUDGET_TOKENS
        self.target_ns: int | None = None
        self.free_blocks: float | None = None
        self.used_blocks = 0
        self.refresh()

    def take_report(self, report: EngineReported) -> None:
        """A newer report of this incarnation."""
        self.report = report
        self.draining = self.draining or report.draining
        if report.cost is not None:
            self.cost = _command_of(report.cost)
        while self._unseen and self._unseen[0].ordinal <= report.received:
            self._unseen.popleft()
        while self._unseen_ends and self._unseen_ends[0][0] <= report.ended:
            self._unseen_ends.popleft()
        self.signal_ns = report.at_ns - report.age_ns
        self.refresh()
        token_ns = self.token_ns(self.target_ns)
        self.ready_ns = self.signal_ns + report.prompt_tokens * token_ns
        for sent in self._unseen:
            self.ready_ns = max(self.ready_ns, sent.sent_ns) + sent.tokens * token_ns

    def sent(self, sent: Sent) -> None:
        """A request was sent here."""
        self.sent_count = sent.ordinal
        self.outstanding[sent.request_id] = sent
        self._unseen.append(sent)
        self.refresh()
        self.ready_ns = max(self.ready_ns, sent.sent_ns) + sent.tokens * self.token_ns(
            self.target_ns
        )

    def ended(self, request_id: str, by_engine: bool) -> None:
        """A request is over; `by_engine`: the engine wrote its end, and counts it."""
        sent = self.outstanding.pop(request_id)
        if by_engine:
            self.ended_count += 1
        seen = self.report is not None and sent.ordinal <= self.report.received
        if not seen:
            self._unseen.remove(sent)
        elif not by_engine or self.ended_count > self._reported_ends:
            self._unseen_ends.append((self.ended_count, sent))
        self.refresh()

    @property
    def _reported_ends(self) -> int:
        return 0 if self.report is None else self.report.ended

    def refresh(self) -> None:
        """Rows, context and the time of a step, as they are believed to be now."""
        report, unseen, gone = self.report, self._unseen, self._unseen_ends
        residents = len(unseen) - len(gone)
        context = sum(one.context_tokens for one in unseen)
        if report is not None:
            residents += report.running + report.waiting
            self.max_seqs, self.budget_tokens = report.max_seqs, report.budget_tokens
            self.target_ns = report.target_ns
            waiting_tokens = report.prompt_tokens + sum(one.tokens for one in unseen)
            freed = sum(one.context_tokens for _, one in gone)
            free = report.blocks_total - report.blocks_used
            self.free_blocks = free - (waiting_tokens - freed) / self.block_tokens
            self.used_blocks = report.blocks_used
            context += report.context_tokens + report.prompt_tokens - freed
        # what the router itself has there is certain
        self.residents = max(residents, len(self.outstanding))
        self.rows = min(self.max_seqs, self.residents)
        self.context_tokens = float(max(0, context))
        self.decode_ns = float(self.cost.decode_step_ns(self.rows, int(self.context_tokens)))

    def token_ns(self, target_ns: int | None) -> float:
        """The time that a prompt token takes beside the decodes there; what a step's decodes leave
        of the target, as the engine's own budget gives it (`service.engine.budget`)."""
        token_ns = float(self.cost.prefill_token_ns)
        if not self.rows or target_ns is None:
            return token_ns + self.decode_ns / max(1, self.budget_tokens - self.rows)
        spare_ns = target_ns / self.cost.spread - self.decode_ns
        spare_ns = max(spare_ns, self.decode_ns * LEAST_SHARE, 1.0)
        spare_ns = min(spare_ns, token_ns * self.budget_tokens)
        return token_ns * (1.0 + self.decode_ns / max(1.0, spare_ns))

    def silence_ns(self, now_ns: int) -> int:
        """How much longer it is expected to say nothing; 0 while reports come."""
        age_ns = now_ns - self.signal_ns
        return age_ns if age_ns > SILENT_NS else 0

    def age_ns(self, now_ns: int) -> int | None:
        """Of the last report; None: there is none."""
        return None if self.report is None else max(0, now_ns - self.signal_ns)


def _command_of(cost: StepCostSet) -> SetStepCost:
    return SetStepCost(
        base_ns=cost.base_ns,
        prefill_token_ns=cost.prefill_token_ns,
        decode_row_ns=cost.decode_row_ns,
        context_token_ns=cost.context_token_ns,
        pair_ns=cost.pair_ns,
        mixed_ns=cost.mixed_ns,
        spread=cost.spread,
        around_ns=cost.around_ns,
    )
