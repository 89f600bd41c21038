"""Helpers of drills: processes that act on the server from outside, and end with their drill."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.drills.outside import Helper
from lab.drills.pace import Beat, MachineSpeed, Pacer, paces, read_beats
from tests.support.children import children, forget_children, state_of
from tests.support.servers.server import eventually

_earlier_children = pytest.fixture(autouse=True)(forget_children)


def test_a_stopped_process_runs_again_when_its_stopper_ends() -> None:
    """It is stopped repeatedly, and always left running."""
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    stopper = Helper("stopper", victim.pid, 0.9, 1, -1)
    try:
        stopper.start()
        stopper.go()
        eventually(lambda: state_of(victim.pid) == "T", "a stop")
        asyncio.run(stopper.end())
        eventually(lambda: state_of(victim.pid) == "S", "sleep after the end")
    finally:
        victim.kill()
        victim.wait()


def test_a_helper_has_its_priority_before_it_shares_the_core() -> None:
    """There it may wait for seconds until it runs for the first time."""
    helper = Helper("busy", 4, -1)
    helper.start()
    try:
        (pid,) = children()
        eventually(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 4, "its nice value")
    finally:
        asyncio.run(helper.end())


@pytest.mark.skipif(os.geteuid() != 0, reason="a higher priority needs its permission")
def test_a_pacer_goes_before_what_it_measures(tmp_path: Path) -> None:
    """On a core that a server keeps busy it would have no beat for seconds, of which nothing would
    be known."""
    pacer = Pacer(tmp_path / "pace", -1)
    pacer.start()
    try:
        (pid,) = children()
        nice = max(-20, os.getpriority(os.PRIO_PROCESS, 0) - 10)
        eventually(lambda: os.getpriority(os.PRIO_PROCESS, pid) == nice, "its nice value")
    finally:
        asyncio.run(pacer.end())


def test_a_helper_that_was_never_started_ends() -> None:
    """An episode that breaks off before its fault leaves nothing behind."""
    helper = Helper("busy", 0, -1)
    helper.start()

    asyncio.run(helper.end())

    assert children() == []


def test_a_pacer_beats_until_it_is_ended(tmp_path: Path) -> None:
    """Each beat has its moment and the CPU time of two pieces of work."""

    async def run() -> list[Beat]:
        pacer = Pacer(tmp_path / "pace", -1)
        pacer.start()
        path = tmp_path / "pace"
        await asyncio.to_thread(eventually, lambda: len(read_beats(path)) >= 3, "three beats")
        return await pacer.end()

    beats = asyncio.run(run())
    moments = [beat.at_ns for beat in beats]

    assert moments == sorted(set(moments))
    assert all(beat.compute_ns > 0 and beat.memory_ns > 0 for beat in beats)
    assert children() == []


def test_paces_are_multiples_of_the_baseline_by_second() -> None:
    """A second without a beat is unknown; without any beat there are no paces."""
    second = 1_000_000_000
    times = {0: (10, 100), 1: (10, 100), 2: (15, 100), 4: (10, 220)}
    beats = [Beat((5 + at) * second + 7, *pair) for at, pair in times.items()]

    found = paces(beats, 5 * second, (0, 2), 5.0)
    assert found == ((1.0, 1.0), (1.0, 1.0), (1.5, 1.0), None, (1.0, 2.2))
    assert paces([], 5 * second, (0, 2), 5.0) == ()


def test_a_machine_is_slow_beside_the_stretch_before_an_alarm() -> None:
    """A core that was fast for a while and then as at first is slower than what was learnt; one
    that was slow for as long is not. Without such a stretch its baseline counts."""
    fast, first, slow = (0.7, 1.0), (1.0, 1.0), (1.0, 1.3)
    speed = MachineSpeed(40.0, [*[first] * 60, *[fast] * 50, *[first] * 60, *[slow] * 60])

    assert not speed.was_slow(50, 60)
    assert not speed.was_slow(60, 70)  # faster
    assert speed.was_slow(110, 120)
    assert not speed.was_slow(151, 160)
    assert speed.was_slow(170, 175)
    assert not speed.was_slow(215, 220)
    assert MachineSpeed(40.0, [slow] * 20).was_slow(4, 9)
    assert not MachineSpeed(40.0).was_slow(4, 9)
    assert MachineSpeed(40.0, taken={5, 6, 7}).was_slow(4, 8)
    assert not MachineSpeed(40.0, taken={5, 6}).was_slow(4, 8)


def test_a_second_without_a_beat_excuses_nothing_and_slows_nothing() -> None:
    """Neither in the alarm, where the core was fast before, nor in the stretch before it."""
    fast, slow = (0.7, 1.0), (0.9, 1.0)

    assert not MachineSpeed(40.0, [*[fast] * 40, *[None] * 10]).was_slow(40, 45)
    assert not MachineSpeed(40.0, [*[fast] * 40, None, fast, None, fast, None]).was_slow(40, 44)
    assert MachineSpeed(40.0, [*[fast, None] * 20, *[slow] * 10]).was_slow(40, 45)
    assert MachineSpeed(40.0, [*[fast] * 40, None, slow, None, slow, None]).was_slow(40, 44)
