"""The same folds over a journal give the same numbers as live, however the facts came in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diagnosis.verdicts.classifier import Diagnoser
from diagnosis.verdicts.offline import diagnose_journal
from telemetry.costs.step_cost import StepCost, StepCostFold
from telemetry.facts.clock import ManualClock
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact
from telemetry.journal.journal import Journal
from telemetry.journal.journal_reader import open_journal
from telemetry.journal.replay import Replay, replay_folds
from telemetry.ledger.builder import DEFAULT_ITL_TARGET_NS, LedgerBuilder
from telemetry.pump.pump import Pump
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import Measure, Measured, RequestTimeline
from telemetry.requests.slo_policy import DEFAULT_POLICY
from telemetry.requests.timelines import TimelineStore
from telemetry.stats.drain_rate import DrainRate
from telemetry.stats.histogram_report import TOTAL, distributions, report
from telemetry.stats.histograms import Histograms
from telemetry.stats.slo import judged_by
from telemetry.stats.window_fold import WindowFold
from tests.support.examples import examples
from tests.support.servers.served import Arrived, facts_of, served
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

pytestmark = pytest.mark.long

SCENARIOS = ("chaos", "poisson", "overload", "shared_prefix")
# some of the gaps between tokens in these worlds are longer, and so are explained
ITL_TARGET_NS = 26 * MS


@dataclass
class Folds:
    """All folds of the gateway."""

    histograms: Histograms = field(default_factory=Histograms)
    timelines: list[RequestTimeline] = field(default_factory=list)
    costs: list[StepCost] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.window = WindowFold(self.histograms)
        self.phases = PhaseFold(
            [self.timelines.append, self.window.on_timeline],
            [self.histograms.on_measured],
            LedgerBuilder(lambda slo_class: ITL_TARGET_NS),
        )
        self.diagnoser = Diagnoser(policy=DEFAULT_POLICY)
        self.drain_rate = DrainRate()
        self.step_cost = StepCostFold(self.costs.append)

    @property
    def all(self) -> list[object]:
        return [self.phases, self.window, self.diagnoser, self.drain_rate, self.step_cost]

    def outcome(self, now_ns: int) -> dict[str, object]:
        return {
            "histograms": counts(self.histograms),
            "timelines": self.timelines,
            "snapshot": self.window.snapshot(now_ns),
            "diagnosis": self.diagnoser.diagnosis(),
            "retry_after_s": self.drain_rate.retry_after_s,
            "costs": self.costs,
            "live": self.phases.live,
        }


def counts(histograms: Histograms) -> bytes:
    """Every histogram of every class in the HDR encoding, with exact sum and true maximum."""
    found = distributions(histograms, TOTAL, 0)
    return msgspec.json.encode(report(found, TOTAL, 0))


@examples(8, 24)
@given(
    name=st.sampled_from(SCENARIOS),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
def test_no_fold_depends_on_where_batches_begin_and_end(
    name: str, seed: int, data: st.DataObject
) -> None:
    facts = facts_of(served(name, seed))
    whole, cut = Folds(), Folds()
    now_ns = replay_folds(facts, whole.all, batch_facts=len(facts) + 1)  # type: ignore[arg-type]
    assert now_ns is not None
    borders = data.draw(st.lists(st.integers(0, len(facts)), max_size=40).map(sorted))
    edges = [0, *borders, len(facts)]
    for a, b in pairwise(edges):
        for fold in cut.all:
            fold.on_facts(facts[a:b])  # type: ignore[attr-defined]

    assert cut.outcome(now_ns) == whole.outcome(now_ns)


def test_a_request_whose_end_in_the_engine_never_came_is_given_at_the_same_fact() -> None:
    """The grace ends at a fact's stamp, not at a batch's end."""
    facts: list[Fact] = [
        accepted(), parsed(), tokenized(), submitted(), queued(), step(0, 4, 10, [prefill()]),
        request_ended(at=20),
        step(1, 2025, 2030, [decode(9)]),
        sequence_ended(at=2040),
    ]  # fmt: skip
    ends = []
    for size in (1, len(facts)):
        timelines: list[RequestTimeline] = []
        replay_folds(facts, [PhaseFold([timelines.append])], size)
        ends.append([t.sequences[0].ended_ns for t in timelines])

    assert ends == [[None], [None]]


def pumped(arrivals: Sequence[Arrived], generator: random.Random, journal: Journal) -> Folds:
    """Feed two lanes as the facts arrive, and run the pump at moments of its own."""
    folds, pump = Folds(), Pump(ManualClock())
    gateway, engine = Lane(), Lane()
    pump.add_lane(engine)
    pump.add_lane(gateway)
    for index, fold in enumerate((journal, *folds.all)):
        pump.add_fold(str(index), fold)  # type: ignore[arg-type]
    for arrived in arrivals:
        (engine if arrived.is_engine else gateway).append(arrived.fact)
        if generator.random() < 0.2:
            pump.run_once()
    pump.run_once()
    assert pump.detached == ()
    return folds


@examples(8, 24)
@given(name=st.sampled_from(SCENARIOS), seed=st.integers(0, 10_000), pump_seed=st.integers())
def test_a_journal_read_back_gives_the_numbers_that_the_live_folds_had(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, pump_seed: int
) -> None:
    """Byte-equal histograms, identical timelines, snapshot and diagnosis."""
    clock = ManualClock()
    journal = Journal(clock)
    live = pumped(served(name, seed, delay_ns=30 * MS), random.Random(pump_seed), journal)
    path = tmp_path_factory.mktemp("journal") / "live.journal"
    path.write_bytes(b"".join(journal.frames("request")))
    again = Folds()
    now_ns = replay_folds(open_journal(path).facts(), again.all)  # type: ignore[arg-type]
    assert now_ns is not None

    assert again.outcome(now_ns) == live.outcome(now_ns)
    assert diagnose_journal(open_journal(path)) == live.diagnoser.diagnosis()


@examples(8, 24)
@given(name=st.sampled_from(SCENARIOS), seed=st.integers(0, 10_000), seeds=st.tuples(
    st.integers(), st.integers()
))  # fmt: skip
@example(name="chaos", seed=932, seeds=(0, 1))
def test_the_times_at_which_the_pump_runs_change_no_timeline_and_no_histogram(
    name: str, seed: int, seeds: tuple[int, int]
) -> None:
    """The engine's facts come late, and the order between lanes depends on when the pump runs."""
    arrivals = served(name, seed, delay_ns=30 * MS)
    first, second = (pumped(arrivals, random.Random(s), Journal(ManualClock())) for s in seeds)

    assert counts(first.histograms) == counts(second.histograms)
    assert by_id(first.timelines) == by_id(second.timelines)


def by_id(timelines: list[RequestTimeline]) -> dict[str, RequestTimeline]:
    """Without the accounts: those tell the steps apart that were known when the request ended,
    and a step in flight may be told of before or after that."""
    return {t.accepted.request_id: replace(t, account=None) for t in timelines}


def test_a_replay_answers_for_requests_as_the_server_did(tmp_path: Path) -> None:
    """Ended and live ones, byte for byte."""
    arrivals = served("poisson", 4)
    journal, store = Journal(ManualClock()), TimelineStore(judged=judged_by(DEFAULT_POLICY))
    ledger_builder = LedgerBuilder(lambda slo_class: DEFAULT_ITL_TARGET_NS)
    fold = PhaseFold([store.on_timeline], (), ledger_builder)
    facts = facts_of(arrivals)
    cut = facts[: len(facts) * 2 // 3]
    for one in (journal, fold):
        one.on_facts(cut)
    path = tmp_path / "j"
    path.write_bytes(b"".join(journal.frames("request")))
    replay = Replay(open_journal(path))

    ids = {f.fact.request_id for f in arrivals if hasattr(f.fact, "request_id")}
    answers = {request_id: replay.request(request_id) for request_id in ids}
    assert answers == {r: store.get(r, fold, replay.last_ns) for r in ids}
    outcomes = {msgspec.json.decode(a)["outcome"] for a in answers.values() if a is not None}
    assert "running" in outcomes
    assert "finished" in outcomes


def test_a_request_whose_beginning_was_cut_has_a_timeline_but_no_measurement() -> None:
    """The queue of a request whose beginning is missing cannot be measured; its gaps can."""
    facts: list[Fact] = [
        accepted("cut", at=1), parsed("cut", at=1), tokenized("cut", at=1),
        submitted("cut", at=1), queued(at=1),
        step(50, 9000, 9010, [decode()]), step(51, 9010, 9020, [decode()]),
        sequence_ended(at=9020), request_ended("cut", at=9021),
    ]  # fmt: skip
    timelines: list[RequestTimeline] = []
    measured: list[Measured] = []
    PhaseFold([timelines.append], [measured.append], cut={"cut"}).on_facts(facts)

    assert [t.accepted.request_id for t in timelines] == ["cut"]
    assert [(m.measure, m.value_ns) for m in measured] == [(Measure.ITL, 10 * MS)]


class RacingLane(Lane):
    """A lane to which, and to another, the event loop appends just before it is drained."""

    def __init__(self, other: Lane) -> None:
        super().__init__()
        self._other = other

    def drain(self) -> list[Fact]:
        self._other.append(submitted())
        self.append(queued())
        return super().drain()


def test_no_sequence_is_in_the_engine_before_it_was_submitted() -> None:
    """Although the pump drains lanes one after the other while both are being filled."""
    pump, gateway = Pump(ManualClock()), Lane()
    journal = Journal(ManualClock())
    pump.add_lane(RacingLane(gateway))
    pump.add_lane(gateway)
    pump.add_fold("journal", journal)
    pump.run_once()

    assert journal.stats().facts == 2
