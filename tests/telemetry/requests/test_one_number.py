"""A number that is shown in two places is the same number.

One simulated life goes through everything that shows a latency. Raw values agree to the last
digit, histograms to their resolution (a thousandth and a microsecond).
"""

from __future__ import annotations

import io
from collections import defaultdict

import msgspec
import pytest
from rich.console import Console

from dashboards.explain import Explained, ms, render
from diagnosis.root_cause.counterfactual import symptoms
from diagnosis.root_cause.outcomes import outcomes_of
from diagnosis.spans import Span
from lab.drills.client import Sent
from lab.drills.outcome.result import summarize
from lab.load.aggregator import latency_of
from lab.twins.registry import TWINS
from lab.twins.simulated_run import START_NS
from telemetry.facts.reasons import Outcome, Phase
from telemetry.facts.records import Fact, fact_ns
from telemetry.metrics.families import HistogramPoint
from telemetry.numbers.hdr import Recorder, merged
from telemetry.numbers.quantiles import median, quantile
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import Measure, Measured, RequestTimeline
from telemetry.requests.slo_policy import SloClass
from telemetry.requests.timelines import describe
from telemetry.requests.timings import timings_of
from telemetry.stats.histogram_report import merge
from telemetry.stats.slo import judge
from telemetry.stats.slo_report import Verdict
from telemetry.traces.span_attributes import phase_attributes, root_attributes, token_gaps
from tests.support.worlds.metrics_world import MetricsWorld
from tests.support.worlds.twins.cases import twin

# all of it lies within the minute that the screens look back
LIFE_NS = 55_000_000_000
SHOWN = (Measure.TTFT, Measure.ITL, Measure.TPOT, Measure.E2E, Measure.QUEUE)


class SimulatedService:
    """The facts, what the phase fold makes of them, and the service's own folds."""

    def __init__(self, facts: list[Fact]) -> None:
        self.facts = facts
        self.timelines: list[RequestTimeline] = []
        self.values: defaultdict[Measure, list[int]] = defaultdict(list)
        PhaseFold([self.timelines.append], [self._measured]).on_facts(facts)
        self.world = MetricsWorld()
        self.world.clock.advance(fact_ns(facts[-1]) - self.world.clock.now_ns())
        for first in range(0, len(facts), 1000):
            self.world.feed(facts[first : first + 1000])

    def _measured(self, one: Measured) -> None:
        self.values[one.measure].append(one.value_ns)

    @property
    def finished(self) -> list[RequestTimeline]:
        return [one for one in self.timelines if one.outcome is Outcome.FINISHED]

    def exact_ms(self, measure: Measure, share: float) -> float:
        found = quantile(self.values[measure], share)
        assert found is not None
        return found / 1e6


@pytest.fixture(scope="module")
def service() -> SimulatedService:
    facts = twin("healthy_busy", TWINS["healthy_busy"][0]).facts
    return SimulatedService([fact for fact in facts if fact_ns(fact) < START_NS + LIFE_NS])


def as_histogram(exact_ms: float) -> object:
    """Equal to a histogram's resolution."""
    return pytest.approx(exact_ms, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("measure", SHOWN, ids=str)
def test_monitor_report_and_scrape_show_the_quantiles_of_the_raw_values(
    service: SimulatedService, measure: Measure
) -> None:
    exact = {share: service.exact_ms(measure, share) for share in (0.5, 0.95, 0.99, 1.0)}

    window = service.world.metrics.window.snapshot(service.world.clock.now_ns())
    on_screen = window.percentiles[measure.value]
    body = service.world.metrics.histogram_report("total")
    assert body is not None
    reported = merged(v for (m, _), v in merge([body]).items() if m is measure).percentiles()
    for shown in (on_screen, reported):
        assert shown.count == len(service.values[measure])
        for share, value_ns in zip(
            exact, (shown.p50_ns, shown.p95_ns, shown.p99_ns, shown.max_ns), strict=True
        ):
            assert value_ns is not None
            assert value_ns / 1e6 == as_histogram(exact[share])

    families = scraped(service, measure)
    assert len(families) == 2
    for points in families:
        scrape = merged(point.values for point in points)
        assert scrape.sum_ns == sum(service.values[measure])
        for share, exact_ms in exact.items():
            assert scrape.at([share])[0] / 1e6 == as_histogram(exact_ms)


def scraped(service: SimulatedService, measure: Measure) -> list[list[HistogramPoint]]:
    """Points of the families at `/metrics` that show the measure: ours and that of vLLM's name."""
    return [
        list(family.histograms)
        for family in service.world.metrics.families(aliases=True)
        if family.metric.measure is measure
    ]


@pytest.mark.parametrize("measure", SHOWN, ids=str)
def test_replay_bench_and_raw_values_have_the_same_quantiles(
    service: SimulatedService, measure: Measure
) -> None:
    (outcome,) = outcomes_of(service.facts).classes.values()
    replay = outcome.latency[measure.value]
    recorder = Recorder()
    recorder.record(service.values[measure])
    bench = latency_of(recorder.distribution())
    assert bench is not None

    assert replay.count == bench.count == len(service.values[measure])
    for share, in_replay, in_bench in (
        (0.5, replay.p50_ms, bench.p50_ms),
        (0.9, replay.p90_ms, bench.p90_ms),
        (0.99, replay.p99_ms, bench.p99_ms),
        (1.0, replay.max_ms, bench.max_ms),
    ):
        assert in_replay == service.exact_ms(measure, share)
        assert in_bench == as_histogram(in_replay)


def test_a_drill_and_the_root_cause_have_the_ttft_of_the_phases(service: SimulatedService) -> None:
    drill = summarize([sent_of(one) for one in service.finished])
    why = symptoms(service.timelines, Span(0, 1 << 62))

    assert drill.ttft_p95 == round(service.exact_ms(Measure.TTFT, 0.95), 3)
    assert drill.ttft_p50 == round(service.exact_ms(Measure.TTFT, 0.5), 3)
    assert drill.e2e_p50 == round(service.exact_ms(Measure.E2E, 0.5), 3)
    assert why["ttft_p95"] == service.exact_ms(Measure.TTFT, 0.95)


def sent_of(timeline: RequestTimeline) -> Sent:
    """As a client beside the server would have seen it."""
    begun_ns, ttft_ns = timeline.accepted.at_ns, timeline.ttft_ns
    assert ttft_ns is not None
    return Sent(
        request_id=timeline.accepted.request_id,
        tenant="",
        is_culprit=False,
        due_ns=begun_ns,
        first_ns=begun_ns + ttft_ns,
        end_ns=timeline.ended.at_ns,
        status=200,
    )


def test_every_view_of_one_request_shows_the_same_times(service: SimulatedService) -> None:
    """Explain, the response's timings and the trace."""
    for timeline in service.finished:
        ttft_ns, tpot_ns = timeline.ttft_ns, timeline.tpot_ns
        assert ttft_ns is not None
        described = msgspec.convert(msgspec.to_builtins(describe(timeline)), Explained)
        assert (described.ttft_ns, described.tpot_ns) == (ttft_ns, tpot_ns)
        assert f"TTFT {ms(ttft_ns)} ms" in printed(described)
        assert described.e2e_ns == sum(one.end_ns - one.start_ns for one in described.phases)

        timings = timings_of(timeline)
        assert timings.time_to_first_token_ms == round(ttft_ns / 1e6, 3)
        assert timings.total_time_ms == round(timeline.e2e_ns / 1e6, 3)
        assert timings.mean_itl_ms == (None if tpot_ns is None else round(tpot_ns / 1e6, 3))

        spans = root_attributes(timeline)
        assert spans["gen_ai.latency.time_to_first_token"] == ttft_ns / 1e9
        queue_ns = timeline.phase_ns(Phase.QUEUE)
        assert queue_ns is not None
        assert spans["gen_ai.latency.time_in_queue"] == queue_ns / 1e9
        assert timings.queue_time_ms == round(queue_ns / 1e6, 3)
        middle_ns = median(end - start for start, end in token_gaps(timeline))
        if middle_ns is not None:
            decode = phase_attributes(timeline, Phase.DECODE)
            assert decode["phasescope.itl.p50_ms"] == middle_ns / 1e6


@pytest.mark.parametrize("itl_ms", [11, 13, 14, 16, 40])
def test_the_slo_judges_the_quantile_that_is_shown(service: SimulatedService, itl_ms: int) -> None:
    target = SloClass(name="chat", ttft_ns=1 << 62, itl_ns=itl_ms * 1_000_000)
    for timeline in service.finished:
        gap_ns = quantile((end - start for start, end in token_gaps(timeline)), 0.99)
        is_slow = gap_ns is not None and gap_ns > target.itl_ns
        assert (judge(timeline, target) is Verdict.SLOW_TOKENS) == is_slow


def printed(explained: Explained) -> str:
    console = Console(file=io.StringIO(), width=400)
    console.print(render(explained))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
