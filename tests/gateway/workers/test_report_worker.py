"""A folder for each incident: when one is written, how many are kept, and what fails."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from diagnosis.symptoms import Finding, Symptom
from diagnosis.verdicts.classifier import Diagnosis
from service.composition.replay_child import ChildFailed, NiceChild
from service.composition.report_worker import (
    DUMP,
    REPORT,
    SETTLE_NS,
    STACKS,
    ReportWorker,
    report_families,
)
from service.composition.thread_stacks import both_stacks, gateway_stacks
from service.composition.worker_failures import WorkerFailure
from telemetry.facts.clock import ManualClock
from telemetry.journal.in_use import in_use, is_in_use
from tests.support.worlds.twins.cases import SECOND

HEALTHY = Diagnosis((), 0, 0, True)
MINUTE_NS = 60 * SECOND

# writes a report that says whether it was asked for without replays
WRITER = (
    "import sys\n"
    "path = sys.argv[sys.argv.index('-o') + 1]\n"
    "open(path, 'w').write('quick' if '--no-replay' in sys.argv else 'whole')\n"
    "print('written')"
)


def fault(symptom: Symptom) -> Diagnosis:
    finding = Finding(symptom=symptom, confidence=0.9, claim="", harm_ms=1.0, evidence=())
    return Diagnosis((finding,), 0, 0, False, verdict="fault")


OVERLOAD, STALL = fault(Symptom.QUEUE_OVERLOAD), fault(Symptom.HOST_STALL)


class World:
    """A worker whose looks are made by the test; `said` is the diagnosis."""

    def __init__(
        self,
        folder: Path,
        program: str = WRITER,
        kept: int = 8,
        limit_s: float = 30,
        server: str = "port8000",
    ) -> None:
        self.clock, self.said, self.asked = ManualClock(SECOND), HEALTHY, 0
        self.were_in_use: list[bool] = []  # unfinished folders, whenever stacks were asked for
        self.folder = folder / "incidents"
        self.worker = ReportWorker(
            self.clock, lambda: self.said, lambda: [b"a journal"], self._stacks,
            self.folder, kept, MINUTE_NS, ("--slo-file", "x"), (sys.executable, "-c", program),
            limit_s, server=server,
        )  # fmt: skip

    def _stacks(self) -> str:
        self.asked += 1
        self.were_in_use += map(is_in_use, self.folder.glob("*.partial"))
        return f"stacks {self.asked}"

    def look(self, said: Diagnosis, after_ns: int = SETTLE_NS) -> None:
        self.said = said
        self.clock.advance(after_ns)
        self.worker.tick()

    def incident(self, said: Diagnosis) -> None:
        """Long enough for a folder."""
        self.look(said)
        self.look(said)

    def names(self) -> list[str]:
        """Causes of the folders, oldest first."""
        found = sorted(self.folder.iterdir()) if self.folder.exists() else []
        return [path.name.split("-", 3)[3] for path in found]


def test_a_folder_has_report_dump_and_the_stacks_of_both_times(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.look(OVERLOAD)
    assert world.names() == []
    world.look(OVERLOAD)
    (folder,) = world.folder.iterdir()

    assert world.names() == ["queue_overload"]
    assert {path.name for path in folder.iterdir()} == {REPORT, DUMP, STACKS}
    assert (folder / REPORT).read_text() == "whole"
    assert (folder / DUMP).read_bytes() == b"a journal"
    assert "stacks 1" in (folder / STACKS).read_text()
    assert "stacks 2" in (folder / STACKS).read_text()
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_a_cause_that_is_over_at_once_has_a_folder_too(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.look(STALL)
    world.look(HEALTHY, SECOND // 2)

    assert world.names() == ["host_stall"]


def test_a_cause_that_follows_a_broken_promise_gives_the_folder_its_name(tmp_path: Path) -> None:
    """A promise that is broken says what it costs, and not why: its folder waits longer."""
    world, missed = World(tmp_path), fault(Symptom.SLO_MISSED)
    world.incident(missed)
    assert world.names() == []
    world.look(STALL)
    world.look(missed)
    assert world.names() == ["host_stall"]
    world.look(HEALTHY)
    world.look(HEALTHY, 40 * SECOND)
    world.clock.advance(MINUTE_NS)
    for _ in range(6):
        world.look(missed)

    assert world.names() == ["host_stall", "slo_missed"]


def test_a_lasting_fault_has_one_folder_and_a_new_incident_another(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(60):
        world.look(OVERLOAD)
    assert world.names() == ["queue_overload"]
    world.look(HEALTHY)
    world.look(HEALTHY, 40 * SECOND)
    world.clock.advance(MINUTE_NS)
    world.incident(OVERLOAD)

    assert world.worker.written == 2


def test_what_comes_too_soon_waits_and_is_counted_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.incident(OVERLOAD)
    for _ in range(4):
        world.look(STALL)
    assert world.worker.suppressed == 1
    assert world.names() == ["queue_overload"]
    world.clock.advance(MINUTE_NS)
    world.incident(STALL)

    assert world.names() == ["queue_overload", "host_stall"]
    assert world.worker.suppressed == 1


def test_the_oldest_folders_go_and_what_a_killed_server_left(tmp_path: Path) -> None:
    """In a container the one that was killed had the same process id."""
    world = World(tmp_path, kept=2)
    left = world.folder / f"20000101T000000Z-{os.getpid()}-0001-host_stall.partial"
    others = world.folder / "notes"
    for folder in (left, others):
        folder.mkdir(parents=True)
    (left / DUMP).write_bytes(b"")
    for number, symptom in enumerate(list(Symptom)[:4]):
        old = world.folder / f"2000010{number}T000000Z-port8000_1_a-0001-{symptom.value}"
        old.mkdir()
        (old / DUMP).write_bytes(b"")
    world.incident(OVERLOAD)

    names = {path.name for path in world.folder.iterdir()}
    assert "notes" in names
    assert left.name not in names
    assert len(names) == 3


def test_a_server_removes_no_folder_of_another_server(tmp_path: Path) -> None:
    """Two servers may have one folder for their reports, and each keeps as many."""
    World(tmp_path, server="port80001").incident(STALL)
    World(tmp_path, kept=1).incident(OVERLOAD)
    world = World(tmp_path, kept=1)
    world.incident(OVERLOAD)

    assert sorted(world.names()) == ["host_stall", "queue_overload"]


def test_a_folder_that_another_server_writes_stays(tmp_path: Path) -> None:
    """Two servers may have one folder for their reports."""
    world = World(tmp_path)
    theirs = world.folder / "20000101T000000Z-1-0001-host_stall.partial"
    theirs.mkdir(parents=True)
    (theirs / DUMP).write_bytes(b"")
    with in_use(theirs):
        world.incident(OVERLOAD)
        assert theirs.exists()
    world.look(HEALTHY)
    world.look(HEALTHY, 40 * SECOND)
    world.clock.advance(MINUTE_NS)
    world.incident(OVERLOAD)

    assert world.names() == ["queue_overload", "queue_overload"]


def test_a_folder_is_in_use_while_its_report_is_made(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.incident(OVERLOAD)

    assert world.were_in_use == [True]


@pytest.mark.parametrize(
    ("program", "reasons", "report"),
    [
        ("import sys; sys.exit('no such thing')", {"replay": 2}, None),
        ("import os; os.kill(os.getpid(), 9)", {"killed": 2}, None),
        ("import sys\nif '--no-replay' not in sys.argv: sys.exit('x')\n" + WRITER,
         {"replay": 1}, "quick"),
        ("import sys, time\nif '--no-replay' not in sys.argv: time.sleep(60)\n" + WRITER,
         {"timeout": 1}, "quick"),
    ],
    ids=["always", "killed", "without replays it works", "the replays take too long"],
)  # fmt: skip
def test_a_report_that_cannot_be_made_is_counted_and_the_rest_is_kept(
    tmp_path: Path, program: str, reasons: dict[str, int], report: str | None
) -> None:
    world = World(tmp_path, program, limit_s=1)
    world.incident(OVERLOAD)
    (folder,) = world.folder.iterdir()
    counted = {labels["reason"]: n for labels, n in report_families(world.worker)[2][1] if n}

    assert counted == reasons
    assert (folder / DUMP).exists()
    assert (folder / STACKS).exists()
    assert ((folder / REPORT).read_text() if (folder / REPORT).exists() else None) == report


def test_a_folder_that_cannot_be_written_is_counted_and_nothing_ends(tmp_path: Path) -> None:
    """Where the folder should be there is a file."""
    world = World(tmp_path)
    world.folder.write_text("in the way")
    world.worker.start()
    world.said = OVERLOAD
    done = threading.Event()
    for _ in range(100):
        world.clock.advance(SETTLE_NS)
        if world.worker.failures.last is not None:
            break
        done.wait(0.1)
    world.worker.stop()

    assert world.worker.failures.last is not None
    assert world.worker.written == 0


def test_a_folder_that_could_not_be_written_is_written_once_it_can_be(tmp_path: Path) -> None:
    """The fault lasts, and so does what is known of it; the pauses between attempts grow."""
    world = World(tmp_path)
    world.folder.write_text("in the way")
    tried: list[int] = []
    for _ in range(20):
        world.look(OVERLOAD, SECOND)
        failed = world.worker.failures.last
        tried.append(0 if failed is None else failed.attempts_failed)
    assert tried[-1] == 2
    world.folder.unlink()
    for _ in range(20):
        world.look(OVERLOAD, SECOND)

    assert world.names() == ["queue_overload"]
    assert world.worker.failures.last is None


def test_a_child_that_was_killed_before_it_began_does_not_run(tmp_path: Path) -> None:
    """A server that ends leaves no process behind."""
    ran = tmp_path / "ran"
    child = NiceChild(("touch",))
    child.kill()
    with pytest.raises(ChildFailed) as failed:
        child.run_command([str(ran)])

    assert failed.value.reason is WorkerFailure.KILLED
    assert not ran.exists()


def test_stacks_have_files_lines_and_functions_and_nothing_else() -> None:
    """A local of a frame, or the source of its line, could be a prompt."""
    canary, ready, end = "canary-of-a-prompt", threading.Event(), threading.Event()

    def holds(text: str) -> None:
        ready.set()
        end.wait()

    thread = threading.Thread(target=holds, args=(canary,), name="holder")
    thread.start()
    ready.wait()
    text = "\n".join(gateway_stacks())
    end.set()
    thread.join()

    assert "Thread holder (most recent call first):" in text
    assert "holds" in text
    assert Path(__file__).name in text
    assert canary not in text
    assert "end.wait()" not in text


def test_without_an_engine_the_stacks_say_so() -> None:
    assert both_stacks(None).rstrip().endswith("no engine process runs")
