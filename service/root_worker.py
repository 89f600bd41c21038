"""Replays the scheduler while something is wrong, in a process of its own that gives way.

What would have helped is found by running recorded seconds again several times over, which takes
seconds of a CPU. So a child with the lowest priority does it, on a dump of the record, and rests
so long afterwards that it never has more than its share of one core.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from diagnosis.classifier import Diagnosis
from telemetry.clock import Clock

log = logging.getLogger(__name__)

CPU_SHARE = 0.05
_LEAST_WINDOW_NS = 5_000_000_000
_LOOK_S = 0.5
_LIMIT_S = 120.0
_NICE = 19
NOTHING = b'{"state":"nothing is wrong, or not for long enough"}'


class RootWorker:
    """`frames` gives the file of a dump, `diagnosis` the present opinion; both may be called by
    this worker's thread. `answer` is the JSON of the last explanation."""

    def __init__(
        self,
        clock: Clock,
        diagnosis: Callable[[], Diagnosis],
        frames: Callable[[], list[bytes]],
        baseline: str | None,
    ) -> None:
        self.answer = NOTHING
        self.cpu_s = 0.0
        self._clock = clock
        self._diagnosis = diagnosis
        self._frames = frames
        self._baseline = baseline
        self._not_before_ns = 0
        self._stopped = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="phasescope-root", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Bounded: a child that is at work is ended."""
        self._stopped.set()
        child = self._child
        if child is not None:
            child.kill()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            if self._is_due():
                self._explain()

    def _is_due(self) -> bool:
        said = self._diagnosis()
        now_ns = self._clock.now_ns()
        if said.onset_ns is None or said.verdict != "fault" or now_ns < self._not_before_ns:
            return False
        return now_ns - said.onset_ns >= _LEAST_WINDOW_NS

    def _explain(self) -> None:
        with tempfile.TemporaryDirectory(prefix="phasescope-root-") as folder:
            path = Path(folder) / "now.journal"
            path.write_bytes(b"".join(self._frames()))
            begun_ns = self._clock.now_ns()
            found, cpu_s = self._ask(path)
        self.cpu_s += cpu_s
        rest_ns = int(cpu_s / CPU_SHARE * 1e9)
        self._not_before_ns = begun_ns + rest_ns
        if found is not None:
            self.answer = found

    def _ask(self, path: Path) -> tuple[bytes | None, float]:
        """The child's answer, None when it has none, and the CPU time that it took."""
        command = [sys.executable, "-m", "service.cli.main", "diagnose", str(path), "--root"]
        command += ["--json", *(["--baseline", self._baseline] if self._baseline else [])]
        before = os.times()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._child = subprocess.Popen(
            ["nice", "-n", str(_NICE), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        try:
            said, complaint = self._child.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            said, complaint = self._child.communicate()
        code, self._child = self._child.returncode, None
        after = os.times()
        spent_s = after.children_user + after.children_system
        spent_s -= before.children_user + before.children_system
        if code and not self._stopped.is_set():
            lines = complaint.decode(errors="replace").strip().splitlines()
            log.info("no root cause: %s", lines[-1] if lines else f"exit code {code}")
        return (said.strip() or None) if code == 0 else None, spent_s
