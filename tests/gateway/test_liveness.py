"""The heartbeat of an engine that is stopped, stuck or busy, and what the gateway concludes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from itertools import groupby
from pathlib import Path

import pytest

from diagnosis.symptoms import Symptom
from diagnosis.verdicts.classifier import Diagnoser
from lab.twins.registry import TWINS
from service.config.settings import ConfigError, GatewayConfig
from service.gateway.engine_client.liveness import POLL_NS, EngineStatus, LivenessProbe
from service.gateway.engine_client.stacks import stacks_of
from service.process.heartbeat import Heartbeat, HeartbeatReader, HeartbeatSample, shared_file
from telemetry.facts.clock import ManualClock
from telemetry.facts.reasons import HangKind, StackSource
from telemetry.facts.records import EngineDied, EngineHung, EngineRecovered, Fact
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import read_journal
from tests.support.servers.served import started
from tests.support.servers.server import eventually
from tests.support.worlds.facts import MS, prefill, queued, step, submitted
from tests.support.worlds.twins.cases import top_of, twin, verdicts

SECOND = 1_000_000_000
DEADLINE_NS = 30 * SECOND


class WatchedEngine:
    """An engine that is polled four times a second."""

    def __init__(self, deadline_ns: int = DEADLINE_NS) -> None:
        self.liveness = LivenessProbe(deadline_ns)
        self.beats = self.iterations = 0
        self.busy_since_ns: int | None = None
        self._now_ns = 0

    def passes(
        self, seconds: float, *, beats: bool = True, iterations: bool = True, profiled: bool = False
    ) -> EngineStatus:
        """Time passes, with beats and iterations or without; the status at the end."""
        status = EngineStatus.ALIVE
        for _ in range(round(seconds * SECOND / POLL_NS)):
            self._now_ns += POLL_NS
            self.beats += beats
            self.iterations += iterations
            status = self.observe(profiled)
        return status

    def sleeps(self, seconds: float) -> None:
        """Nothing polls the engine for so long."""
        self._now_ns += int(seconds * SECOND)

    def observe(self, profiled: bool = False) -> EngineStatus:
        sample = HeartbeatSample(self.beats, self.iterations, self.busy_since_ns)
        return self.liveness.observe(self._now_ns, sample, profiled)


def test_an_engine_without_a_beat_is_silent_after_two_seconds_and_times_out_at_the_deadline() -> (
    None
):
    engine = WatchedEngine()
    assert engine.passes(60) is EngineStatus.ALIVE
    assert engine.passes(1.75, beats=False, iterations=False) is EngineStatus.ALIVE
    assert engine.passes(0.25, beats=False, iterations=False) is EngineStatus.SILENT
    assert engine.passes(27.75, beats=False, iterations=False) is EngineStatus.SILENT
    assert engine.passes(0.25, beats=False, iterations=False) is EngineStatus.TIMED_OUT


def test_an_engine_with_a_new_heartbeat_is_alive_again() -> None:
    engine = WatchedEngine()
    engine.passes(10)
    assert engine.passes(20, beats=False, iterations=False) is EngineStatus.SILENT
    assert engine.passes(0.25) is EngineStatus.ALIVE
    assert engine.passes(1.75, beats=False, iterations=False) is EngineStatus.ALIVE


def test_an_idle_engine_is_alive_by_its_heartbeat_alone() -> None:
    engine = WatchedEngine()
    engine.passes(1)
    assert engine.passes(600, iterations=False) is EngineStatus.ALIVE


def test_a_step_of_seconds_is_work_and_an_iteration_without_end_is_stuck() -> None:
    engine = WatchedEngine()
    engine.passes(1)
    engine.busy_since_ns = 1
    assert engine.passes(9.75, iterations=False) is EngineStatus.ALIVE
    assert engine.passes(0.25, iterations=False) is EngineStatus.STUCK
    assert engine.passes(19.75, iterations=False) is EngineStatus.STUCK
    assert engine.passes(0.25, iterations=False) is EngineStatus.TIMED_OUT


def test_an_engine_with_long_iterations_gets_three_times_as_long() -> None:
    """Three times the longest until it is called stuck, six times until it times out."""
    engine = WatchedEngine()
    engine.passes(1)
    engine.busy_since_ns = 1
    engine.passes(9, iterations=False)
    assert engine.passes(0.25) is EngineStatus.ALIVE
    assert engine.passes(26.75, iterations=False) is EngineStatus.ALIVE
    assert engine.passes(0.25, iterations=False) is EngineStatus.STUCK
    assert engine.passes(26, iterations=False) is EngineStatus.STUCK
    assert engine.passes(1, iterations=False) is EngineStatus.TIMED_OUT


def test_a_machine_that_was_suspended_as_a_whole_is_not_blamed_on_the_engine() -> None:
    """Nothing polled meanwhile: the gateway was paused, too."""
    engine = WatchedEngine()
    engine.passes(10)
    engine.sleeps(3600)
    assert engine.observe() is EngineStatus.ALIVE
    assert engine.passes(1, beats=False, iterations=False) is EngineStatus.ALIVE
    assert engine.passes(1) is EngineStatus.ALIVE


def test_no_engine_times_out_without_a_deadline() -> None:
    engine = WatchedEngine(deadline_ns=0)
    engine.passes(10)
    assert engine.passes(3600, beats=False, iterations=False) is EngineStatus.SILENT


def test_a_profile_that_is_being_written_is_waited_for() -> None:
    engine = WatchedEngine()
    engine.passes(10)
    assert engine.passes(7, beats=False, iterations=False, profiled=True) is EngineStatus.ALIVE
    assert engine.passes(2, beats=False, iterations=False, profiled=True) is EngineStatus.SILENT


@pytest.mark.parametrize("seconds", [-1.0, 0.5, 2.9, float("nan")])
def test_a_deadline_below_the_detection_time_of_a_hang_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="--engine-deadline"):
        GatewayConfig(engine_deadline_s=seconds).validate()


# --- the page that engine and gateway share ---


def test_the_reader_sees_an_iteration_and_that_the_engine_is_idle() -> None:
    number, clock = shared_file("test"), ManualClock(7)
    try:
        reader, heartbeat = HeartbeatReader(number), Heartbeat(number, clock)
        heartbeat.begin_iteration()
        assert reader.read() == HeartbeatSample(beats=0, iterations=1, busy_since_ns=7)
        heartbeat.idle()
        assert reader.read() == HeartbeatSample(beats=0, iterations=1, busy_since_ns=None)
        heartbeat.start()
        eventually(lambda: reader.read().beats >= 2, "beats")
        heartbeat.stop()
    finally:
        os.close(number)


# --- stacks of a real process that hangs ---

_ASLEEP = """
import ctypes, faulthandler, sys
from lab.twins.registry import TWINS
from service.process.heartbeat import STACKS_SIGNAL, Heartbeat
from telemetry.facts.clock import MonotonicClock

def holds_on(secret):
    while True:  # a signal cuts it short
        ctypes.{library}(None).sleep(600)

faulthandler.register(STACKS_SIGNAL, int(sys.argv[2]), all_threads=True)
heartbeat = Heartbeat(int(sys.argv[1]), MonotonicClock())
heartbeat.start()
heartbeat.begin_iteration()
holds_on("a prompt that nobody may read")
"""


@contextmanager
def sleeper(library: str) -> Iterator[tuple[int, HeartbeatReader, FileIO]]:
    """A process whose main thread is in C code: with the interpreter lock (PyDLL), or without."""
    page, stacks = shared_file("page"), FileIO(shared_file("stacks"), "r+")
    reader = HeartbeatReader(page)
    words = [sys.executable, "-c", _ASLEEP.format(library=library), str(page), str(stacks.fileno())]
    process = subprocess.Popen(words, pass_fds=(page, stacks.fileno()))
    try:
        eventually(lambda: reader.read().iterations, "its first iteration", 60)
        yield process.pid, reader, stacks
    finally:
        process.kill()
        process.wait()
        os.close(page)
        stacks.close()


def beats_within(reader: HeartbeatReader, seconds: float) -> int:
    before = reader.read().beats
    asyncio.run(asyncio.sleep(seconds))
    return reader.read().beats - before


def test_beats_go_on_during_a_long_call_that_releases_the_interpreter_lock() -> None:
    with sleeper("CDLL") as (_, reader, _stacks):
        eventually(lambda: reader.read().beats >= 3, "beats")


def test_a_call_that_holds_the_interpreter_lock_stops_beats_and_stacks_are_still_written() -> None:
    """The stacks name functions, and nothing that was handed to them."""
    with sleeper("PyDLL") as (pid, reader, written):
        eventually(lambda: beats_within(reader, 1.0) == 0, "the last beat")
        found = asyncio.run(stacks_of(pid, written))
        again = asyncio.run(stacks_of(pid, written))
    text = "\n".join(found.lines)

    assert found.source is StackSource.FAULTHANDLER
    assert "in holds_on" in text
    assert text.count("hread 0x") >= 2
    assert "prompt" not in text
    assert len(again.lines) == len(found.lines)


def test_the_stacks_of_a_stopped_process_say_that_it_is_stopped() -> None:
    """It runs no handler until it is continued, and is not made to: the signal would kill others
    that have none."""
    with sleeper("CDLL") as (pid, _, written):
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: "T" in Path(f"/proc/{pid}/stat").read_text().split()[2:3], "the stop")
        found = asyncio.run(stacks_of(pid, written))
        os.kill(pid, signal.SIGCONT)

    assert found.state == "T"
    assert found.source in (StackSource.KERNEL, StackSource.PY_SPY)
    assert any(f"Thread {pid} (" in line and "state T" in line for line in found.lines)
    assert "prompt" not in "\n".join(found.lines)


def test_a_process_that_has_ended_has_no_stacks() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with FileIO(shared_file("stacks"), "r+") as written:
        found = asyncio.run(stacks_of(process.pid, written))

    assert (found.state, found.source, found.lines) == (None, StackSource.NOBODY, ())


# --- the finding ---


def hung(at: int, kind: HangKind = HangKind.STOPPED) -> EngineHung:
    return EngineHung(
        at_ns=at * MS,
        since_ns=(at - 2000) * MS,
        kind=kind,
        sequences=3,
        engine_pid=77,
        process_state="T",
        stacks_source=StackSource.KERNEL,
        stacks=("Thread 77 (python): state T",),
    )


def busy() -> list[Fact]:
    return [started(0), submitted(at=2), queued(at=3), step(0, 4, 10, [prefill()])]


def said(facts: Sequence[Fact]) -> list[Symptom]:
    diagnoser = Diagnoser()
    diagnoser.on_facts(facts)
    return [finding.symptom for finding in diagnoser.diagnosis().findings]


def test_a_hung_engine_is_a_finding_with_its_stacks_at_once() -> None:
    diagnoser = Diagnoser()
    diagnoser.on_facts([*busy(), hung(3000)])
    (finding,) = diagnoser.diagnosis().findings

    assert finding.symptom is Symptom.ENGINE_HUNG
    assert finding.runbook == "runbooks/engine_hung.md"
    assert "stopped by a signal (process 77, state T)" in finding.claim
    assert finding.stacks[-1] == "Thread 77 (python): state T"


def test_the_finding_lasts_as_long_as_the_hang_and_some_seconds_more() -> None:
    """However long it goes on; whoever looks a moment after a replacement still learns why."""
    recovered = EngineRecovered(40_000 * MS, 1000 * MS)
    later = [step(1, 41_000, 41_010, [prefill()]), step(2, 60_000, 60_010, [prefill()])]
    died = EngineDied(33_000 * MS, -9, "did not respond for 30 s and was ended", 0)

    assert Symptom.ENGINE_HUNG in said([*busy(), hung(3000), step(1, 39_000, 39_500, [])])
    assert Symptom.ENGINE_HUNG not in said([*busy(), hung(3000), recovered, *later])
    assert Symptom.ENGINE_HUNG in said([*busy(), hung(3000), recovered])
    assert Symptom.ENGINE_HUNG in said([*busy(), hung(30_000), died])


def test_a_hang_is_kept_in_the_journal_and_read_back(tmp_path: Path) -> None:
    facts = [*busy(), hung(3000), EngineRecovered(4000 * MS, 1000 * MS)]
    write_journal(tmp_path / "run.journal", facts, ManualClock(), "request")

    assert list(read_journal(tmp_path / "run.journal")) == facts


@pytest.mark.parametrize("mechanism", TWINS["engine_hung"])
def test_a_simulated_engine_that_falls_silent_is_found_and_nothing_else_first(
    mechanism: str,
) -> None:
    one = twin("engine_hung", mechanism)
    told = verdicts(one)
    onset_ns = one.onset_ns
    assert onset_ns is not None
    found_ns = next(at_ns for at_ns, verdict in told if verdict.findings)
    named = [name for name, _ in groupby(top_of(verdict) for _, verdict in told)]

    assert onset_ns + 2 * SECOND <= found_ns < onset_ns + 3 * SECOND
    assert named == ["healthy", "engine_hung", "healthy"]
