"""Conditions of the machine during an episode; with other load on it the episode does not count."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from telemetry.facts.base import Unavailable
from telemetry.facts.clock import Clock
from telemetry.host.proc import pressure_ns, steal_ns
from telemetry.numbers.quantiles import quantile

LAG_LIMIT_MS = 5.0
LONG_LAG_LIMIT_MS = 25.0
"""Where requests may be late by seconds: in a fault, which may keep the clients' own core busy with
large bodies or crowds, and in hours of traffic near the capacity. It is little beside a harm of
half of a first token's usual time. Lateness is the client's own, before it has sent anything: a
slow server does not add to it."""
STEAL_LIMIT = 0.10
FOREIGN_LIMIT = 0.10
_BUSY_COLUMNS = (1, 2, 3, 6, 7)  # user, nice, system, irq, softirq of /proc/stat
_PARENT, _OWN_TICKS, _ENDED_CHILDREN_TICKS = 1, (11, 12), (13, 14)  # of /proc/PID/stat


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of the machine at one moment, in ns; None is not measured."""

    at_ns: int
    busy_ns: int | None
    own_ns: int
    steal_ns: int | None
    pressure_ns: int | None


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The machine over a span. Shares are of one core's time; None is not measured, as the lag of
    a span in which no request was due.

    `foreign` is the CPU time of processes that do not belong to the drill, `pressure` the time in
    which at least one task waited for a CPU, `steal` the time that other guests of the hypervisor
    took.
    """

    lag_p99_ms: float | None
    foreign: float | None
    steal: float | None
    pressure: float | None

    def discard_reasons(self, lag_limit_ms: float = LAG_LIMIT_MS) -> list[str]:
        """Why an episode under these conditions does not count; clients may be so late."""
        found = [*self.lag_reasons(lag_limit_ms), *self.steal_reasons()]
        if self.foreign is not None and self.foreign > FOREIGN_LIMIT:
            found.append(f"other processes took {100 * self.foreign:.0f} % of a core")
        return found

    def lag_reasons(self, lag_limit_ms: float) -> list[str]:
        """The same for late clients only."""
        if self.lag_p99_ms is None or self.lag_p99_ms <= lag_limit_ms:
            return []
        return [f"clients were late by {self.lag_p99_ms:.1f} ms at p99"]

    def steal_reasons(self) -> list[str]:
        """The same for steal time only, which no drill can cause."""
        if self.steal is None or self.steal <= STEAL_LIMIT:
            return []
        return [f"{100 * self.steal:.1f} % of a core was stolen"]


def read(clock: Clock, pids: Iterable[int], cores: Collection[int]) -> Reading:
    """Read the machine's counters. `pids` are the server's processes, whose children are its own
    as well; `cores` are those that the drill uses; empty: all cores."""
    steal, pressure = steal_ns(), pressure_ns("cpu")
    found = Reading(
        at_ns=clock.now_ns(),
        busy_ns=_busy_ns(cores),
        own_ns=_family_ns(frozenset(pids)) + _process_ns(os.getpid()),
        steal_ns=_known(steal.read()),
        pressure_ns=_known(pressure.read()),
    )
    steal.close()
    pressure.close()
    return found


def between(first: Reading, last: Reading, late_ms: list[float]) -> Conditions:
    """`late_ms` is how late the clients sent each request of the span."""
    span_ns = max(1, last.at_ns - first.at_ns)

    def share(before: int | None, after: int | None) -> float | None:
        return None if before is None or after is None else round((after - before) / span_ns, 4)

    foreign = share(first.busy_ns, last.busy_ns)
    own = (last.own_ns - first.own_ns) / span_ns
    lag_ms = quantile(late_ms, 0.99)
    return Conditions(
        lag_p99_ms=None if lag_ms is None else round(lag_ms, 3),
        foreign=None if foreign is None else round(max(0.0, foreign - own), 4),
        steal=share(first.steal_ns, last.steal_ns),
        pressure=share(first.pressure_ns, last.pressure_ns),
    )


def _known(value: int | Unavailable) -> int | None:
    return None if isinstance(value, Unavailable) else value


def _busy_ns(cores: Collection[int]) -> int | None:
    """CPU time of all processes together on these cores."""
    names = {f"cpu{core}" for core in cores} or {"cpu"}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        ours = [fields for fields in lines if fields and fields[0] in names]
        ticks = sum(int(fields[column]) for fields in ours for column in _BUSY_COLUMNS)
    except (OSError, ValueError, IndexError):
        return None
    return _ns(ticks)


def _family_ns(pids: Collection[int]) -> int:
    """CPU time of processes, of those that they started, and of those of them that have ended."""
    known = {pid: fields for pid in _all_pids() if (fields := _fields(pid))}
    parents = {pid: int(fields[_PARENT]) for pid, fields in known.items()}
    found = 0
    for pid, fields in known.items():
        at: int | None = pid
        while at is not None and at not in pids:
            at = parents.get(at)
        if at is not None:
            found += sum(int(fields[place]) for place in (*_OWN_TICKS, *_ENDED_CHILDREN_TICKS))
    return _ns(found)


def _process_ns(pid: int) -> int:
    """CPU time of one process; 0 for one that has gone."""
    fields = _fields(pid)
    return _ns(sum(int(fields[place]) for place in _OWN_TICKS)) if fields else 0


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat, from the state on; empty for a process that has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _ns(ticks: int) -> int:
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
