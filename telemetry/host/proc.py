"""Numbers of a process and its machine, from /proc and /sys of Linux.

Parsers take the text of a file and raise ValueError if they cannot read it. A `Source` keeps its
file open, because opening is slow and a reading takes about a microsecond. Any file may be missing
on some machine, so a reading is a value or a reason.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from telemetry.facts.base import Unavailable

T = TypeVar("T")
_READ_BYTES = 4096
_NS_PER_US = 1000
_WORKER = b"VLLM::Worker"


class CpuTimes(NamedTuple):
    """For how long a thread ran, and for how long it was ready to run and waited, in ns."""

    run_ns: int
    wait_ns: int


def parse_schedstat(text: str) -> CpuTimes:
    """/proc/PID/task/TID/schedstat: run ns, wait ns, time slices."""
    run, wait, _ = text.split()
    return CpuTimes(int(run), int(wait))


def parse_steal_ns(text: str, ticks_per_s: int) -> int:
    """/proc/stat: the eighth number of its first line, all CPUs together."""
    words = text.split(maxsplit=9)
    if words[:1] != ["cpu"] or len(words) < 9:
        raise ValueError("no line for all CPUs with a column for steal")
    return int(words[8]) * 1_000_000_000 // ticks_per_s


def parse_pressure_ns(text: str) -> int:
    """/proc/pressure/*: total time in which at least one task was delayed."""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["some"]:
            for word in words[1:]:
                name, _, value = word.partition("=")
                if name == "total":
                    return int(value) * _NS_PER_US
    raise ValueError("no total of some tasks")


def parse_resident_bytes(text: str, page_bytes: int) -> int:
    """/proc/PID/statm: its second number counts the resident pages."""
    return int(text.split()[1]) * page_bytes


def parse_throttled_ns(text: str) -> int:
    """cpu.stat of a control group: microseconds in version 2, nanoseconds in version 1."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "throttled_usec":
            return int(value) * _NS_PER_US
        if name == "throttled_time":
            return int(value)
    raise ValueError("the control group states no throttling")


def cpu_stat_paths(own_groups: str) -> tuple[str, ...]:
    """Where the cpu.stat of our control group may lie, most likely first; `own_groups` is
    /proc/self/cgroup. In a container the path that it states may be of the host."""
    found: list[str] = []
    for line in own_groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        path = path.rstrip("/")
        if "cpu" in controllers.split(","):
            for mount in ("cpu", "cpu,cpuacct"):
                found[:0] = [f"/sys/fs/cgroup/{mount}{path}/cpu.stat"]
        elif number == "0" and not controllers:
            found += [f"/sys/fs/cgroup{path}/cpu.stat", f"/sys/fs/cgroup/unified{path}/cpu.stat"]
    found += ["/sys/fs/cgroup/cpu/cpu.stat", "/sys/fs/cgroup/cpu.stat"]
    return tuple(dict.fromkeys(found))


class Source(Generic[T]):
    """The first of `paths` that can be read and parsed. For one thread at a time."""

    def __init__(self, paths: Sequence[str], parse: Callable[[str], T]) -> None:
        self._paths = paths
        self._parse = parse
        self._fd: int | None = None
        self._missing: Unavailable | None = None

    def read(self) -> T | Unavailable:
        """The present value. A file that could not be opened is not tried again."""
        if self._missing is not None:
            return self._missing
        if self._fd is None:
            return self._open()
        try:
            return self._read(self._fd)
        except (OSError, ValueError) as error:
            self.close()
            return self._set_missing(error)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> T | Unavailable:
        fault: OSError | ValueError = OSError("there is no such file")
        for path in self._paths:
            with contextlib.ExitStack() as undo:
                try:
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    undo.callback(os.close, fd)
                    value = self._read(fd)
                except (OSError, ValueError) as error:
                    fault = error
                    continue
                undo.pop_all()
                self._fd = fd
                return value
        return self._set_missing(fault)

    def _read(self, fd: int) -> T:
        text = os.pread(fd, _READ_BYTES, 0).decode()
        try:
            return self._parse(text)
        except IndexError as error:
            raise ValueError(f"not understood: {text[:40]!r}") from error

    def _set_missing(self, fault: OSError | ValueError) -> Unavailable:
        why = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        self._missing = Unavailable(f"{self._paths[0]}: {why}")
        return self._missing


def thread_times(pid: int, thread_id: int) -> Source[CpuTimes]:
    """CPU times of a thread, of any process that may be read."""
    return Source([f"/proc/{pid}/task/{thread_id}/schedstat"], parse_schedstat)


def resident_bytes(pid: int) -> Source[int]:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return Source([f"/proc/{pid}/statm"], lambda text: parse_resident_bytes(text, page_bytes))


def steal_ns() -> Source[int]:
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return Source(["/proc/stat"], lambda text: parse_steal_ns(text, ticks_per_s))


def pressure_ns(resource: str) -> Source[int]:
    """`resource` is cpu, memory or io."""
    return Source([f"/proc/pressure/{resource}"], parse_pressure_ns)


def groups_of(pid: int | None = None) -> str:
    """The control groups of a process, None: of this one, as /proc states them; empty where they
    cannot be read."""
    try:
        return Path(f"/proc/{'self' if pid is None else pid}/cgroup").read_text()
    except OSError:
        return ""


def throttled_ns(groups: str | None = None) -> Source[int]:
    """For how long a control group was throttled: it had used up its CPU quota. `groups` are those
    of a process (`groups_of`), None: ours."""
    own = groups_of() if groups is None else groups
    return Source(cpu_stat_paths(own), parse_throttled_ns)


def worker_of(pid: int) -> int:
    """The process that computes for an engine core: vLLM's worker of the first rank where it has
    workers, else the core itself."""
    found: list[tuple[str, int]] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                title = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0]
                if title.startswith(_WORKER):
                    found.append((title.decode(errors="replace"), int(child)))
    return min(found)[1] if found else pid
