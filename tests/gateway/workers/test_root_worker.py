"""What would have helped, found beside a running server by a process that gives way."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diagnosis.root_cause.root import ACTIONS, REMEDIES, promises_of
from diagnosis.symptoms import Finding, Symptom
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from service.composition import replay_child, root_cause_worker
from service.composition.root_cause_worker import NOTHING, RootCauseWorker
from service.composition.worker_failures import WorkerFailure, WorkerFailures
from telemetry.facts.clock import ManualClock, MonotonicClock
from telemetry.facts.records import fact_ns
from telemetry.journal.journal import write_journal
from tests.support.servers.server import eventually
from tests.support.worlds.twins.cases import SECOND, twin


@cache
def stalled() -> tuple[bytes, Diagnosis]:
    """The record of a server twelve seconds into a fault, and what is said of it."""
    one = twin("host_stall", "collections")
    assert one.onset_ns is not None
    facts = [fact for fact in one.facts if fact_ns(fact) < one.onset_ns + 12 * SECOND]
    diagnoser = Diagnoser()
    diagnoser.on_facts(facts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "now.journal"
        write_journal(path, facts, MonotonicClock(), "test")
        return path.read_bytes(), diagnoser.diagnosis()


class CountedClock(ManualClock):
    """Knows how often it was read: the worker reads it each time it looks whether it is due."""

    reads = 0

    def now_ns(self) -> int:
        self.reads += 1
        return super().now_ns()

    def until_looked_at(self, times: int) -> None:
        enough = self.reads + times
        eventually(lambda: self.reads >= enough, "another look at the clock")


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """At whether an explanation is due: every test here waits for that."""
    monkeypatch.setattr(root_cause_worker, "_POLL_S", 0.02)


@pytest.fixture
def same_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other tests a child of the lowest one would get no core for half a minute."""
    monkeypatch.setattr(replay_child, "_NICE", 0)


@pytest.mark.usefixtures("same_priority")
def test_a_fault_is_explained() -> None:
    record, said = stalled()
    worker = RootCauseWorker(MonotonicClock(), lambda: said, lambda: [record], None)
    worker.start()
    eventually(lambda: worker.answer != NOTHING, "an explanation", 60)
    worker.stop()
    found = json.loads(worker.answer)

    assert found["explanation"]["gains"][0]["cause"] == "stalls"
    assert "host_stall" in found["promises"]
    assert found["diagnosis"]["findings"][0]["symptom"] == "host_stall"


@pytest.mark.usefixtures("same_priority")
def test_the_answer_has_the_settings_that_would_meet_the_objectives(tmp_path: Path) -> None:
    """By the SLO classes of the server's own file; they are met here, so nothing is to be set."""
    record, said = stalled()
    classes = tmp_path / "slo.toml"
    classes.write_text("[classes.patient]\nttft_ms = 60000\nitl_ms = 60000\n")
    worker = RootCauseWorker(
        MonotonicClock(), lambda: said, lambda: [record], None, slo_file=str(classes)
    )
    worker.start()
    eventually(lambda: worker.answer != NOTHING, "an explanation", 60)
    worker.stop()
    settings = json.loads(worker.answer)["settings"]

    assert settings["recorded"].keys() == {"patient"}
    assert settings["present"]["classes"]["patient"]["good_share"] == 1.0
    assert settings["best"] is None


def test_a_broken_promise_is_explained_by_the_onset_of_its_finding() -> None:
    """Nothing has changed since the start, so the diagnosis itself has no onset."""
    missed = Finding(
        symptom=Symptom.QUEUE_OVERLOAD, confidence=0.9, claim="", harm_ms=1.0, evidence=(),
        onset_ns=90 * SECOND,
    )  # fmt: skip
    said = Diagnosis((missed,), 0, 0, False, verdict="fault")
    clock, taken = CountedClock(94 * SECOND), list[int]()

    def frames() -> list[bytes]:
        taken.append(clock.now_ns())
        return []

    worker = RootCauseWorker(clock, lambda: said, frames, None, ("/not/there",))
    worker.start()
    clock.until_looked_at(3)
    early = list(taken)
    clock.advance(2 * SECOND)
    eventually(lambda: bool(taken), "an attempt")
    worker.stop()

    assert early == []


@pytest.mark.usefixtures("same_priority")
def test_after_an_explanation_the_worker_rests_for_twenty_times_the_cpu_that_it_took() -> None:
    """However long the fault lasts, it takes a twentieth of a core."""
    _, said = stalled()
    assert said.onset_ns is not None
    clock = CountedClock(said.onset_ns + 12 * SECOND)
    taken: list[int] = []

    def frames() -> list[bytes]:
        taken.append(clock.now_ns())
        return []

    work = "n = 4_000_000\nwhile n: n -= 1\nprint('{}')"
    worker = RootCauseWorker(clock, lambda: said, frames, None, (sys.executable, "-c", work))
    worker.start()
    eventually(lambda: worker.answer != NOTHING, "an explanation", 30)
    clock.until_looked_at(3)
    rest_ns = 20 * int(worker.cpu_s * SECOND)
    clock.advance(rest_ns * 9 // 10)
    clock.until_looked_at(3)
    assert len(taken) == 1
    clock.advance(rest_ns // 5)
    eventually(lambda: len(taken) > 1, "another explanation", 30)
    worker.stop()

    assert rest_ns > 0


@pytest.mark.parametrize(
    "said",
    [
        Diagnosis((), 0, 0, True),
        Diagnosis((), 0, 0, False, verdict="indeterminate", onset_ns=1),
        Diagnosis((), 0, 0, False, verdict="fault", onset_ns=96 * SECOND),
    ],
    ids=["healthy", "not known", "not for long enough"],
)
def test_nothing_is_replayed_while_nothing_is_wrong_or_not_for_long_enough(said: Diagnosis) -> None:
    clock, taken = CountedClock(100 * SECOND), list[int]()

    def frames() -> list[bytes]:
        taken.append(1)
        return []

    worker = RootCauseWorker(clock, lambda: said, frames, None, ("/not/there",))
    worker.start()
    clock.until_looked_at(3)
    worker.stop()

    assert taken == []
    assert worker.answer == NOTHING


@pytest.mark.usefixtures("same_priority")
def test_a_record_that_cannot_be_replayed_is_told() -> None:
    _, said = stalled()
    found = failure_of(worker_of(said, b"no journal"))

    assert found["reason"] == "replay"
    assert "not a phasescope journal" in found["error"]


def test_every_action_has_a_remedy_and_a_promise_is_the_first_that_helps() -> None:
    from diagnosis.root_cause.counterfactual import Explanation, Gain
    from diagnosis.root_cause.interventions import Cause

    _, said = stalled()
    gain = Gain(cause=Cause.STALLS, symptom="tpot_mean", gain=0.5, share=1.0, spared_ms=1200.0)
    explanation = Explanation(requests=9, moved={}, gains=(gain,), tried=(Cause.STALLS,))

    assert {cause for causes in ACTIONS.values() for cause in causes} <= set(REMEDIES)
    assert promises_of(said, explanation) == {
        "host_stall": f"{REMEDIES[Cause.STALLS]}: tpot_mean 50 % less, 1200 ms of requests' time"
    }


def worker_of(
    said: Diagnosis, record: bytes, child: tuple[str, ...] | None = None, limit_s: float = 60
) -> RootCauseWorker:
    child = child or (sys.executable, "-m", "service.cli.main")
    return RootCauseWorker(MonotonicClock(), lambda: said, lambda: [record], None, child, limit_s)


def failure_of(worker: RootCauseWorker) -> dict[str, Any]:
    """How the first attempt fails."""
    worker.start()
    eventually(lambda: worker.failures.last, "the first failure", 30)
    assert worker.is_alive
    found: dict[str, Any] = json.loads(worker.answer)["failure"]
    counted = {labels["reason"]: n for labels, n in worker.failures.families()[0][1]}
    worker.stop()
    assert counted[found["reason"]] == 1
    return found


def test_a_full_disk_is_told_and_the_worker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here there is no folder for temporary files at all."""
    _, said = stalled()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    found = failure_of(worker_of(said, b""))

    assert found["reason"] == "disk"
    assert "Free space" in found["what_to_do"]
    assert found["again_in_s"] == 5.0


def test_without_the_command_nice_the_child_is_given_the_lowest_priority_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, said = stalled()
    monkeypatch.setenv("PATH", str(tmp_path))
    program = "import os\nwhile os.nice(0) < 19: pass\nprint('{\"nice\": %d}' % os.nice(0))"
    worker = worker_of(said, b"", (sys.executable, "-c", program))
    worker.start()
    eventually(lambda: worker.answer != NOTHING, "an answer", 30)
    worker.stop()

    assert json.loads(worker.answer) == {"nice": 19}


@pytest.mark.parametrize(
    ("child", "reason", "error"),
    [
        (("/not/there",), "start", "/not/there"),
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), "killed", "signal 9"),
        ((sys.executable, "-c", "import sys; sys.exit('no such thing')"), "replay", "no such"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "timeout", "longer than 2 s"),
    ],
)
def test_a_child_that_gives_no_answer_is_told_with_why(
    child: tuple[str, ...], reason: str, error: str
) -> None:
    _, said = stalled()
    found = failure_of(worker_of(said, b"", child, 2))

    assert found["reason"] == reason
    assert error in found["error"]


def test_what_the_diagnosis_or_the_recorder_raises_does_not_end_the_worker() -> None:
    _, said = stalled()

    def broken() -> Any:
        raise KeyError("broken")

    for worker in (
        RootCauseWorker(MonotonicClock(), broken, lambda: [], None),
        RootCauseWorker(MonotonicClock(), lambda: said, broken, None),
    ):
        assert failure_of(worker)["reason"] == "internal"


def test_attempts_that_fail_are_made_ever_more_seldom_and_logged_once_a_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = WorkerFailures()
    with caplog.at_level(logging.WARNING):
        waits_s = [failures.note(WorkerFailure.DISK, "full") / 1e9 for _ in range(9)]

    assert waits_s == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    assert len(caplog.records) == 1
    failures.forget()
    assert failures.last is None
    assert failures.note(WorkerFailure.DISK, "full") == 5_000_000_000
