"""Garbage collector, event loop and sampler: what each measures of a paused process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest

from telemetry.facts.base import Unavailable
from telemetry.facts.clock import ManualClock, MonotonicClock
from telemetry.facts.host_records import HostPaused
from telemetry.facts.reasons import HostProcess, PauseCause
from telemetry.facts.recorder import Lane
from telemetry.host.gc_watch import GcWatch, settle_collector
from telemetry.host.loop_probe import BUSY_BEAT_NS, IDLE_BEAT_NS, LoopProbe
from telemetry.host.proc import CpuTimes
from tests.support.worlds.facts import decode, step

MS = 1_000_000


class Loop:
    """An event loop that only keeps the last callback that it was given."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.callback: Callable[[], None] | None = None

    def call_later(self, delay: float, callback: Callable[[], None]) -> Loop:
        self.delay_s, self.callback = delay, callback
        return self

    def cancel(self) -> None:
        self.callback = None

    def fire(self) -> None:
        assert self.callback is not None
        self.callback()


class Probed:
    """A probe in virtual time; `spend` says what the thread did meanwhile."""

    def __init__(self, busy: bool = True, times: CpuTimes | Unavailable | None = None) -> None:
        self.clock, self.lane, self.loop = ManualClock(), Lane(), Loop()
        self.times = CpuTimes(0, 0) if times is None else times
        self.probe = LoopProbe(self.clock, self.lane, lambda: self.times, lambda: busy)
        self.probe.start(self.loop, threading.get_ident())

    def pass_time(self, ms: int, run_ms: int = 0, wait_ms: int = 0) -> None:
        self.clock.advance(ms * MS)
        if isinstance(self.times, CpuTimes):
            run_ns, wait_ns = self.times
            self.times = CpuTimes(run_ns + run_ms * MS, wait_ns + wait_ms * MS)

    def pauses(self) -> list[tuple[str, int, int]]:
        return [
            (fact.cause.value, fact.begin_ns // MS, fact.end_ns // MS)
            for fact in self.lane.drain()
            if isinstance(fact, HostPaused)
        ]


def test_beats_in_time_write_nothing() -> None:
    """Close together while somebody is served, seldom else."""
    probed, idle = Probed(), Probed(busy=False)
    for _ in range(5):
        probed.pass_time(BUSY_BEAT_NS // MS + 2)
        probed.loop.fire()

    assert probed.pauses() == []
    assert probed.loop.delay_s == BUSY_BEAT_NS / 1e9
    assert idle.loop.delay_s == IDLE_BEAT_NS / 1e9
    assert probed.probe.take_lag_max_ns() == 2 * MS
    assert probed.probe.take_lag_max_ns() == 0


def test_a_callback_that_computes_is_measured_by_what_the_thread_ran() -> None:
    """5 ms into the beat it began to compute for 200 ms: lateness alone says 155."""
    probed = Probed()
    probed.pass_time(205, run_ms=200)
    probed.loop.fire()

    assert probed.pauses() == [("loop_blocked", 5, 205)]


def test_a_callback_that_sleeps_is_placed_in_the_middle_of_what_is_possible() -> None:
    """It began between the last beat and the moment this one was due, 50 ms later."""
    probed = Probed()
    probed.pass_time(300, run_ms=1)
    probed.loop.fire()
    probed.pass_time(BUSY_BEAT_NS // MS)
    probed.loop.fire()

    assert probed.pauses() == [("loop_blocked", 25, 300)]


def test_frames_that_were_read_narrow_down_when_the_loop_blocked() -> None:
    """A frame came at 40 ms, the beat was due at 50: it began between these."""
    probed = Probed()
    probed.pass_time(40)
    probed.probe.alive()
    probed.pass_time(260, run_ms=1)
    probed.loop.fire()
    probed.probe.alive()

    assert probed.pauses() == [("loop_blocked", 45, 300)]


def test_the_first_frame_after_idling_starts_short_beats() -> None:
    """Served from 60 ms on, a sleep of 250 ms from 100 on: the beat of an idle gateway, due at
    250, would be 100 late only, and the 70 ms that were computed before would seem to fill it."""
    probed = Probed(busy=False)
    probed.pass_time(60, run_ms=2)
    probed.probe.alive()
    assert probed.loop.delay_s == BUSY_BEAT_NS / 1e9
    probed.pass_time(40, run_ms=38, wait_ms=20)
    probed.probe.alive()
    probed.pass_time(250, run_ms=1)
    probed.loop.fire()
    probed.probe.alive()

    assert probed.pauses() == [("loop_blocked", 105, 350)]


def test_an_unread_frame_narrows_down_when_the_loop_blocked() -> None:
    """It was sent at 44 ms, when the loop was blocked already; later frames add nothing."""
    probed = Probed()
    probed.pass_time(40)
    probed.probe.alive([step(0, 30, 39, [decode()])])
    probed.pass_time(260, run_ms=1)
    probed.loop.fire()
    probed.probe.alive([step(1, 39, 44, [decode()])])
    probed.probe.alive([step(2, 44, 47, [decode()])])

    assert probed.pauses() == [("loop_blocked", 42, 300)]


def test_a_pause_is_recorded_once_also_if_a_frame_is_read_before_the_late_beat() -> None:
    """The frame records the pause, and the beat does not record it again."""
    probed = Probed()
    probed.pass_time(300, run_ms=299)
    probed.probe.alive()
    probed.pass_time(1)
    probed.probe.alive()
    probed.loop.fire()
    probed.pass_time(50)
    probed.loop.fire()

    assert probed.pauses() == [("loop_blocked", 1, 300)]


def test_a_loop_that_had_no_cpu_was_not_blocked() -> None:
    probed = Probed()
    probed.pass_time(100, run_ms=5, wait_ms=90)
    probed.loop.fire()

    assert probed.pauses() == [("off_cpu", 5, 100)]


def test_without_cpu_times_lateness_is_still_measured() -> None:
    probed = Probed(times=Unavailable("no /proc"))
    probed.pass_time(120)
    probed.loop.fire()
    probed.probe.alive()

    assert probed.pauses() == [("loop_blocked", 25, 120)]


def test_each_beat_counts_only_its_own_cpu_times() -> None:
    """Earlier waits do not count again."""
    probed = Probed()
    probed.pass_time(100, wait_ms=90)
    probed.loop.fire()
    probed.pass_time(100, run_ms=95)
    probed.loop.fire()

    assert [cause for cause, _, _ in probed.pauses()] == ["off_cpu", "loop_blocked"]


def test_after_stop_a_late_timer_does_nothing() -> None:
    probed = Probed()
    probed.probe.stop()
    probed.pass_time(500)
    probed.loop.fire()

    assert probed.pauses() == []


def test_the_function_that_blocks_the_loop_is_named() -> None:
    """By another thread, while it blocks; none of its arguments is recorded."""
    probed = Probed()

    def block_the_loop() -> None:
        holding, seen = [], []

        def sample() -> None:
            while not holding:
                pass
            probed.probe.sample_stack()
            seen.append(True)

        looker = threading.Thread(target=sample)
        probed.pass_time(200)
        looker.start()
        holding.append(True)
        while not seen:
            pass
        looker.join()

    block_the_loop()
    probed.loop.fire()
    probed.probe.alive()

    (fact,) = probed.lane.drain()
    assert isinstance(fact, HostPaused)
    assert fact.detail.startswith(f"{__name__}.")
    assert fact.detail.endswith(".block_the_loop")


@pytest.fixture
def collector() -> Iterator[None]:
    """As Python has it at first; afterwards as the test's process had it."""
    thresholds, enabled, frozen = gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.unfreeze()
    if frozen:
        gc.freeze()
    gc.set_threshold(*thresholds)
    if enabled:
        gc.enable()


def test_a_collection_becomes_a_pause_with_its_generation(collector: None) -> None:
    """Real collections: of the callback's stamps, that of the collection itself."""
    lane, clock = Lane(), MonotonicClock()
    watch = GcWatch(HostProcess.ENGINE, lane, clock, least_ns=0)
    gc.disable()
    watch.install()
    before_ns = clock.now_ns()
    try:
        gc.collect()
        gc.collect(0)
    finally:
        watch.remove()
    after_ns = clock.now_ns()
    gc.collect()

    full, young = lane.drain()
    assert isinstance(full, HostPaused)
    assert isinstance(young, HostPaused)
    assert (full.process, full.cause) == (HostProcess.ENGINE, PauseCause.GC)
    assert full.detail.startswith("generation 2, ")
    assert young.detail.startswith("generation 0, ")
    assert before_ns <= full.begin_ns < full.end_ns <= young.begin_ns < after_ns


def test_short_collections_are_not_written() -> None:
    """In virtual time every collection takes none."""
    lane = Lane()
    watch = GcWatch(HostProcess.GATEWAY, lane, ManualClock())
    watch.install()
    try:
        gc.collect()
    finally:
        watch.remove()

    assert len(lane) == 0


def test_objects_of_the_load_are_never_scanned_by_the_collector_again(collector: None) -> None:
    """A collection after loading scans new objects only."""
    gc.disable()
    loaded = [[number] for number in range(1000)]
    settle_collector()

    assert gc.get_freeze_count() > len(loaded)
    assert gc.isenabled()
    assert gc.get_threshold()[0] > 700
