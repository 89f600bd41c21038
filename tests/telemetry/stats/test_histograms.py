"""HDR histograms: exactness, merging, windows, classes and their bounds."""

from __future__ import annotations

import msgspec
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.numbers import hdr
from telemetry.numbers.hdr import DIGITS, HIGHEST_US, LOWEST_US, Distribution, distribution_of
from telemetry.numbers.quantiles import rank
from telemetry.requests.classes import (
    MAX_CELLS,
    MAX_TENANTS,
    NONE,
    OTHER,
    ClassBook,
    workload_class,
)
from telemetry.requests.phases import Measure, Measured
from telemetry.requests.slo_policy import DEFAULT_POLICY
from telemetry.stats.histogram_report import HistogramReport, distributions, merge, report
from telemetry.stats.histograms import Histograms, LatencyHistogram
from tests.support.worlds.facts import MS
from tests.support.worlds.metrics_world import MetricsWorld, one_request

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
values_ns = st.lists(st.integers(0, 2 * HOUR), max_size=120)


def of(values: list[int], at_ns: int = 0) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value, at_ns)
    return histogram


def same(one: Distribution, other: Distribution) -> bool:
    return (
        one.indices.tolist() == other.indices.tolist()
        and one.counts.tolist() == other.counts.tolist()
        and (one.count, one.sum_ns, one.max_ns) == (other.count, other.sum_ns, other.max_ns)
    )


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.integers(1000, HOUR), min_size=1, max_size=300))
def test_percentiles_are_within_a_thousandth_of_the_exact_ones(values: list[int]) -> None:
    """And within a microsecond, the store's resolution; maximum and sum are exact."""
    found = of(values).total().percentiles()
    exact = sorted(values)
    for q, value in (
        (50, found.p50_ns), (90, found.p90_ns), (95, found.p95_ns), (99, found.p99_ns),
        (99.9, found.p999_ns),
    ):  # fmt: skip
        place = rank(q / 100, len(exact))
        assert value is not None
        assert abs(value - exact[place - 1]) <= exact[place - 1] / 1000 + 1000
    assert found.max_ns == exact[-1]
    assert of(values).total().sum_ns == sum(values)


@settings(max_examples=200, deadline=None)
@given(values_us=st.lists(st.integers(1, HIGHEST_US), min_size=1, max_size=60))
def test_values_are_counted_where_the_library_counts_them(values_us: list[int]) -> None:
    """One by one, many at once, and in the encoding."""
    theirs = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
    for value_us in values_us:
        theirs.record_value(value_us)
    ours = distribution_of([value_us * 1000 for value_us in values_us])

    for index, count in zip(ours.indices, ours.counts, strict=True):
        assert theirs.counts[int(index)] == count
    assert hdr.encode(ours).encode() == theirs.encode()
    for index in ours.indices:
        low_us, width_us = int(hdr.LOW_US[index]), int(hdr.WIDTH_US[index])
        assert theirs.get_lowest_equivalent_value(low_us) == low_us
        assert theirs.get_highest_equivalent_value(low_us) == low_us + width_us - 1


@settings(max_examples=100, deadline=None)
@given(values=values_ns, pieces=st.lists(st.integers(0, 3), max_size=120))
def test_a_histogram_does_not_depend_on_how_values_are_batched(
    values: list[int], pieces: list[int]
) -> None:
    """A journal that is read back comes in other batches than the live facts did."""
    live, read = LatencyHistogram(), LatencyHistogram()
    for place, value in enumerate(values):
        at_ns = place * SECOND // 7
        live.record(value, at_ns)
        read.record(value, at_ns)
        if place < len(pieces) and pieces[place] == 0:
            live.flush()

    assert same(live.total(), read.total())
    now_ns = len(values) * SECOND // 7
    for length_s in (1, 10, 60, 300):
        assert same(live.last(now_ns, length_s), read.last(now_ns, length_s))
    assert hdr.encode(live.total()) == hdr.encode(read.total())


@settings(max_examples=60, deadline=None)
@given(shares=st.lists(values_ns, min_size=1, max_size=4))
def test_answers_of_several_processes_merge_to_what_one_would_have_measured(
    shares: list[list[int]],
) -> None:
    """Counters, percentiles, sum and the true maximum; empty ones spoil nothing."""
    workload = workload_class("chat", "blue", 300, 0)
    bodies: list[bytes] = []
    pooled = Histograms()
    for values in shares:
        process = Histograms()
        for value in values:
            measured = Measured(Measure.ITL, value, 0, workload)
            process.on_measured(measured)
            pooled.on_measured(measured)
        answer = report(distributions(process, "total", 0), "total", 0)
        bodies.append(msgspec.json.encode(answer))
    found = merge(bodies)
    expected = distributions(pooled, "total", 0)

    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert same(found[key], values)
        assert found[key].percentiles() == values.percentiles()


def test_what_cannot_be_merged_is_refused() -> None:
    """Another schema, another layout, something else altogether."""
    other = HdrHistogram(1, 60_000_000, 2)
    other.record_value(5)
    with pytest.raises(ValueError, match="cannot be merged"):
        hdr.decode(other.encode().decode(), 5000, 5000)
    with pytest.raises(ValueError, match="schema 7"):
        merge(
            [msgspec.json.encode(HistogramReport(schema=7, window="total", at_ns=0, histograms=()))]
        )
    with pytest.raises(ValueError, match="not an answer"):
        merge([b'{"error": {}}'])


def test_each_window_drops_old_values_and_the_total_does_not() -> None:
    """A window reaches back its length and at most one slot more."""
    histogram = of([5 * MS], at_ns=1000 * SECOND)
    seen = {
        length_s: [
            age_s for age_s in range(330) if histogram.last((1000 + age_s) * SECOND, length_s).count
        ]
        for length_s in (1, 10, 60, 300)
    }

    assert seen[1] == [0, 1]
    assert seen[10] == list(range(11))
    assert (seen[60][-1], seen[300][-1]) == (69, 309)
    assert histogram.total().count == 1


def test_a_value_that_comes_late_is_in_the_window_of_its_own_time() -> None:
    """Engine and gateway facts are folded a little out of order."""
    histogram = LatencyHistogram()
    for second in (100, 101, 100, 102, 99):
        histogram.record(second * MS, second * SECOND)

    assert histogram.last(102 * SECOND, 1).count == 2
    assert histogram.last(110 * SECOND, 10).count == 4
    assert histogram.last(110 * SECOND, 10).max_ns == 102 * MS
    assert histogram.total().count == 5


def test_the_memory_of_a_window_is_bounded_by_its_slots() -> None:
    """An hour of steady traffic leaves five minutes of slots."""
    histogram = LatencyHistogram()
    for second in range(3600):
        histogram.record(second * 1000, second * SECOND)
    parts = histogram.parts(3600 * SECOND, 300)

    assert len(parts) <= 31 * 9
    assert histogram.last(3600 * SECOND, 300).count == 299 + 1


def test_tenants_and_classes_from_headers_cannot_grow_without_bound() -> None:
    """Beyond the bounds values are counted under `other`; none is lost."""
    histograms = Histograms()
    for number in range(3000):
        prompt_tokens = 1 << number // 40 % 17
        workload = workload_class(f"class-{number % 7}", f"t{number % 40}", prompt_tokens, 0)
        histograms.on_measured(Measured(Measure.ITL, MS, 0, workload))
    cells = {cell for _, cell in histograms.cells}

    assert len(cells) <= MAX_CELLS + len(DEFAULT_POLICY.classes)
    assert len({cell.tenant for cell in cells}) <= MAX_TENANTS + 1
    assert {cell.slo_class for cell in cells} == {"chat"}
    assert histograms.overall(Measure.ITL).count == 3000
    assert 0 < histograms.overflowed < 3000


def test_a_tenant_that_is_called_other_is_no_overflow() -> None:
    """Beside those that are counted under that name for want of room."""
    histograms = Histograms(ClassBook(max_tenants=2))
    for tenant, count in ((OTHER, 5), ("a", 3), ("b", 2), ("c", 1), (OTHER, 4)):
        for _ in range(count):
            workload = workload_class("", tenant, 10, 0)
            histograms.on_measured(Measured(Measure.ITL, MS, 0, workload))
        if tenant == "a":
            assert histograms.overflowed == 0

    assert histograms.overflowed == 2 + 1
    assert histograms.overall(Measure.ITL).count == 15
    assert {cell.tenant for _, cell in histograms.cells} == {OTHER, "a"}


def test_a_class_keeps_its_labels() -> None:
    """Else a counter would fall."""
    book = ClassBook(max_cells=4, max_tenants=2)
    stated = [workload_class("voice", f"t{n % 5}", 10 * n, 0) for n in range(1, 40)]
    first = [book.bounded(one) for one in stated]

    assert [book.bounded(one) for one in stated] == first
    assert {one.slo_class for one in first} == {"voice"}
    assert OTHER in {one.tenant for one in first}


def test_a_request_is_warm_when_half_of_its_prompt_was_cached() -> None:
    """And its prompt falls into a bin; what is not known yet is `none`."""
    assert workload_class("", "", 512, 256).cache == "warm"
    assert workload_class("", "", 512, 255).cache == "cold"
    assert workload_class("", "", 512, None).cache == NONE
    assert workload_class("", "", None, None).prompt == NONE
    bins = [workload_class("", "", tokens, 0).prompt for tokens in (1, 128, 129, 32_768, 40_000)]
    assert bins == ["1-128", "1-128", "129-512", "8193-32768", "32769-"]


def test_all_values_of_a_request_are_of_its_class() -> None:
    """Tokens too, which come long before the request has ended."""
    world = MetricsWorld().feed(
        one_request(
            [10, 15], prompt_tokens=600, cached_tokens=512, slo_class="voice", tenant="blue"
        )
    )
    found = {measure: cell for measure, cell in world.histograms.cells if cell.slo_class == "voice"}

    assert set(found.values()) == {("voice", "513-2048", "warm", "blue")}
    assert found.keys() >= {
        Measure.QUEUE, Measure.TOKENIZE, Measure.PREFILL, Measure.TTFT, Measure.ITL,
        Measure.TPOT, Measure.E2E, Measure.DELIVER,
    }  # fmt: skip
    assert world.histograms.overall(Measure.ITL).count == 2
    assert world.histograms.overall(Measure.DELIVER).max_ns == 5 * MS
    assert world.histograms.overall(Measure.TOKENIZE).max_ns == MS


def test_masks_are_measured_by_step() -> None:
    """Of steps with constrained rows only; they are of no class."""
    from tests.support.worlds.facts import decode, step

    world = MetricsWorld()
    world.feed(
        [
            step(0, 0, 10, [decode()], mask_ns=3 * MS, masked_rows=2),
            step(1, 10, 20, [decode()], mask_ns=0, masked_rows=0),
        ]
    )

    assert world.histograms.overall(Measure.MASK).count == 1
    assert list(world.histograms.by_slo_class(Measure.MASK)) == [NONE]
