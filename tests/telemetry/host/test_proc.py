"""What /proc and the control groups say: recorded texts, and this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from telemetry.facts.base import Unavailable
from telemetry.host import proc
from telemetry.host.proc import CpuTimes, Source
from tests.support.servers.server import eventually

STAT = "cpu  4384814 583550 375116 3917288 15364 0 4756 25910 0 0\ncpu0 2193047 291775 187558\n"
PRESSURE = (
    "some avg10=2.46 avg60=2.43 avg300=2.82 total=8391432816\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=17\n"
)
GROUP_V2 = (
    "usage_usec 1207641\nuser_usec 900000\nsystem_usec 307641\n"
    "nr_periods 120\nnr_throttled 7\nthrottled_usec 345678\n"
)
GROUP_V1 = "nr_periods 0\nnr_throttled 0\nthrottled_time 345678000\n"


def test_recorded_texts_are_read() -> None:
    """Ticks, pages and microseconds become nanoseconds and bytes."""
    assert proc.parse_schedstat("1144607 52 1\n") == CpuTimes(run_ns=1144607, wait_ns=52)
    assert proc.parse_steal_ns(STAT, ticks_per_s=100) == 259_100_000_000
    assert proc.parse_pressure_ns(PRESSURE) == 8_391_432_816_000
    assert proc.parse_resident_bytes("765 400 371 5 0 123 0\n", page_bytes=4096) == 1_638_400
    assert proc.parse_throttled_ns(GROUP_V2) == proc.parse_throttled_ns(GROUP_V1) == 345_678_000


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (lambda text: proc.parse_schedstat(text), "12\n"),
        (lambda text: proc.parse_steal_ns(text, 100), "cpu 1 2 3 4\n"),
        (lambda text: proc.parse_steal_ns(text, 100), "intr 1 2 3 4 5 6 7 8 9\n"),
        (lambda text: proc.parse_pressure_ns(text), "full avg10=0.00 total=5\n"),
        (lambda text: proc.parse_throttled_ns(text), "usage_usec 5\n"),
    ],
)
def test_an_unknown_text_is_refused(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(ValueError):  # noqa: PT011  (the words are for people)
        parse(text)


def test_the_control_group_is_looked_for_where_either_version_keeps_it() -> None:
    """A container may see the path of its host, so the mount's own root comes last."""
    own = "9:name=systemd:/\n4:memory:/pod/x\n2:cpu,cpuacct:/pod/x\n0::/pod/x\n"
    paths = proc.cpu_stat_paths(own)

    assert "/sys/fs/cgroup/cpu,cpuacct/pod/x/cpu.stat" in paths[:2]
    assert "/sys/fs/cgroup/cpu/pod/x/cpu.stat" in paths[:2]
    assert paths[-1] == "/sys/fs/cgroup/cpu.stat"
    assert proc.cpu_stat_paths("0::/pod/x\n")[0] == "/sys/fs/cgroup/pod/x/cpu.stat"


def test_the_first_file_that_can_be_read_is_kept_open(tmp_path: Path) -> None:
    missing, strange, good = tmp_path / "missing", tmp_path / "strange", tmp_path / "good"
    strange.write_text("nonsense")
    good.write_text("5")
    source = Source([str(missing), str(strange), str(good)], int)
    first = source.read()
    good.write_text("7")
    second = source.read()
    source.close()

    assert (first, second) == (5, 7)


def test_an_unreadable_file_has_a_reason_and_is_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "late"
    source = Source([str(path)], int)
    first = source.read()
    path.write_text("5")

    assert first == Unavailable(f"{path}: No such file or directory")
    assert source.read() is first


def test_the_worker_of_an_engine_core_is_the_first_of_its_children_with_that_title() -> None:
    assert proc.worker_of(os.getpid()) == os.getpid()
    code = ["-c", "input()"]
    with contextlib.ExitStack() as stack:
        found = [
            stack.enter_context(
                subprocess.Popen([title, *code], executable=sys.executable, stdin=subprocess.PIPE)
            )
            for title in ("VLLM::Worker_TP1", "VLLM::Worker_TP0", "resource_tracker")
        ]
        eventually(lambda: proc.worker_of(os.getpid()) == found[1].pid, "its title is read")
        for child in found:
            child.communicate(b"\n")


def test_the_quota_of_a_process_is_that_of_its_control_group() -> None:
    own = proc.groups_of()
    assert proc.groups_of(os.getpid()) == own
    assert proc.groups_of(1 << 30) == ""
    other = proc.cpu_stat_paths("0::/other\n")
    assert other[0] == "/sys/fs/cgroup/other/cpu.stat"


def test_this_machine_is_measured() -> None:
    """Each is a number or a reason; the CPU time of a thread grows with its work."""
    pid, thread_id = os.getpid(), threading.get_native_id()
    times, memory = proc.thread_times(pid, thread_id), proc.resident_bytes(pid)
    sources: list[Source[int]] = [
        proc.steal_ns(), proc.throttled_ns(), memory,
        *(proc.pressure_ns(name) for name in ("cpu", "memory", "io")),
    ]  # fmt: skip
    readings = [source.read() for source in sources]
    before = times.read()
    spent = sum(number * number for number in range(200_000))
    after = times.read()
    for source in (times, *sources):
        source.close()

    assert spent > 0
    assert all(isinstance(value, Unavailable) or value >= 0 for value in readings)
    if Path("/proc/self/schedstat").exists():
        assert isinstance(before, CpuTimes)
        assert isinstance(after, CpuTimes)
        assert after.run_ns > before.run_ns
        assert after.wait_ns >= before.wait_ns
    if Path("/proc/self/statm").exists():
        assert isinstance(readings[2], int)
        assert readings[2] > 10 << 20


def test_a_process_that_is_gone_has_no_times() -> None:
    """Its number may not even exist: no exception reaches the sampler."""
    found = proc.thread_times(1 << 22, 1 << 22).read()

    assert isinstance(found, Unavailable)
