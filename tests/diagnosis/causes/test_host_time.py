"""What the host's samples say of the engine's thread is compared with the work of the same time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.host_time import NOT_SAMPLED, busy_before, host_time
from diagnosis.detection.steps import StepRow, Steps
from diagnosis.detection.window import window_of
from telemetry.facts.engine_records import EngineIdled
from telemetry.facts.host_records import HostSampled
from tests.support.worlds.facts import MS, step

SECOND = 1_000 * MS


def steps(*spans_ms: tuple[int, int]) -> Steps:
    """Steps with the given begins and ends."""
    blank = StepRow(*[0] * len(StepRow._fields))
    rows = [blank._replace(end_ns=end * MS, turn_ns=(end - begin) * MS) for begin, end in spans_ms]
    return Steps(np.array(rows, dtype=np.float64).reshape(len(rows), len(StepRow._fields)))


def steady(begin_ms: int, end_ms: int, step_ms: int = 50) -> list[tuple[int, int]]:
    return [(at, at + step_ms) for at in range(begin_ms, end_ms, step_ms)]


def sample(
    at_ms: int, run_ms: float, wait_ms: float = 0, throttled_ms: float | None = 0
) -> HostSampled:
    """Of the second before."""
    return HostSampled(
        at_ns=at_ms * MS,
        window_ns=SECOND,
        engine_run_ns=int(run_ms * MS),
        engine_wait_ns=int(wait_ms * MS),
        throttled_ns=None if throttled_ms is None else int(throttled_ms * MS),
    )


def test_an_engine_that_slept_for_want_of_work_has_lost_nothing() -> None:
    """It gets busy at 4.9 s and the window begins there; the sample of 5.5 s has 0.4 s of sleep."""
    burst = steps(*steady(4_900, 8_000))
    samples = [sample(5_500, 600), sample(6_500, 1_000), sample(7_500, 1_000)]

    found = host_time(samples, burst, 4_900 * MS)

    assert found.window_ns == found.busy_ns == found.run_ns == 2_600 * MS
    assert found.lost_ns == 0


def test_of_a_sample_that_began_before_the_window_the_part_of_the_window_counts() -> None:
    """A busy engine whose thread runs for 0.7 of the time, and waits for 0.2 of it."""
    busy = steps(*steady(0, 3_000))
    found = host_time([sample(1_400, 700, 200, 50)], busy, 1_000 * MS)

    assert found[:2] == (400 * MS, 400 * MS)
    assert found[2:] == pytest.approx((280 * MS, 80 * MS, 20 * MS, 400 * MS))
    assert found.lost_ns == pytest.approx(40 * MS)


def test_work_before_the_window_is_no_work_of_the_window() -> None:
    """Of a sample all of whose work came before the window, nothing is left but its time."""
    found = host_time([sample(1_400, 300)], steps(*steady(500, 800)), 1_000 * MS)

    assert (found.window_ns, found.busy_ns, found.run_ns) == (400 * MS, 0, 0)
    assert not found.is_measured


def test_a_step_that_ends_after_the_last_sample_counts_up_to_the_sample() -> None:
    long = steps((0, 900), (900, 1_700))
    assert host_time([sample(1_200, 990)], long, 0).busy_ns == 1_000 * MS


def test_the_window_of_a_burst_has_the_host_time_of_the_burst_alone() -> None:
    """The engine idles up to 4.9 s; the window ends within a step that is known already."""
    counted = Aggregator()
    ran_ms = {1_000: 1_000, 5_500: 600, 6_500: 1_000, 7_500: 1_000}
    for number, (begin, end) in enumerate(steady(0, 1_000) + steady(4_900, 8_000)):
        counted.on_fact(step(number, begin, end, []))
        if end in ran_ms:
            counted.on_fact(sample(end, ran_ms[end]))
        if end == 1_000:
            counted.on_fact(EngineIdled(end * MS, 0, 0, 0, 0, 100))

    host = window_of(counted, 4_900 * MS, 7_520 * MS).host

    assert host.busy_ns == host.run_ns == 2_600 * MS
    assert host.lost_ns == 0


def test_without_samples_nothing_is_measured() -> None:
    assert host_time([], steps((0, 100)), 0) is NOT_SAMPLED
    assert not NOT_SAMPLED.is_measured
    idle = host_time([sample(1_200, 5, throttled_ms=None)], steps(), 0)
    assert (idle.busy_ns, idle.quota_window_ns) == (0, 0)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), max_size=30),
    moments=st.lists(st.integers(0, 20_000), min_size=1, max_size=10),
)
def test_work_before_a_moment_is_the_sum_of_the_turns_up_to_it(
    lengths: list[tuple[int, int]], moments: list[int]
) -> None:
    spans, at = [], 0
    for idle, length in lengths:
        spans.append((at + idle, at + idle + length))
        at += idle + length

    found = busy_before(steps(*spans), np.array(moments, dtype=np.float64) * MS)

    for moment, busy_ns in zip(moments, found.tolist(), strict=True):
        assert busy_ns == sum(max(0, min(end, moment) - begin) for begin, end in spans) * MS


def test_a_sample_without_the_times_of_the_thread_says_nothing_of_lost_time() -> None:
    """The first sample of a new process has none: it is the first of two readings."""
    busy, unknown = steps(*steady(0, 3_000)), HostSampled(at_ns=1_000 * MS, window_ns=SECOND)

    assert host_time([unknown], busy, 0) is NOT_SAMPLED
    both = host_time([unknown, sample(2_000, 1_000)], busy, 0)
    assert both.busy_ns == both.run_ns == 1_000 * MS


def test_steps_that_overlap_have_turns_whose_sum_is_the_time_that_passed() -> None:
    """A GPU's engine launches a step before it has committed the one before."""
    counted = Aggregator()
    for number, (begin, end) in enumerate([(0, 40), (30, 50), (41, 60), (51, 70)]):
        counted.on_fact(step(number, begin, end, []))

    rows = counted.steps(0, 100 * MS)

    assert rows.turn_ns.tolist() == [40 * MS, 10 * MS, 10 * MS, 10 * MS]
    assert rows.forward_ns.tolist() == [40 * MS, 10 * MS, 10 * MS, 10 * MS]
    assert not rows.host_ns.any()
