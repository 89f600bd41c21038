"""A part of telemetry that raises stops no other part, and is reported everywhere."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from diagnosis.verdicts.classifier import Diagnoser
from telemetry.facts.clock import ManualClock
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact, FoldDetached, RequestAccepted
from telemetry.journal.journal import Journal
from telemetry.ledger.builder import DEFAULT_ITL_TARGET_NS, LedgerBuilder
from telemetry.metrics import prometheus
from telemetry.pump.fair_lock import FairLock
from telemetry.pump.isolation import LIMIT, Isolation, part_name
from telemetry.pump.pump import Pump
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import Measured, RequestTimeline
from telemetry.requests.slo_policy import DEFAULT_POLICY
from telemetry.stats.histograms import Histograms
from telemetry.stats.slo import SloFold
from telemetry.stats.window_fold import Suppliers, WindowFold
from tests.support.servers.served import facts_of, served, started
from tests.support.worlds.facts import MS, accepted, step
from tests.support.worlds.metrics_world import one_request


class BrokenExporter:
    """A listener that raises on requests whose id is in `on`; on all when that is empty."""

    def __init__(self, on: Sequence[str] = ()) -> None:
        self.on = frozenset(on)
        self.given = 0

    def on_timeline(self, timeline: RequestTimeline) -> None:
        self.given += 1
        if not self.on or timeline.accepted.request_id in self.on:
            raise KeyError("no such thing")

    def on_measured(self, measured: Measured) -> None:
        self.given += 1
        raise ZeroDivisionError


class BrokenLedgerBuilder(LedgerBuilder):
    """Raises on every accepted request."""

    def take(self, fact: Fact) -> None:
        if isinstance(fact, RequestAccepted):
            raise ValueError("half done")
        super().take(fact)


class World:
    """Folds and listeners as the server has them, one of them broken."""

    def __init__(self, broken: BrokenExporter, ledger_builder: LedgerBuilder | None = None) -> None:
        self.pump, self.lane = Pump(ManualClock()), Lane()
        isolation = self.pump.isolation
        self.histograms, self.slo = Histograms(), SloFold(DEFAULT_POLICY, 0)
        self.timelines: list[RequestTimeline] = []
        self.window = WindowFold(
            self.histograms,
            Suppliers(
                folds_detached=lambda: self.pump.detached, fold_errors=lambda: isolation.errors
            ),
        )
        self.phases = PhaseFold(
            [broken.on_timeline, self.slo.on_timeline, self.timelines.append],
            [broken.on_measured, self.histograms.on_measured],
            ledger_builder or LedgerBuilder(lambda slo_class: DEFAULT_ITL_TARGET_NS),
            isolation=isolation,
        )
        self.diagnoser, self.journal = Diagnoser(), Journal(ManualClock())
        self.pump.add_lane(self.lane)
        for name, fold in (
            ("phases", self.phases),
            ("window", self.window),
            ("diagnosis", self.diagnoser),
            ("journal", self.journal),
        ):
            self.pump.add_fold(name, fold)

    def give(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self.lane.append(fact)
        self.pump.run_once()
        self.pump.run_once()  # what the first one has to tell

    def requests(self, count: int, first: int = 1) -> None:
        for number in range(first, first + count):
            self.give(one_request(request_id=f"r{number}", seq_id=number, start_ms=100 * number))

    def metrics(self) -> str:
        return prometheus.text(
            prometheus.scalar_families(self.window.snapshot(0), self.pump.costs)
        ).decode()


def test_a_listener_that_raises_leaves_histograms_traces_slo_and_ledger_as_they_were() -> None:
    world = World(BrokenExporter())
    world.requests(10)

    assert len(world.timelines) == 10
    assert all(timeline.account is not None for timeline in world.timelines)
    assert sum(one.requests["good"] for one in world.slo.report(0).classes) == 10
    assert world.histograms.window_percentiles(0, 60)["e2e"].count == 10
    assert "phases" not in world.pump.detached


def test_a_listener_is_detached_after_three_requests_in_a_row_and_not_for_one_odd_one() -> None:
    odd, broken = BrokenExporter(["r2", "r3", "r5", "r6"]), BrokenExporter()
    sound_world, world = World(odd), World(broken)
    sound_world.requests(8)
    world.requests(8)

    assert odd.given > 8  # measurements raised, and were detached by themselves
    assert "phases_broken_exporter" not in sound_world.pump.detached
    assert sound_world.pump.isolation.errors["phases_broken_exporter"] == 4
    assert world.pump.detached == ("phases_broken_exporter_2", "phases_broken_exporter")
    assert broken.given == 2 * LIMIT


def test_a_ledger_builder_that_raises_loses_only_the_ledgers() -> None:
    world = World(
        BrokenExporter(["none"]), BrokenLedgerBuilder(lambda slo_class: DEFAULT_ITL_TARGET_NS)
    )
    world.requests(2)

    assert [timeline.account for timeline in world.timelines] == [None, None]
    assert "ledger" in world.pump.detached


def test_a_detached_part_is_named_in_metrics_and_in_the_diagnosis() -> None:
    world = World(BrokenExporter())
    assert 'phasescope_fold_errors_total{fold="phases_broken_exporter"} 0' in world.metrics()
    assert 'folds_detached{fold="phases' not in world.metrics()
    world.requests(4)
    world.give([started(at_ns=600 * MS)])
    for number in range(40):
        world.give([step(number, 1000 + 100 * number, 1010 + 100 * number, [])])

    found = world.diagnoser.diagnosis().findings
    assert [finding.symptom for finding in found] == ["telemetry_degraded"]
    assert "phases_broken_exporter (KeyError)" in found[0].claim
    assert world.diagnoser.diagnosis().verdict == "fault"  # the record itself is whole
    assert 'phasescope_folds_detached{fold="phases_broken_exporter"} 1' in world.metrics()
    assert 'phasescope_fold_errors_total{fold="phases_broken_exporter"} 3' in world.metrics()


def test_a_detachment_is_a_fact_that_the_journal_keeps() -> None:
    world = World(BrokenExporter())
    before = world.journal.stats().facts
    world.requests(3)

    assert world.journal.stats().facts > before
    lane = Isolation(ManualClock())
    guarded = lane.guard("part", lambda item: [].pop(), limit=1)
    guarded(None)
    assert lane.lane.drain() == [FoldDetached(0, "part", "IndexError")]


def test_a_fold_is_detached_at_its_first_error_because_it_has_half_a_batch() -> None:
    class Half:
        taken = 0

        def on_facts(self, facts: Sequence[Fact]) -> None:
            Half.taken += 1
            raise RuntimeError

    pump, lane = Pump(ManualClock()), Lane()
    pump.add_lane(lane)
    pump.add_fold("half", Half())
    for at in (1, 2):
        lane.append(accepted(at=at))
        pump.run_once()

    assert (Half.taken, pump.detached) == (1, ("half",))


def test_a_part_is_named_as_its_class_is() -> None:
    assert part_name(SloFold(DEFAULT_POLICY, 0).on_timeline) == "slo"
    assert part_name(BrokenExporter().on_timeline) == "broken_exporter"
    assert part_name(facts_of) == "facts_of"


def test_offline_an_error_of_a_listener_is_raised() -> None:
    fold = PhaseFold([BrokenExporter().on_timeline])
    with pytest.raises(KeyError):
        fold.on_facts(facts_of(served("poisson", 4)))


def test_each_failure_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    isolation = Isolation(ManualClock())
    guarded = isolation.guard("part", lambda item: {}[item])
    with caplog.at_level(logging.ERROR):
        for _ in range(LIMIT + 2):
            guarded("missing")

    assert len(caplog.records) == LIMIT
    assert all(record.exc_info for record in caplog.records)


def test_a_fair_lock_is_reentrant_and_times_out() -> None:
    import threading

    lock, answers = FairLock(), []
    with lock, lock:
        thread = threading.Thread(target=lambda: answers.append(lock.acquire(timeout=0.01)))
        thread.start()
        thread.join()
    assert answers == [False]
    assert lock.acquire(timeout=0)
    lock.release()
