"""Pump, snapshot and the store of ended requests."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Sequence

import pytest

from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import EngineIdled, EngineStarted, SequenceQueued
from telemetry.facts.reasons import EndReason, FactSource
from telemetry.facts.recorder import Lane
from telemetry.facts.records import EngineDied, Fact, FactsLost
from telemetry.pump.pump import Pump
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.timelines import TimelineStore
from telemetry.stats.histograms import Histograms
from telemetry.stats.window_fold import WindowFold
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

SECOND = 1_000_000_000


def started() -> EngineStarted:
    return EngineStarted(
        0, 77, "model", "torch-cpu", "float32", 10, 16, 512, 8, 64, True, 1, 100, 1000
    )


class Collecting:
    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def on_facts(self, facts: Sequence[Fact]) -> None:
        self.facts += facts


class Raising:
    def on_facts(self, facts: Sequence[Fact]) -> None:
        raise RuntimeError("broken fold")


def test_facts_of_all_lanes_reach_each_fold_in_order_of_time() -> None:
    """Two lanes, one order."""
    pump, first, second, fold = Pump(ManualClock()), Lane(), Lane(), Collecting()
    pump.add_lane(first)
    pump.add_lane(second)
    pump.add_fold("collecting", fold)
    first.append(accepted(at=3))
    second.append(queued(at=1))
    first.append(parsed(at=4))
    pump.run_once()

    assert [fact.at_ns // MS for fact in fold.facts] == [1, 3, 4]  # type: ignore[union-attr]


def test_a_fold_that_raises_is_detached_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Logged once, by name."""
    pump, lane, healthy = Pump(ManualClock()), Lane(), Collecting()
    pump.add_lane(lane)
    pump.add_fold("broken", Raising())
    pump.add_fold("healthy", healthy)
    with caplog.at_level(logging.ERROR):
        for at in (1, 2):
            lane.append(queued(at=at))
            pump.run_once()

    assert pump.detached == ("broken",)
    assert sum(isinstance(fact, SequenceQueued) for fact in healthy.facts) == 2
    assert len(caplog.records) == 1


def test_a_full_lane_counts_what_it_refuses() -> None:
    """The beginning is kept, the loss is known."""
    lane = Lane(capacity=2, source=FactSource.ENGINE)
    for at in range(5):
        lane.append(queued(at=at))

    assert lane.drain() == [queued(at=0), queued(at=1), FactsLost(2 * MS, FactSource.ENGINE, 3)]
    assert lane.lost == 3


def lived() -> tuple[WindowFold, Histograms]:
    histograms = Histograms()
    window, store = WindowFold(histograms), TimelineStore()
    phases = PhaseFold([store.on_timeline, window.on_timeline], [histograms.on_measured])
    facts: list[Fact] = [
        started(),
        accepted(at=0),
        parsed(at=1),
        tokenized(at=2),
        submitted(at=2),
        queued(at=3),
        step(0, 10, 20, [prefill()]),
        step(1, 20, 35, [decode()]),
        sequence_ended(at=35),
        request_ended(at=40, first_sent_ns=22 * MS),
    ]
    for fold in (phases, window):
        fold.on_facts(facts)
    return window, histograms


def test_a_snapshot_has_counters_rates_and_the_batch_grid() -> None:
    """Counters, rates over ten seconds, and the batch grid."""
    window, _ = lived()
    now = window.snapshot(SECOND)

    assert (now.prompt_tokens_total, now.output_tokens_total, now.steps_total) == (4, 2, 2)
    assert now.output_tokens_per_s == pytest.approx(0.2)
    counts = {"finished": 1, "rejected": 0, "cancelled": 0, "failed": 0, "lost": 0}
    assert now.requests_total == counts
    assert [(row.request_id, row.cells) for row in now.grid] == [("r1", "PD")]
    assert now.percentiles["ttft"].p50_ns == pytest.approx(22 * MS, rel=0.001)


def test_gauges_are_right_when_the_engine_is_idle_or_dead() -> None:
    """No step follows the last cancel, and none follows a death."""
    window, _ = lived()
    window.on_facts([EngineIdled(50 * MS, 0, 0, 0, 0, 10)])
    idle = window.snapshot(SECOND)
    assert (idle.running, idle.waiting, idle.blocks_used, idle.blocks_total) == (0, 0, 0, 10)

    window.on_facts([step(5, 60, 70, [decode()]), EngineDied(80 * MS, -9, "", 0)])
    dead = window.snapshot(SECOND)
    assert (dead.running, dead.blocks_used, dead.engine_pid) == (0, 0, None)
    assert dead.engine_restarts == 1


def test_the_store_of_ended_requests_is_bounded_and_forgets_the_oldest() -> None:
    """Live requests are found too, as running."""
    store = TimelineStore(capacity=2)
    phases = PhaseFold([store.on_timeline])
    for index in range(3):
        name = f"r{index}"
        phases.on_facts([accepted(name), request_ended(name, reason=EndReason.INVALID)])
    phases.on_facts([accepted("live", at=1)])

    assert store.get("r0", phases, 0) is None
    assert b'"outcome":"rejected"' in (store.get("r2", phases, 0) or b"")
    assert b'"outcome":"running"' in (store.get("live", phases, 5 * MS) or b"")


class Busy(Lane):
    """A lane during whose drain something happens elsewhere."""

    meanwhile: list[tuple[Lane, Fact]]

    def drain(self) -> list[Fact]:
        facts = super().drain()
        for lane, fact in self.meanwhile:
            lane.append(fact)
        self.meanwhile = []
        return facts


def test_a_short_request_that_ends_while_lanes_are_drained_is_not_lost() -> None:
    """The engine's lane is drained first, so that no sequence ends before it is known whose it is.

    The other way round its end would be forgotten, and the request would run for ever.
    """
    gateway, engine, store = Lane(), Busy(), TimelineStore()
    fold, pump = PhaseFold([store.on_timeline]), Pump(ManualClock())
    for lane in (engine, gateway):
        pump.add_lane(lane)
    pump.add_fold("phases", fold)
    engine.meanwhile = [
        (gateway, accepted(at=0)),
        (gateway, submitted(at=2)),
        (engine, queued(at=3)),
        (engine, sequence_ended(at=60)),
        (gateway, request_ended(at=70)),
    ]
    pump.run_once()
    pump.run_once()

    assert b'"outcome":"finished"' in (store.get("r1", fold, 0) or b"")


def test_ends_of_requests_are_kept_no_longer_where_there_are_no_steps() -> None:
    """As in a gateway of engines elsewhere, whose snapshot nobody asks for."""
    window = WindowFold(Histograms())
    tracemalloc.start()
    try:
        for number in range(20_000):
            window.on_facts((request_ended(at=100 * number),))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept_bytes < 100_000
    assert window.snapshot(19_999 * 100 * MS).requests_per_s == pytest.approx(10, rel=0.02)
