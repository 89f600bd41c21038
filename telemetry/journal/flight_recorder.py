"""The flight recorder: the journal in memory, its dumps, its files, and the stall watchdog.

It has a thread of its own, so that dumps are written and stalls detected while the engine is
stopped, a fold hangs or the gateway's event loop is blocked. Dumps are requested by
`request_dump` (which never blocks and is safe in a signal handler) or `dump`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from telemetry.facts.base import RecorderStats
from telemetry.facts.clock import Clock
from telemetry.facts.recorder import Lane
from telemetry.journal.dumps import KEPT, Dump, DumpReason, DumpRefused, Dumps
from telemetry.journal.journal import Journal
from telemetry.journal.journal_files import JournalFiles
from telemetry.journal.watchdog import StallWatchdog
from telemetry.pump.pump import Pump

log = logging.getLogger("phasescope.recorder")

_TICK_S = 0.25
_PUMP_WAIT_S = 1.0
_DUMP_DELAY_NS = 500_000_000
_JOIN_S = 5.0

CallOnLoop = Callable[[Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class _DumpRequest:
    """A requested dump; it is taken at `due_ns`, so that what follows a fault is in it."""

    reason: DumpReason
    requested_ns: int
    due_ns: int
    result: Future[Dump]


class FlightRecorder:
    """`journal` and `watchdog` are folds of the pump; `lane` has the facts of detected stalls.

    `call_on_loop` schedules a callback on the gateway's event loop, to see whether it answers.
    `server` is a word for the names of the dumps.
    """

    def __init__(
        self,
        clock: Clock,
        pump: Pump,
        journal: Journal,
        watchdog: StallWatchdog,
        dump_folder: Path,
        dumps_kept: int = KEPT,
        files: JournalFiles | None = None,
        call_on_loop: CallOnLoop | None = None,
        *,
        server: str,
    ) -> None:
        self.journal = journal
        self.watchdog = watchdog
        self.lane = Lane()
        self._clock = clock
        self._pump = pump
        self._dumps = Dumps(dump_folder, clock, self.frames, dumps_kept, server=server)
        self._files = files
        self._call_on_loop = call_on_loop
        self._loop_seen_ns: int | None = None
        self._deaths = 0
        self._requests: deque[_DumpRequest] = deque()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="phasescope-recorder", daemon=True)

    def attach(self) -> None:
        """Add the lane and the folds to the pump."""
        self._pump.add_lane(self.lane)
        self._pump.add_fold("journal", self.journal)
        self._pump.add_fold("watchdog", self.watchdog)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take the pending dumps and close the files, for a bounded time. Call it after the pump
        has stopped."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        for request in self._requests:
            request.result.cancel()
        if self._files is not None and not self._thread.is_alive():
            self.journal.seal()
            self._files.write(self.journal)
            self._files.close()

    def request_dump(self, reason: DumpReason) -> None:
        """Request a dump without waiting for it. Takes no lock: a signal handler may call it."""
        now_ns = self._clock.now_ns()
        wait_ns = _DUMP_DELAY_NS if reason is DumpReason.ENGINE_DIED else 0
        self._requests.append(_DumpRequest(reason, now_ns, now_ns + wait_ns, Future()))

    def dump(self, reason: DumpReason) -> Future[Dump]:
        """Request a dump at once. The future may raise DumpRefused or OSError."""
        now_ns = self._clock.now_ns()
        request = _DumpRequest(reason, now_ns, now_ns, Future())
        self._requests.append(request)
        self._wake.set()
        return request.result

    def frames(self, reason: str) -> list[bytes]:
        """The contents of a dump taken now, facts in the lanes included; nothing is written."""
        self._catch_up()
        return self.journal.frames(reason, self._pump.facts_lost)

    def stats(self) -> RecorderStats:
        dumps, files = self._dumps, self._files
        return RecorderStats(
            journal=self.journal.stats(),
            dumps={reason.value: dumps.written[reason] for reason in DumpReason},
            dumps_suppressed={reason.value: dumps.suppressed[reason] for reason in DumpReason},
            dumps_failed=dumps.failed,
            last_dump=dumps.last_path,
            stalls=self.watchdog.stalls,
            files_error=None if files is None else files.error,
            files_errors=0 if files is None else files.errors,
            files_pieces_lost=0 if files is None else files.pieces_lost,
        )

    def tick(self) -> None:
        """One iteration of the thread; also called by tests with their own clock."""
        self.journal.seal_if_old()
        if self._files is not None:
            self._files.write(self.journal)
        self._watch()
        self._take_dumps()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(_TICK_S)
            self._wake.clear()
            try:
                self.tick()
            except Exception:
                log.exception("the flight recorder goes on after an error")
        self._take_dumps(is_last=True)

    def _catch_up(self) -> None:
        """Feed the facts in the lanes to the folds, unless a fold blocks the pump. Readers have
        the lock between two pieces."""
        self._pump.run_once(wait_s=_PUMP_WAIT_S)

    def _watch(self) -> None:
        now_ns = self._clock.now_ns()
        if self._call_on_loop is not None:
            self._loop_seen_ns = self._loop_seen_ns or now_ns
            self._call_on_loop(self._loop_answered)
        if self.watchdog.is_stalled(now_ns):
            self._catch_up()  # a step may be in a lane
            silent_ns = None if self._loop_seen_ns is None else now_ns - self._loop_seen_ns
            stall = self.watchdog.check(now_ns, silent_ns)
            if stall is not None:
                log.warning(
                    "no step for %.1f s although %d sequences are live (engine process: %s)",
                    (stall.at_ns - stall.since_ns) / 1e9,
                    stall.sequences,
                    stall.process_state,
                )
                self.lane.append(stall)
                self.request_dump(DumpReason.STALL)
        if self.watchdog.deaths > self._deaths:
            self._deaths = self.watchdog.deaths
            self.request_dump(DumpReason.ENGINE_DIED)

    def _loop_answered(self) -> None:
        self._loop_seen_ns = self._clock.now_ns()

    def _take_dumps(self, is_last: bool = False) -> None:
        now_ns = self._clock.now_ns()
        for _ in range(len(self._requests)):
            request = self._requests.popleft()
            if request.due_ns > now_ns and not is_last:
                self._requests.append(request)
            else:
                self._take_dump(request)

    def _take_dump(self, request: _DumpRequest) -> None:
        if not request.result.set_running_or_notify_cancel():
            return  # the client that asked for it has left
        try:
            dump = self._dumps.write(request.reason, request.requested_ns)
        except DumpRefused as error:
            request.result.set_exception(error)
        except Exception as error:
            log.warning("a dump (%s) could not be written: %s", request.reason.value, error)
            request.result.set_exception(error)
        else:
            log.warning("dump (%s): %s, %d bytes", dump.reason.value, dump.path, dump.bytes)
            request.result.set_result(dump)
