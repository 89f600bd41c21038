"""The sampler: one record of the machine a second, and what is missing says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from telemetry.facts.base import Unavailable
from telemetry.facts.clock import ManualClock, MonotonicClock
from telemetry.facts.host_records import HostSampled
from telemetry.facts.recorder import Lane
from telemetry.host import proc
from telemetry.host.host import SAMPLE_NS, HostSampler
from telemetry.host.loop_probe import LoopProbe
from telemetry.host.proc import Source
from telemetry.pump.pump import Pump
from tests.support.servers.server import eventually


class Sampled:
    """A real sampler over real files of this process, ticked by the test."""

    def __init__(self, engine_pid: int | None) -> None:
        self.engine_pid = engine_pid
        self.clock, self.lane = ManualClock(), Lane()
        unmeasured = Unavailable("not here")
        probe = LoopProbe(self.clock, Lane(), lambda: unmeasured, lambda: False)
        self.sampler = HostSampler(self.clock, self.lane, probe, lambda: self.engine_pid)

    def ticks(self, count: int, each_ns: int = SAMPLE_NS // 10) -> None:
        for _ in range(count):
            self.clock.advance(each_ns)
            self.sampler.tick()

    def samples(self) -> list[HostSampled]:
        return [fact for fact in self.lane.drain() if isinstance(fact, HostSampled)]


def test_a_second_of_ticks_is_one_sample() -> None:
    sampled = Sampled(engine_pid=None)
    sampled.ticks(25)
    sampled.sampler.close()

    first, second = sampled.samples()
    assert (first.window_ns, second.window_ns) == (SAMPLE_NS, SAMPLE_NS)
    assert second.at_ns == 2 * SAMPLE_NS


def test_a_missing_value_has_its_reason_once() -> None:
    """Without an engine its times are unavailable, not 0; the reason comes when it is new."""
    sampled = Sampled(engine_pid=None)
    sampled.ticks(20)
    sampled.engine_pid = os.getpid()
    sampled.ticks(20)
    sampled.sampler.close()

    first, second, third, fourth = sampled.samples()
    assert first.engine_run_ns is None
    assert first.unavailable["engine_run_ns"] == "no engine is ready"
    assert "engine_run_ns" not in second.unavailable
    assert third.unavailable.get("engine_run_ns") == "the first of two readings was just taken"
    assert fourth.engine_run_ns is not None
    assert fourth.engine_resident_bytes is not None
    assert fourth.gateway_resident_bytes is not None
    assert fourth.loop_lag_max_ns == 0


def test_the_quota_that_counts_is_that_of_the_engines_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, engines = tmp_path / "ours", tmp_path / "engine"
    for path in (ours, engines):
        path.write_text("throttled_usec 0\n")
    monkeypatch.setattr(proc, "groups_of", lambda pid=None: str(engines if pid else ours))
    monkeypatch.setattr(
        proc, "throttled_ns", lambda groups: Source([groups], proc.parse_throttled_ns)
    )
    sampled = Sampled(engine_pid=os.getpid())
    sampled.ticks(20)
    engines.write_text("throttled_usec 30000\n")
    sampled.ticks(10)
    sampled.sampler.close()

    assert sampled.samples()[-1].throttled_ns == 30_000_000


def test_an_engine_that_is_moved_to_another_control_group_has_the_quota_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an operator does who puts it into a slice while it runs."""
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.write_text("throttled_usec 0\n")
    groups = [str(first)]
    monkeypatch.setattr(proc, "groups_of", lambda pid=None: groups[-1])
    monkeypatch.setattr(
        proc, "throttled_ns", lambda groups: Source([groups], proc.parse_throttled_ns)
    )
    sampled = Sampled(engine_pid=os.getpid())
    sampled.ticks(20)
    groups.append(str(second))
    sampled.ticks(20)
    second.write_text("throttled_usec 30000\n")
    sampled.ticks(10)
    sampled.sampler.close()

    assert sampled.samples()[-1].throttled_ns == 30_000_000


def test_the_pump_ticks_the_sampler_when_it_is_awake_anyway() -> None:
    clock, lane = MonotonicClock(), Lane()
    unmeasured = Unavailable("not here")
    probe = LoopProbe(clock, Lane(), lambda: unmeasured, lambda: False)
    sampler, pump = HostSampler(clock, lane, probe, lambda: None), Pump(clock)
    pump.add_tick(sampler.tick)
    pump.start()
    eventually(lambda: len(lane) >= 1, "the first sample")
    pump.stop()
    sampler.close()

    assert isinstance(lane.drain()[-1], HostSampled)


def test_a_tick_of_the_pump_that_raises_three_times_is_detached_and_folding_goes_on() -> None:
    calls: list[str] = []

    def broken() -> None:
        calls.append("broken")
        raise OSError("no more files")

    pump = Pump(MonotonicClock())
    pump.add_tick(broken)
    pump.add_tick(lambda: calls.append("sound"))
    pump.start()
    eventually(lambda: calls.count("sound") >= 5, "five ticks")
    pump.stop()

    assert calls.count("broken") == 3
    assert pump.detached == ("turn_broken",)
