"""A loss is itself a fact, and no request stays live for ever because its end was lost."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import (
    EngineIdled,
    SequenceEnded,
    SequenceQueued,
    SequencesListed,
)
from telemetry.facts.reasons import EndReason, FactSource, Outcome
from telemetry.facts.recorder import Gap, Lane
from telemetry.facts.records import (
    EngineDied,
    Fact,
    FactsLost,
    RequestAccepted,
    RequestEnded,
    RequestsListed,
    SequenceSubmitted,
    fact_ns,
)
from telemetry.host.host_impact import HostImpact
from telemetry.host.pauses import PauseLog
from telemetry.journal.journal import Journal
from telemetry.journal.live_requests import LiveRequests
from telemetry.journal.watchdog import StallWatchdog
from telemetry.ledger.builder import DEFAULT_ITL_TARGET_NS, LedgerBuilder
from telemetry.pump.pump import Pump
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import Measure, Measured, RequestTimeline
from telemetry.requests.timelines import TimelineStore
from tests.support.examples import examples
from tests.support.servers.served import facts_of, served, started
from tests.support.worlds.facts import (
    MS,
    accepted,
    decode,
    parsed,
    prefill,
    queued,
    request_ended,
    sequence_ended,
    step,
    submitted,
    tokenized,
)
from tests.telemetry.journal.test_replay import Folds

pytestmark = pytest.mark.long

SCENARIOS = ("chaos", "poisson", "overload", "shared_prefix")


@dataclass
class Everything(Folds):
    """Every fold that keeps live requests or sequences."""

    impact: HostImpact = field(default_factory=HostImpact)
    watchdog: StallWatchdog = field(default_factory=lambda: StallWatchdog(10**9))
    carried: LiveRequests = field(default_factory=LiveRequests)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ledger_builder = LedgerBuilder(lambda slo_class: DEFAULT_ITL_TARGET_NS)
        self.phases = PhaseFold(
            [self.timelines.append, self.window.on_timeline],
            [self.histograms.on_measured],
            self.ledger_builder,
        )
        self.pauses = PauseLog(self.impact.on_pause)

    def feed(self, facts: list[Fact]) -> None:
        for fold in (*self.all, self.impact, self.pauses, self.watchdog):
            fold.on_facts(facts)  # type: ignore[attr-defined]
        for fact in facts:
            self.carried.take(fact)

    @property
    def live(self) -> dict[str, int]:
        """How many live requests or sequences each fold keeps."""
        return {
            "requests": self.phases.live,
            "sequences": self.phases.live_sequences,
            "ledger": self.ledger_builder.live,
            "window": self.window.live,
            "diagnosis": self.diagnoser.live,
            "host impact": self.impact.live,
            "pauses": self.pauses.live,
            "watchdog": self.watchdog.live,
            "journal": self.carried.live,
        }


def idle_lists(facts: list[Fact]) -> list[Fact]:
    """The lists that an idle server writes a while after `facts`."""
    now_ns = max(map(fact_ns, facts)) + 3_000 * MS
    last = max((f.seq_id for f in facts if isinstance(f, SequenceSubmitted)), default=-1)
    return [SequencesListed(now_ns, (), last), RequestsListed(now_ns, ())]


@examples(20, 60)
@given(name=st.sampled_from(SCENARIOS), seed=st.integers(0, 10_000), data=st.data())
def test_whatever_is_lost_every_fold_is_empty_after_the_next_lists(
    name: str, seed: int, data: st.DataObject
) -> None:
    facts = [started(), *facts_of(served(name, seed))]
    share = data.draw(st.sampled_from((0.02, 0.3, 0.9)))
    generator = data.draw(st.randoms(use_true_random=False))
    kept = [fact for fact in facts if generator.random() >= share]
    folds = Everything()
    folds.feed(kept)
    folds.feed(idle_lists(facts))

    assert set(folds.live.values()) == {0}, folds.live
    begun = {f.request_id for f in kept if isinstance(f, RequestAccepted)}
    assert {t.accepted.request_id for t in folds.timelines} == begun


@examples(8, 24)
@given(name=st.sampled_from(SCENARIOS), seed=st.integers(0, 10_000), data=st.data())
def test_with_no_loss_the_lists_change_nothing(name: str, seed: int, data: st.DataObject) -> None:
    """Wherever they are made."""
    facts = [started(), *facts_of(served(name, seed))]
    places = data.draw(st.sets(st.integers(1, len(facts)), max_size=20))
    plain, listed = Folds(), Folds()
    with_lists: list[Fact] = []
    for index, fact in enumerate(facts, 1):
        with_lists.append(fact)
        if index in places:
            with_lists += _true_lists(facts[:index])
    for folds, given_facts in ((plain, facts), (listed, with_lists)):
        for fold in folds.all:
            fold.on_facts(given_facts)  # type: ignore[attr-defined]

    now_ns = fact_ns(facts[-1])
    assert listed.outcome(now_ns) == plain.outcome(now_ns)


def _true_lists(facts: list[Fact]) -> list[Fact]:
    now_ns = fact_ns(facts[-1])
    requests: dict[str, None] = {}
    sequences: dict[int, None] = {}
    last = -1
    for fact in facts:
        match fact:
            case RequestAccepted():
                requests[fact.request_id] = None
            case RequestEnded():
                requests.pop(fact.request_id, None)
            case SequenceQueued():
                sequences[fact.seq_id] = None
                last = max(last, fact.seq_id)
            case SequenceEnded():
                sequences.pop(fact.seq_id, None)
                last = max(last, fact.seq_id)
            case EngineDied():
                sequences.clear()
    return [
        SequencesListed(now_ns, tuple(sequences), last),
        RequestsListed(now_ns, tuple(requests)),
    ]


def test_ends_that_a_full_lane_refused_are_counted_recorded_and_repaired() -> None:
    """The gateway's lane holds forty facts, and is not drained for a while."""
    facts = [started(), *facts_of(served("poisson", 4))]
    pump, lane, folds = Pump(ManualClock()), Lane(40, FactSource.GATEWAY), Everything()
    pump.add_lane(lane)
    told: list[FactsLost] = []

    class Losses:
        def on_facts(self, given: list[Fact]) -> None:
            told.extend(fact for fact in given if isinstance(fact, FactsLost))

    pump.add_fold("losses", Losses())  # type: ignore[arg-type]
    for name, fold in (("phases", folds.phases), ("window", folds.window),
                       ("diagnosis", folds.diagnoser), ("impact", folds.impact),
                       ("watchdog", folds.watchdog)):  # fmt: skip
        pump.add_fold(name, fold)
    for index, fact in enumerate(facts):
        lane.append(fact)
        if index % 100 == 0:
            pump.run_once()
    pump.run_once()
    assert folds.phases.live > 0
    for fact in idle_lists(facts):
        lane.append(fact)
    pump.run_once()

    assert sum(loss.count for loss in told) == lane.lost > 0
    assert pump.facts_lost == lane.lost
    assert folds.phases.live == folds.window.live == folds.diagnoser.live == 0
    assert folds.impact.live == folds.watchdog.live == folds.ledger_builder.live == 0
    assert any(t.outcome is Outcome.LOST for t in folds.timelines)


def test_the_loss_is_recorded_where_the_facts_are_missing() -> None:
    lane = Lane(2, FactSource.ENGINE)
    for at in (1, 2, 3, 4):
        lane.append(queued(at=at))
    first = lane.drain()
    lane.append(queued(at=5))
    second = lane.drain()

    assert first == [queued(at=1), queued(at=2), FactsLost(3 * MS, FactSource.ENGINE, 2)]
    assert second == [queued(at=5)]


def test_facts_that_the_engine_dropped_are_reported_with_the_next_facts() -> None:
    gap = Gap(FactSource.ENGINE)
    gap.add([queued(at=1), queued(at=2)])
    gap.add([queued(at=3)])

    assert gap.take() == [FactsLost(1 * MS, FactSource.ENGINE, 3)]
    assert gap.take() == []


def timed(facts: list[Fact]) -> tuple[list[RequestTimeline], list[Measured]]:
    timelines: list[RequestTimeline] = []
    measured: list[Measured] = []
    ledger_builder = LedgerBuilder(lambda slo_class: DEFAULT_ITL_TARGET_NS)
    PhaseFold([timelines.append], [measured.append], ledger_builder).on_facts(facts)
    return timelines, measured


def test_a_request_whose_end_was_lost_is_given_out_as_lost_and_not_measured() -> None:
    timelines, measured = timed(
        [
            accepted(), parsed(), tokenized(), submitted(), queued(), step(0, 4, 10, [prefill()]),
            sequence_ended(at=20), RequestsListed(9_000 * MS, ("other",)),
        ]
    )  # fmt: skip

    assert [(t.outcome, t.ended.reason) for t in timelines] == [(Outcome.LOST, EndReason.END_LOST)]
    assert timelines[0].account is None
    assert measured == []


def test_a_sequence_whose_end_was_lost_does_not_delay_its_request() -> None:
    timelines, measured = timed(
        [
            accepted(), parsed(), tokenized(), submitted(), queued(), step(0, 4, 10, [prefill()]),
            request_ended(at=20, reason=EndReason.DISCONNECT, detected_ns=19 * MS),
            SequencesListed(30 * MS, (), 1),
        ]
    )  # fmt: skip

    assert [t.sequences[0].end_reason for t in timelines] == [EndReason.END_LOST]
    assert Measure.CANCEL_TO_FREE not in {one.measure for one in measured}


def test_times_across_a_loss_are_not_measured_and_later_ones_are() -> None:
    timelines, measured = timed(
        [
            accepted(), parsed(), tokenized(), submitted(), queued(), step(0, 4, 10, [prefill()]),
            FactsLost(11 * MS, FactSource.ENGINE, 5), step(6, 60, 70, [decode()]),
            step(7, 70, 80, [decode()]), sequence_ended(at=80), request_ended(at=90),
        ]
    )  # fmt: skip

    assert timelines[0].is_incomplete
    assert [(one.measure, one.value_ns) for one in measured] == [(Measure.ITL, 10 * MS)]


@pytest.mark.parametrize("late", [queued(at=30), queued(at=3)])
def test_a_late_fact_does_not_make_an_ended_sequence_live_again(late: Fact) -> None:
    """The ledger must not create its track again."""
    ledger_builder = LedgerBuilder(lambda slo_class: DEFAULT_ITL_TARGET_NS)
    fold = PhaseFold((), (), ledger_builder)
    fold.on_facts([accepted(), parsed(), tokenized(), submitted(), queued(), request_ended(at=20)])
    fold.on_facts([EngineIdled(9_000 * MS, 0, 0, 0, 0, 10)])  # the grace is over
    assert fold.live == 0
    fold.on_facts([late])

    assert ledger_builder.live == 0


def test_a_request_whose_id_is_used_again_before_its_end_is_given_out_as_lost() -> None:
    """Two requests never have one id at once, so its end was lost."""
    timelines, _ = timed(
        [accepted(at=0), accepted(at=30), request_ended(at=40, reason=EndReason.INVALID)]
    )
    ends = [(t.accepted.at_ns // MS, t.ended.at_ns // MS, t.outcome) for t in timelines]
    assert ends == [(0, 30, Outcome.LOST), (30, 40, Outcome.REJECTED)]


def test_requests_read_while_the_list_is_made_stay_live() -> None:
    """Their head had come before it, and the gateway got to it after."""
    early = accepted(at=1, read_ns=20 * MS)
    timelines, _ = timed([early, RequestsListed(10 * MS, ())])
    assert timelines == []


def test_a_sequence_on_its_way_to_the_engine_stays_live() -> None:
    folds = Everything()
    folds.feed([started(0), accepted(), parsed(), tokenized(), submitted(seq_id=5)])
    folds.feed([SequencesListed(10 * MS, (), 4)])
    assert folds.phases.live_sequences == 1
    assert folds.watchdog.live == 1


def test_the_diagnosis_says_that_facts_were_lost_and_gives_no_verdict_on_the_rest() -> None:
    folds = Folds()
    facts = [started(0), FactsLost(1_000 * MS, FactSource.ENGINE, 7)]
    facts += [step(number, 1_000 + 100 * number, 1_050 + 100 * number, []) for number in range(20)]
    folds.diagnoser.on_facts(facts)
    said = folds.diagnoser.diagnosis()

    assert said.verdict == "indeterminate"
    assert [(e.name, e.value) for e in said.findings[0].evidence] == [("facts_lost", 7)]


def test_losses_and_lists_are_in_the_journal_and_read_back(tmp_path_factory: object) -> None:
    journal = Journal(ManualClock())
    journal.on_facts([started(0), FactsLost(1, FactSource.ENGINE, 7), *idle_lists([started(0)])])
    assert journal.stats().facts == 4


def test_the_last_timelines_are_bounded_by_their_bytes() -> None:
    """The oldest go first."""
    timelines, _ = timed(
        [
            fact
            for number in range(50)
            for fact in (
                accepted(f"r{number}", at=number),
                request_ended(f"r{number}", at=number + 1, reason=EndReason.INVALID),
            )
        ]
    )
    store, fold = TimelineStore(capacity_bytes=8_000), PhaseFold()
    for timeline in timelines:
        store.on_timeline(timeline)
        store.on_timeline(timeline)  # an id that is used again takes its place

    assert 0 < store.bytes <= 8_000
    assert 5 < len(store) < 50
    assert store.get("r49", fold, 0) is not None
    assert store.get("r0", fold, 0) is None
