"""What would have helped, found beside a running server by a process that gives way."""

from __future__ import annotations

import json
from pathlib import Path

from server import eventually
from twin_cases import SECOND, twin

from diagnosis.classifier import Diagnoser, Diagnosis
from diagnosis.root import ACTIONS, REMEDIES, promises_of
from service.root_worker import CPU_SHARE, NOTHING, RootWorker
from telemetry.clock import MonotonicClock
from telemetry.journal import write_journal
from telemetry.records import fact_ns


def stalled(tmp_path: Path) -> tuple[bytes, Diagnosis]:
    """The record of a server twelve seconds into a fault, and what is said of it."""
    one = twin("host_stall", "collections")
    assert one.onset_ns is not None
    facts = [fact for fact in one.facts if fact_ns(fact) < one.onset_ns + 12 * SECOND]
    diagnoser = Diagnoser()
    diagnoser.on_facts(facts)
    path = tmp_path / "now.journal"
    write_journal(path, facts, MonotonicClock(), "test")
    return path.read_bytes(), diagnoser.diagnosis()


def test_a_fault_is_explained_once_and_then_the_worker_rests(tmp_path: Path) -> None:
    """It takes a twentieth of a core, however long the fault lasts."""
    record, said = stalled(tmp_path)
    taken: list[int] = []

    def frames() -> list[bytes]:
        taken.append(1)
        return [record]

    worker = RootWorker(MonotonicClock(), lambda: said, frames, None)
    worker.start()
    eventually(lambda: worker.answer != NOTHING, "an explanation", 60)
    worker.stop()
    found = json.loads(worker.answer)

    assert found["explanation"]["gains"][0]["cause"] == "stalls"
    assert "host_stall" in found["promises"]
    assert found["diagnosis"]["findings"][0]["symptom"] == "host_stall"
    assert len(taken) == 1
    assert worker.cpu_s > 0
    assert CPU_SHARE == 0.05


def test_nothing_is_replayed_while_nothing_is_wrong() -> None:
    healthy = Diagnosis((), 0, 0, True)

    def frames() -> list[bytes]:
        raise AssertionError("nobody asked")

    worker = RootWorker(MonotonicClock(), lambda: healthy, frames, None)
    worker.start()
    worker.stop()

    assert worker.answer == NOTHING


def test_a_record_that_cannot_be_replayed_leaves_no_answer(tmp_path: Path) -> None:
    _, said = stalled(tmp_path)
    broken: list[int] = []

    def frames() -> list[bytes]:
        broken.append(1)
        return [b"no journal"]

    worker = RootWorker(MonotonicClock(), lambda: said, frames, None)
    worker.start()
    eventually(lambda: broken, "the first try", 30)
    worker.stop()

    assert worker.answer == NOTHING


def test_every_action_has_a_remedy_and_a_promise_is_the_first_that_helps(tmp_path: Path) -> None:
    from diagnosis.counterfactual import Explanation, Gain
    from diagnosis.interventions import Cause

    _, said = stalled(tmp_path)
    gain = Gain(cause=Cause.STALLS, symptom="tpot_mean", gain=0.5, share=1.0, spared_ms=1200.0)
    explanation = Explanation(requests=9, moved={}, gains=(gain,), tried=(Cause.STALLS,))

    assert {cause for causes in ACTIONS.values() for cause in causes} <= set(REMEDIES)
    assert promises_of(said, explanation) == {
        "host_stall": f"{REMEDIES[Cause.STALLS]}: tpot_mean 50 % less, 1200 ms of requests' time"
    }
