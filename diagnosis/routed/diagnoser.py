"""The fold over a gateway's facts that says what is wrong in its fleet.

Every half second it asks each cause what it finds in the last seconds. What is said depends on the
facts so far and on nothing else, so a journal gives what was given live. A gateway with an engine
of its own has none of these facts, and no verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diagnosis.detection.counts import BUCKET_NS
from diagnosis.routed.abstentions import Seen, abstentions
from diagnosis.routed.causes import (
    affinity_lost,
    clock_unbounded,
    hot_prefix,
    kv_losses,
    kv_waits,
    replica_slow,
    router_herding,
    signals_stale,
)
from diagnosis.routed.engines import Engines
from diagnosis.routed.prefixes import ComputedPrefixes
from diagnosis.routed.ranking import Held, ranked
from diagnosis.routed.sequences import Sequence, Sequences
from diagnosis.routed.steps import wait_ns
from diagnosis.routed.symptoms import FleetFault, RoutedVerdict
from diagnosis.routed.thresholds import APART_TICKS, PAST_TICKS, WINDOW_TICKS
from diagnosis.routed.ticks import First, Ticks
from diagnosis.routed.transfers import Transfers
from diagnosis.routed.window import Window
from telemetry.clocks.boundaries import ClockFinding
from telemetry.clocks.fleet_clocks import FleetClocks
from telemetry.facts.engine_records import (
    EngineStarted,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    SequencesListed,
)
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvLost,
    KvRefused,
    KvReleased,
    KvReserved,
    KvSealed,
    KvSplitChosen,
    KvVerified,
)
from telemetry.facts.fleet.routing_records import (
    ANCHOR_BLOCKS,
    EngineJoined,
    EngineLeft,
    EngineReported,
    RequestRouted,
    RouterStarted,
)
from telemetry.facts.fleet.sequence_records import (
    ClockSampled,
    RemoteAccounted,
    RemoteAdmitted,
    SequenceSent,
    TokensReceived,
)
from telemetry.facts.reasons import FactSource
from telemetry.facts.records import FactsLost

_UNPLACED = frozenset(
    {
        ClockFinding.CLOCK_UNBOUNDED,
        ClockFinding.NEGATIVE_WIRE,
        ClockFinding.STAMPS_DISORDERED,
        ClockFinding.CLOCK_STEP,
    }
)
_TRANSFERS = (
    EngineStarted, SequenceQueued, SequenceAdmitted, SequenceEnded,
    KvReserved, KvRefused, KvSealed, KvAdmitted, KvLost, KvReleased, KvVerified, KvSplitChosen,
)  # fmt: skip
_KV_CAUSES = (
    kv_waits.prefill_bound, kv_waits.decode_bound, kv_waits.transfer_slow,
    kv_waits.split_not_worth_it, kv_losses.transfer_stall, kv_losses.staging_full,
    kv_losses.kv_stranded, kv_losses.kv_corrupt,
)  # fmt: skip
_MOST_TICKS = PAST_TICKS + APART_TICKS + WINDOW_TICKS


class RoutedDiagnoser:
    """Feed it facts. `verdict` is None until a router has started, or KV was to come."""

    def __init__(self) -> None:
        self.verdict: RoutedVerdict | None = None
        self._engines, self._sequences = Engines(), Sequences()
        self._prefixes, self._clocks = ComputedPrefixes(), FleetClocks()
        self._ticks, self._held = Ticks(), Held()
        self._seen, self._transfers = Seen(), Transfers()
        self._end_ns: int | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            RouterStarted: self._started,
            EngineJoined: self._joined,
            EngineLeft: self._left,
            EngineReported: self._reported,
            RequestRouted: self._routed,
            SequenceSent: self._sent,
            RemoteAdmitted: self._admitted,
            TokensReceived: self._received,
            RemoteAccounted: self._accounted,
            ClockSampled: self._sampled,
            SequencesListed: self._listed,
            **dict.fromkeys(_TRANSFERS, self._transferred),
            FactsLost: self._lost,
        }

    @property
    def live(self) -> int:
        """Sequences and transfers in the books; zero when all have ended."""
        return len(self._sequences.live) + self._transfers.live

    def on_fact(self, fact: object) -> None:
        handler = self._handlers.get(type(fact))
        if handler is None:
            return
        if self.verdict is not None:
            self._advance(fact.at_ns)  # type: ignore[attr-defined]
        handler(fact)

    # Facts

    def _started(self, fact: RouterStarted) -> None:
        """A gateway begins; what was known of an earlier one's engines is not."""
        self._engines, self._sequences = Engines(), Sequences()
        self.verdict = RoutedVerdict((), 0, 0, False, abstentions(self._seen, 0))

    def _joined(self, fact: EngineJoined) -> None:
        if self._engines.joined(fact):
            self._sequences.left(fact.engine)
            self._ticks.now.cell(fact.engine).restarts += 1

    def _left(self, fact: EngineLeft) -> None:
        """What was sent there is over, whatever is still accounted for."""
        self._engines.left(fact.engine)
        self._sequences.left(fact.engine)

    def _reported(self, fact: EngineReported) -> None:
        self._ticks.now.cell(fact.engine).others += self._engines.reported(fact)
        self._seen.reports = True
        self._seen.costs |= fact.cost is not None

    def _routed(self, fact: RequestRouted) -> None:
        depth = self._prefixes.depth(fact.engine, fact.anchors, fact.at_ns)
        engine, tick = self._engines.now.get(fact.engine), self._ticks.now
        stride = 0 if engine is None else ANCHOR_BLOCKS * engine.block_tokens
        self._sequences.routed(fact, min(depth * stride, fact.prompt_tokens - 1))
        tick.cell(fact.engine).picks += 1
        tick.routed += 1
        self._seen.routed = True
        if fact.anchors:
            tick.picks[fact.anchors[0], fact.engine] += 1
            self._seen.prefixes |= depth > 0
        if engine is not None:
            engine.signal.sent(fact.ordinal, fact.at_ns)

    def _sent(self, fact: SequenceSent) -> None:
        self._clocks.sent(fact)
        self._sequences.sent(fact)

    def _admitted(self, fact: RemoteAdmitted) -> None:
        sequence = self._sequences.live.get(fact.seq_id)
        if sequence is None or sequence.admitted_ns is not None:
            return
        engine = self._engines.now.get(fact.engine)
        if engine is not None:
            engine.steps.admitted(sequence)
        sequence.admitted_ns = fact.at_ns
        sequence.computed_tokens = max(
            0, fact.known_tokens - fact.hit_tokens - fact.received_tokens
        )
        cell = self._ticks.now.cell(fact.engine)
        cell.prompt_tokens += fact.known_tokens
        cell.hit_tokens += fact.hit_tokens
        found = fact.hit_tokens + fact.ghost_tokens  # a larger cache would have the second
        cell.avoidable_tokens += max(0, sequence.had_tokens - found)

    def _received(self, fact: TokensReceived) -> None:
        engine, cost = self._engines.now.get(fact.engine), self._engines.cost
        live, cell = self._sequences.live, self._ticks.now.cell(fact.engine)
        if engine is not None and cost is not None:
            step = engine.steps.step(fact, live, cost, engine.signal.rows)
            if step is not None:
                cell.steps += step.steps
                cell.span_ns += step.span_ns
                cell.expected_ns += step.expected_ns
                cell.row_span_ns += step.span_ns * step.rows
        for row in fact.rows:
            sequence = live.get(row.seq_id)
            if sequence is None:
                continue
            sequence.outputs += row.tokens
            if sequence.first_ns is None:
                sequence.first_ns = fact.at_ns
                self._prefixes.computed(fact.engine, sequence.anchors, fact.at_ns)
                cell.firsts.append(self._first(sequence, fact.at_ns))
                if engine is not None and cost is not None:
                    budget = engine.signal.budget_tokens
                    cell.expected_ns += engine.steps.prompt_ns(sequence, fact.at_ns, cost, budget)

    def _accounted(self, fact: RemoteAccounted) -> None:
        steps = self._clocks.steps_found
        span = self._clocks.accounted(fact)
        self._sequences.live.pop(fact.seq_id, None)
        cell = self._ticks.now.cell(fact.engine)
        cell.clock_steps += self._clocks.steps_found - steps
        if span is not None and ClockFinding.NO_ACCOUNT not in span.findings:
            is_unplaced = not _UNPLACED.isdisjoint(span.findings)
            cell.unplaced += is_unplaced
            cell.placed += not is_unplaced
        self._seen.clocks = True

    def _listed(self, fact: SequencesListed) -> None:
        self._sequences.listed(fact)

    def _lost(self, fact: FactsLost) -> None:
        if fact.source is FactSource.GATEWAY:
            self._sequences.lost()
        self._transferred(fact)

    def _sampled(self, fact: ClockSampled) -> None:
        steps = self._clocks.steps_found
        self._clocks.sampled(fact)
        self._ticks.now.cell(fact.engine).clock_steps += self._clocks.steps_found - steps
        self._seen.clocks = True

    def _transferred(self, fact: Any) -> None:
        """At an engine: its sequences, and KV that comes for them from elsewhere."""
        self._transfers.take(fact)
        if self.verdict is None and self._transfers.seen:
            self.verdict = RoutedVerdict((), 0, 0, False, abstentions(self._seen, 0))

    def _first(self, sequence: Sequence, at_ns: int) -> First:
        """How long a sequence's first token took, which has come at `at_ns`, or has not come until
        then."""
        engine = self._engines.now.get(sequence.engine)
        budget = None if engine is None else engine.signal.budget_tokens
        waited_ns = wait_ns(sequence, at_ns, self._engines.cost, budget)
        return First(sequence.request_id, waited_ns)

    # Ticks

    def _advance(self, at_ns: int) -> None:
        if self._end_ns is None:
            self._end_ns = (at_ns // BUCKET_NS + 1) * BUCKET_NS
        behind = (at_ns - self._end_ns) // BUCKET_NS
        if behind > _MOST_TICKS:  # nothing was recorded for a long time
            self._end_ns += behind * BUCKET_NS
        while self._end_ns <= at_ns:
            self._on_tick(self._end_ns)
            self._end_ns += BUCKET_NS

    def _on_tick(self, end_ns: int) -> None:
        for name, engine in self._engines.now.items():
            cell = self._ticks.now.cell(name)
            cell.age_ns += engine.signal.age_ns(end_ns)
            cell.aged += 1
        self._ticks.end()
        self._transfers.end_tick(end_ns)
        window = Window(self._ticks.recent(), self._ticks.past(), self._engines.now.keys())
        for sequence in self._sequences.live.values():
            if sequence.first_ns is None and sequence.engine in window.cells:
                first = self._first(sequence, end_ns)
                if window.late_ns(first):
                    window.cells[sequence.engine].firsts.append(first)
        found = self._found(window)
        found += self._found_of_transfers()
        if found:
            self._ticks.mark_fault()
            self._transfers.mark_fault()
        said = self._held.take(found, end_ns)
        self._seen.history = window.has_history
        engines = len(self._engines.now)
        self.verdict = RoutedVerdict(
            faults=ranked(said),
            engines=engines,
            window_ns=len(window.recent) * BUCKET_NS,
            compared=window.has_history,
            abstained=abstentions(self._seen, engines),
        )

    def _found_of_transfers(self) -> list[FleetFault]:
        if not self._transfers.seen:
            return []
        window = self._transfers.window()
        self._seen.kv = True
        self._seen.kv_history |= window.past is not None
        self._seen.splits = self._transfers.seen_splits
        return [one for cause in _KV_CAUSES if (one := cause(window)) is not None]

    def _found(self, window: Window) -> list[FleetFault]:
        cost = self._engines.cost
        faults = (
            replica_slow.found(window),
            signals_stale.found(window),
            affinity_lost.found(window, 0 if cost is None else cost.prefill_token_ns),
            hot_prefix.found(window),
            router_herding.found(window),
            clock_unbounded.found(window),
        )
        return [one for one in faults if one is not None]
