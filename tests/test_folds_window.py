"""Pump, histograms, snapshot and exposition."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Sequence

import pytest
from facts import (
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
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from telemetry import prometheus
from telemetry.clock import ManualClock
from telemetry.histograms import MAX_CLASSES, Histograms, LatencyHistogram
from telemetry.phase_fold import PhaseFold
from telemetry.phases import Measure, Measured
from telemetry.pump import Pump
from telemetry.reasons import EndReason
from telemetry.recorder import Lane
from telemetry.records import EngineDied, EngineIdled, EngineStarted, Fact
from telemetry.timelines import TimelineStore
from telemetry.window_fold import WindowFold

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
    """Said once, by name."""
    pump, lane, healthy = Pump(ManualClock()), Lane(), Collecting()
    pump.add_lane(lane)
    pump.add_fold("broken", Raising())
    pump.add_fold("healthy", healthy)
    with caplog.at_level(logging.ERROR):
        for at in (1, 2):
            lane.append(queued(at=at))
            pump.run_once()

    assert pump.detached == ("broken",)
    assert len(healthy.facts) == 2
    assert len(caplog.records) == 1


def test_a_full_lane_counts_what_it_refuses() -> None:
    """The beginning is kept, the loss is known."""
    lane = Lane(capacity=2)
    for at in range(5):
        lane.append(queued(at=at))

    assert [fact.at_ns for fact in lane.drain()] == [0, MS]  # type: ignore[union-attr]
    assert lane.lost == 3


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.integers(1000, 3600 * SECOND), min_size=1, max_size=300))
def test_percentiles_are_within_a_thousandth_of_the_exact_ones(values: list[int]) -> None:
    """And within a microsecond, the store's resolution; the maximum is exact."""
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value, at_ns=0)
    found, exact = histogram.total(), sorted(values)

    for q, value in ((50, found.p50_ns), (95, found.p95_ns), (99, found.p99_ns)):
        rank = max(1, int(q / 100 * len(exact) + 0.5))
        assert value is not None
        assert abs(value - exact[rank - 1]) <= exact[rank - 1] / 1000 + 1000
    assert found.max_ns == exact[-1]
    assert histogram.sum_ns == sum(values)


@settings(max_examples=100, deadline=None)
@given(value_us=st.integers(1, 3_600_000_000))
def test_values_are_counted_where_the_library_counts_them(value_us: int) -> None:
    """Our shortcut into the counters equals HdrHistogram.record_value."""
    from hdrh.histogram import HdrHistogram

    from telemetry.histograms import DIGITS, HIGHEST_US, LOWEST_US

    theirs = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
    theirs.record_value(value_us)
    index = LatencyHistogram().index_of(value_us * 1000)

    assert theirs.counts[index] == 1


def test_the_sliding_window_forgets_and_the_total_does_not() -> None:
    """A minute later the window is empty."""
    histogram = LatencyHistogram()
    histogram.record(5 * MS, at_ns=0)

    assert histogram.window(30 * SECOND).count == 1
    assert histogram.window(100 * SECOND).count == 0
    assert histogram.total().count == 1


def test_classes_from_a_header_cannot_grow_without_bound() -> None:
    """Beyond the limit they are counted as `other`."""
    histograms = Histograms()
    for index in range(50):
        histograms.on_measured(Measured(Measure.ITL, MS, 0, f"class-{index}"))

    by_class = histograms.by_class(Measure.ITL)
    assert len(by_class) == MAX_CLASSES + 1
    assert by_class["other"].count == 50 - MAX_CLASSES


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


def test_a_snapshot_tells_what_happened() -> None:
    """Counters, rates over ten seconds, and the batch grid."""
    window, _ = lived()
    now = window.snapshot(SECOND)

    assert (now.prompt_tokens_total, now.output_tokens_total, now.steps_total) == (4, 2, 2)
    assert now.output_tokens_per_s == pytest.approx(0.2)
    assert now.requests_total == {"finished": 1, "rejected": 0, "cancelled": 0, "failed": 0}
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


def exposition() -> str:
    window, histograms = lived()
    return prometheus.render(window.snapshot(SECOND), histograms, ()).decode()


def test_the_exposition_is_read_by_the_reference_parser() -> None:
    """Names, types, values; histograms are cumulative and end at their count."""
    families = {f.name: f for f in text_string_to_metric_families(exposition())}

    assert families["phasescope_output_tokens"].samples[0].value == 2
    assert families["phasescope_running"].type == "gauge"
    for name in ("phasescope_ttft_seconds", "gen_ai_server_request_duration_seconds"):
        samples = families[name].samples
        buckets = [s.value for s in samples if s.name.endswith("_bucket")]
        (count,) = [s.value for s in samples if s.name.endswith("_count")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == count == 1
    ttft = {
        s.labels["le"]: s.value
        for s in families["phasescope_ttft_seconds"].samples
        if "le" in s.labels
    }
    assert (ttft["0.02"], ttft["0.05"]) == (0, 1)


def test_labels_are_escaped() -> None:
    """A hostile class name cannot break a line."""
    window, histograms = lived()
    histograms.on_measured(Measured(Measure.ITL, MS, 0, 'a"b\\c\nd'))
    text = prometheus.render(window.snapshot(SECOND), histograms, ()).decode()
    families = {f.name: f for f in text_string_to_metric_families(text)}
    labels = {s.labels.get("slo_class") for s in families["phasescope_itl_seconds"].samples}

    assert 'a"b\\c\nd' in labels


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_exposition() -> None:
    """Prometheus' own linter has nothing to say."""
    answer = subprocess.run(
        ["promtool", "check", "metrics"], input=exposition(), text=True, capture_output=True
    )

    assert answer.returncode == 0, answer.stdout + answer.stderr


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


def test_a_request_that_comes_and_goes_while_lanes_are_drained_is_not_lost() -> None:
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
