"""The stall watchdog: an engine that lives and has work, and commits no step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from telemetry.facts.adapter_records import AdapterEvicted, AdapterLoaded
from telemetry.facts.engine_records import (
    EngineIdled,
    GrammarCompiled,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
)
from telemetry.facts.fleet.kv_transfer_records import KvAdmitted, KvFault, KvLost, KvReserved
from telemetry.facts.records import EngineDied, Fact, StallDetected
from telemetry.journal.journal_reader import read_journal
from telemetry.journal.watchdog import StallWatchdog, process_state
from tests.support.servers.recording import SECOND, Recording
from tests.support.servers.served import started
from tests.support.worlds.facts import (
    MS,
    decode,
    prefill,
    queued,
    sequence_ended,
    step,
    submitted,
)


def busy() -> list[Fact]:
    """An engine with one request that has got its first token at 10 ms."""
    return [started(0), submitted(at=2), queued(at=3), step(7, 4, 10, [prefill()])]


def test_an_engine_that_commits_no_step_although_it_has_work_is_stalled_once(
    tmp_path: Path,
) -> None:
    recording = Recording(tmp_path)
    recording.give(*busy())
    for _ in range(4 * 30):
        recording.tick()
    (path,) = recording.dumps()
    (stall,) = [fact for fact in read_journal(path) if isinstance(fact, StallDetected)]

    assert stall.since_ns == 10 * MS
    assert 10 * SECOND <= stall.at_ns - stall.since_ns < 10.5 * SECOND
    assert (stall.last_step_id, stall.sequences, stall.engine_pid) == (7, 1, 77)
    assert recording.reasons() == ["stall"]
    assert recording.recorder.stats().stalls == 1


@pytest.mark.parametrize("loop_answers", [True, False])
def test_a_stall_records_whether_the_gateways_own_loop_was_blocked(
    tmp_path: Path, loop_answers: bool
) -> None:
    """A blocked loop reads no frames of the engine; then the engine is not the cause."""
    recording = Recording(
        tmp_path, call_on_loop=lambda callback: callback() if loop_answers else None
    )
    recording.give(*busy())
    for _ in range(4 * 12):
        recording.tick()
    (path,) = recording.dumps()
    (stall,) = [fact for fact in read_journal(path) if isinstance(fact, StallDetected)]

    assert stall.loop_silent_ns is not None
    assert (stall.loop_silent_ns > 9 * SECOND) is not loop_answers


def test_the_next_step_ends_a_stall_and_a_second_stall_is_recorded(tmp_path: Path) -> None:
    recording = Recording(tmp_path)
    recording.give(*busy())
    for at in (12_000, 40_000):
        for _ in range(4 * 12):
            recording.tick()
        recording.give(step(8, at - 1, at, [decode()]))

    assert recording.recorder.stats().stalls == 2


@pytest.mark.parametrize(
    "after",
    [
        [sequence_ended(at=11)],
        [SequencePaused(1, 11 * MS, 8)],
        [EngineDied(11 * MS, 1, "exited", 0)],
        [EngineIdled(5000 * MS, 0, 0, 0, 0, 10)],
    ],
    ids=["ended", "paused by its reader", "engine dead", "nothing lives in the engine"],
)
def test_an_engine_without_work_that_it_could_do_is_not_stalled(after: list[Fact]) -> None:
    watchdog = StallWatchdog(10 * SECOND)
    watchdog.on_facts([*busy(), *after])

    assert watchdog.check(100 * SECOND) is None


def test_an_engine_whose_steps_are_long_is_given_three_times_the_longest() -> None:
    """A slow machine is not a stalled one; a stall's own length does not count."""
    watchdog = StallWatchdog(10 * SECOND)
    watchdog.on_facts([started(0), submitted(at=2), step(0, 4, 9004, [prefill()])])
    assert not watchdog.is_stalled(35 * SECOND)
    assert watchdog.check(37 * SECOND) is not None
    watchdog.on_facts([step(1, 9004, 60_000, [decode()])])

    assert not watchdog.is_stalled(86 * SECOND)
    assert watchdog.is_stalled(88 * SECOND)


def test_work_counts_from_when_it_can_start() -> None:
    """A grammar that compiles and a reader that pauses stop the clock."""
    watchdog = StallWatchdog(10 * SECOND)
    constrained = SequenceQueued(1, 3 * MS, 0, 4, 16, "", constrained=True)
    watchdog.on_facts([started(0), submitted(at=2), constrained])
    assert not watchdog.is_stalled(60 * SECOND)
    watchdog.on_facts([GrammarCompiled(1, 60 * SECOND, 1, 60 * SECOND, False, False)])
    assert not watchdog.is_stalled(69 * SECOND)
    assert watchdog.is_stalled(70 * SECOND)
    watchdog.on_facts([SequencePaused(1, 70 * SECOND, 1)])
    assert not watchdog.is_stalled(200 * SECOND)
    watchdog.on_facts([SequenceResumed(1, 200 * SECOND, 1)])
    assert watchdog.is_stalled(210 * SECOND)


@pytest.mark.parametrize("came", [True, False])
def test_a_prompt_that_another_engine_computes_is_no_work_of_this_one(came: bool) -> None:
    """It is again when its KV has come, or does not come; a grammar that is compiled meanwhile
    changes nothing."""
    watchdog = StallWatchdog(10 * SECOND)
    queued = SequenceQueued(1, 3 * MS, 0, 4, 16, "", receives_kv=7)
    watchdog.on_facts([started(0), submitted(at=2), queued, KvReserved(1, 3 * MS, 0, 7, 3, 0)])
    watchdog.on_facts([GrammarCompiled(1, 4 * MS, 1, 1, False, False)])
    assert not watchdog.is_stalled(60 * SECOND)
    at_ns = 60 * SECOND
    over = KvAdmitted(1, at_ns, 0, 7) if came else KvLost(1, at_ns, 0, 7, KvFault.LEASE)
    watchdog.on_facts([over])
    assert not watchdog.is_stalled(69 * SECOND)
    assert watchdog.is_stalled(70 * SECOND)


ADAPTER_THEN = [AdapterLoaded(90 * SECOND, 1, 3, 100, 1, (1,))]
RESUMED_THEN = [SequenceResumed(1, 90 * SECOND, 1)]


@pytest.mark.parametrize(
    ("awaits_adapter", "before", "then"),
    [
        (True, [], ADAPTER_THEN),
        (False, [AdapterEvicted(4 * MS, 1, 3, 100, 4, (1,))], ADAPTER_THEN),
        (False, [SequencePaused(1, 4 * MS, 1)], RESUMED_THEN),
    ],
    ids=["its adapter is read", "its adapter is not placed any more", "its client pauses"],
)
def test_a_grammar_that_is_compiled_frees_no_sequence_that_something_else_blocks(
    awaits_adapter: bool, before: list[Fact], then: list[Fact]
) -> None:
    watchdog = StallWatchdog(10 * SECOND)
    waiting = SequenceQueued(
        1, 3 * MS, 0, 4, 16, "", constrained=True, adapter=3, awaits_adapter=awaits_adapter
    )
    watchdog.on_facts([started(0), submitted(at=2), waiting, *before])
    watchdog.on_facts([GrammarCompiled(1, 5 * MS, 1, 1, False, False)])
    assert not watchdog.is_stalled(90 * SECOND)
    watchdog.on_facts(then)
    assert not watchdog.is_stalled(99 * SECOND)
    assert watchdog.is_stalled(100 * SECOND)


def test_a_request_that_the_engine_never_took_is_a_stall_too() -> None:
    """The engine hung while it was idle: only the gateway knows of the work."""
    watchdog = StallWatchdog(10 * SECOND)
    watchdog.on_facts([started(0), EngineIdled(1000 * MS, 0, 0, 0, 0, 10), submitted(at=5000)])

    assert watchdog.check(14 * SECOND) is None
    assert watchdog.check(15 * SECOND) is not None


def test_zero_seconds_turn_the_watchdog_off() -> None:
    watchdog = StallWatchdog(0)
    watchdog.on_facts(busy())

    assert watchdog.check(1000 * SECOND) is None


def test_the_state_of_a_process_is_the_kernels_letter() -> None:
    assert process_state(os.getpid()) == "R"
    assert process_state(2**22 + 1) is None


# On disk
