"""Polls `/health` from a process of its own, and says how long the worst answer took.

A machine that is busy makes any server late. So the kernel is asked how long the gateway's main
thread and this one waited for a CPU meanwhile (`schedstat`, Linux): what is left of an answer's
time without that is the gateway's own stall. A sleep that overshoots is the poller's own lag.

    python -m benchmarks.fuzz_watch HOST PORT GATEWAY_PID     # until its standard input ends
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

POLL_S = 0.02
TIMEOUT_S = 60


@dataclass
class Watched:
    """What was seen; all times in ms. `stall_ms` is the worst answer without waits for a CPU."""

    polls: int = 0
    failed: int = 0
    answer_ms: float = 0.0
    stall_ms: float = 0.0
    cpu_wait_ms: float = 0.0
    lag_ms: float = 0.0


class HealthWatch:
    """`with HealthWatch(host, port, pid) as watch: ...; watch.seen` afterwards."""

    def __init__(self, host: str, port: int, gateway_pid: int) -> None:
        self._args = [host, str(port), str(gateway_pid)]
        self.seen = Watched()

    def __enter__(self) -> HealthWatch:
        command = [sys.executable, "-m", "benchmarks.fuzz_watch", *self._args]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        said, _none = self._process.communicate(timeout=2 * TIMEOUT_S)
        self.seen = Watched(**json.loads(said))


def watch(host: str, port: int, gateway_pid: int, over: threading.Event) -> Watched:
    """Poll until it is over."""
    seen = Watched()
    gateway = Path(f"/proc/{gateway_pid}/task/{gateway_pid}/schedstat")
    own = Path("/proc/thread-self/schedstat")
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    while not over.is_set():
        slept_ns = time.perf_counter_ns()
        time.sleep(POLL_S)
        begin_ns = time.perf_counter_ns()
        lag_ms = (begin_ns - slept_ns) / 1e6 - POLL_S * 1e3
        waits_ns = _wait_ns(gateway) + _wait_ns(own)
        begin_ns = time.perf_counter_ns()
        ok = _is_healthy(connection)
        answer_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        wait_ms = (_wait_ns(gateway) + _wait_ns(own) - waits_ns) / 1e6
        seen.polls += 1
        seen.failed += not ok
        seen.lag_ms = max(seen.lag_ms, lag_ms)
        seen.cpu_wait_ms = max(seen.cpu_wait_ms, wait_ms)
        seen.answer_ms = max(seen.answer_ms, answer_ms)
        seen.stall_ms = max(seen.stall_ms, answer_ms - wait_ms)
    return seen


def _is_healthy(connection: http.client.HTTPConnection) -> bool:
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return False
    return answer.status == 200


def _wait_ns(path: Path) -> int:
    """How long that thread has waited for a CPU so far; 0 where the system does not say."""
    try:
        return int(path.read_text().split()[1])
    except (OSError, IndexError):
        return 0


def main() -> None:
    host, port, pid = sys.argv[1:]
    over = threading.Event()

    def until_told() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=until_told, daemon=True).start()
    print(json.dumps(asdict(watch(host, int(port), int(pid), over))))


if __name__ == "__main__":
    main()
