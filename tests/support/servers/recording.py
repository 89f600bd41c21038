"""A flight recorder in a thread of the test, with a clock of its own."""

from __future__ import annotations

from pathlib import Path

from telemetry.facts.clock import ManualClock
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact
from telemetry.journal.dumps import Dump, DumpReason
from telemetry.journal.flight_recorder import CallOnLoop, FlightRecorder
from telemetry.journal.journal import Journal
from telemetry.journal.journal_files import JournalFiles
from telemetry.journal.journal_reader import open_journal
from telemetry.journal.watchdog import StallWatchdog
from telemetry.pump.pump import Pump

SECOND = 1_000_000_000


class Recording:
    """A recorder in a pump, driven by the test: `tick` is one iteration of its thread."""

    def __init__(
        self,
        folder: Path,
        kept: int = 16,
        capacity: int = 1 << 20,
        journal_folder: Path | None = None,
        stall_ns: int = 10 * SECOND,
        call_on_loop: CallOnLoop | None = None,
        server: str = "port8000",
    ) -> None:
        self.clock = ManualClock()
        self.lane = Lane()
        self.pump = Pump(self.clock)
        self.pump.add_lane(self.lane)
        self.folder = folder
        files = None
        if journal_folder is not None:
            files = JournalFiles(journal_folder, capacity, self.clock)
        self.recorder = FlightRecorder(
            self.clock,
            self.pump,
            Journal(self.clock, capacity),
            StallWatchdog(stall_ns),
            folder,
            kept,
            files,
            call_on_loop,
            server=server,
        )
        self.recorder.attach()

    def give(self, *facts: Fact) -> None:
        for fact in facts:
            self.lane.append(fact)

    def tick(self, after_ns: int = SECOND // 4) -> None:
        self.clock.advance(after_ns)
        self.pump.run_once()
        self.recorder.tick()

    def dump(self, reason: DumpReason = DumpReason.REQUEST) -> Dump:
        answer = self.recorder.dump(reason)
        self.recorder.tick()
        return answer.result(0)

    def dumps(self) -> list[Path]:
        return sorted(self.folder.glob("*.journal"))

    def reasons(self) -> list[str]:
        return [open_journal(path).header.reason for path in self.dumps()]


# Dumps
