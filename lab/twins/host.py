"""Host facts of a twin: samples once a second, and pauses long enough to be recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from lab.twins.gateway import OFF_CPU, EventLoop
from lab.twins.losses import Loss, LostInterval
from lab.twins.physics import MS, SECOND
from lab.twins.simulated_run import START_NS, SimulatedRun
from telemetry.facts.host_records import HostPaused, HostSampled
from telemetry.facts.reasons import HostProcess, PauseCause
from telemetry.facts.records import Fact, RequestEnded

TICK_NS = 50 * MS
_LEAST_WAIT_NS = 20 * MS
_LEAST_LATE_NS = 10 * MS
_WAITS = (Loss.WAITED, Loss.THROTTLED)  # a throttled thread is runnable too
_TOKEN_NS = 60_000  # of the gateway's CPU
_REQUEST_TOKENS = 20  # a request costs as much as so many tokens
_ENGINE_FIELDS = ("engine_run_ns", "engine_wait_ns", "engine_resident_bytes")
_NO_ENGINE = "no engine is ready"
_NO_CGROUP = "/sys/fs/cgroup/cpu.stat: No such file or directory"


class _TimeBins:
    """Nanoseconds in each bin of equal width since the start of the run."""

    def __init__(self, width_ns: int, end_ns: int) -> None:
        self._width_ns = width_ns
        self.values = [0] * ((end_ns - START_NS) // width_ns + 2)

    def add(self, begin_ns: int, end_ns: int) -> None:
        while begin_ns < end_ns:
            index = (begin_ns - START_NS) // self._width_ns
            if not 0 <= index < len(self.values):
                return
            stop_ns = min(end_ns, START_NS + (index + 1) * self._width_ns)
            self.values[index] += stop_ns - begin_ns
            begin_ns = stop_ns


def host_facts(
    run: SimulatedRun, ran_ns: Counter[int], ended: Sequence[RequestEnded], loop: EventLoop
) -> list[Fact]:
    """Samples once a second, and pauses: of collectors, of the gateway's loop, of waits. The
    engine's main thread ran for `ran_ns` in each second."""
    draw = Random(f"{run.seed}/host")
    losses = [loss for source in run.cpu_contention for loss in source.losses]
    last_ns = max(run.span.end_ns, *(fact.at_ns for fact in ended))
    return [
        *_samples(run, ran_ns, _per_second(ended, loop, losses, last_ns), loop, draw),
        *_collections(losses, draw, last_ns),
        *_blocked(loop, draw),
        *_waits(losses, last_ns),
    ]


@dataclass(slots=True)
class _PerSecond:
    """For each second: ns by kind of loss, and the gateway's `work` in tokens and requests."""

    waited: _TimeBins
    throttled: _TimeBins
    collected: _TimeBins
    blocked: _TimeBins
    work: list[int]


def _per_second(
    ended: Sequence[RequestEnded], loop: EventLoop, losses: Sequence[LostInterval], last_ns: int
) -> _PerSecond:
    waited, throttled, collected, blocked = (_TimeBins(SECOND, last_ns) for _ in range(4))
    found = _PerSecond(waited, throttled, collected, blocked, [0] * len(blocked.values))
    for loss in losses:
        if loss.kind in _WAITS:
            found.waited.add(loss.begin_ns, loss.end_ns)
        if loss.kind is Loss.THROTTLED:
            found.throttled.add(loss.begin_ns, loss.end_ns)
        if loss.kind is Loss.COLLECTED:
            found.collected.add(loss.begin_ns, loss.end_ns)
    for begin_ns, end_ns, detail in loop.blocked:
        if detail != OFF_CPU:
            found.blocked.add(begin_ns, end_ns)
    for fact in ended:
        index = min((fact.at_ns - START_NS) // SECOND, len(found.work) - 1)
        found.work[index] += fact.output_tokens + _REQUEST_TOKENS
    return found


def _samples(
    run: SimulatedRun, ran_ns: Counter[int], seconds: _PerSecond, loop: EventLoop, draw: Random
) -> Iterable[Fact]:
    """One sample a second; values of the engine are None while none serves."""
    has_cgroup = any(seconds.throttled.values) or draw.random() < 0.5
    missing: dict[str, str] = {}
    for index in range(len(seconds.work) - 2):
        at_ns = START_NS + (index + 1) * SECOND
        serves = _serves(run, at_ns)
        already_named, missing = missing, {} if has_cgroup else {"throttled_ns": _NO_CGROUP}
        if not serves:
            missing |= dict.fromkeys(_ENGINE_FIELDS, _NO_ENGINE)
        ran = ran_ns[START_NS // SECOND + index] + seconds.collected.values[index]
        waits_ns = seconds.waited.values[index]
        own_ns = waits_ns + int(draw.expovariate(1 / (3 * MS)))
        gateway_ns = seconds.blocked.values[index] + _TOKEN_NS * seconds.work[index]
        yield HostSampled(
            at_ns=at_ns + draw.randrange(TICK_NS),
            window_ns=SECOND + draw.randrange(-5 * MS, 5 * MS),
            engine_run_ns=int(ran * draw.uniform(0.98, 1.0)) + 2 * MS if serves else None,
            engine_wait_ns=own_ns if serves else None,
            engine_resident_bytes=run.resident_bytes(at_ns) if serves else None,
            gateway_run_ns=gateway_ns + int(draw.uniform(30, 60) * MS),
            gateway_wait_ns=waits_ns // 20 + int(draw.expovariate(1 / (2 * MS))),
            gateway_resident_bytes=210 << 20,
            loop_lag_max_ns=_lag_ns(loop, at_ns - SECOND, at_ns, draw),
            steal_ns=0,
            throttled_ns=seconds.throttled.values[index] if has_cgroup else None,
            pressure_cpu_ns=min(SECOND, own_ns + int(draw.uniform(2, 25) * MS)),
            pressure_memory_ns=0,
            pressure_io_ns=int(draw.expovariate(1 / (0.2 * MS))),
            unavailable={name: why for name, why in missing.items() if name not in already_named},
        )


def _serves(run: SimulatedRun, at_ns: int) -> bool:
    outage = run.outage
    if outage is None or at_ns < outage.begin_ns:
        return True
    return outage.end_ns is not None and at_ns >= outage.end_ns


def _lag_ns(loop: EventLoop, begin_ns: int, end_ns: int, draw: Random) -> int:
    """The longest lag of the loop probe, which is due every 50 ms."""
    lag_ns = int(draw.uniform(0.1, 2.5) * MS)
    for since_ns, until_ns, _ in loop.blocked:
        if begin_ns <= until_ns < end_ns:
            lag_ns = max(lag_ns, until_ns - since_ns - draw.randrange(TICK_NS))
    return lag_ns


def _collections(losses: Sequence[LostInterval], draw: Random, last_ns: int) -> Iterable[Fact]:
    """Garbage collections: the engine's long ones, injected, and the gateway's short ones."""
    for loss in losses:
        if loss.kind is Loss.COLLECTED:
            detail = f"generation 2, {draw.randrange(40)} collected"
            yield _paused(loss.begin_ns, loss.end_ns, HostProcess.ENGINE, PauseCause.GC, detail)
    at_ns = START_NS
    while (at_ns := at_ns + int(draw.expovariate(0.3) * SECOND)) < last_ns:
        end_ns = at_ns + int(draw.uniform(0.5, 2.5) * MS)
        detail = f"generation {draw.choice((0, 0, 1))}, {draw.randrange(200)} collected"
        yield _paused(at_ns, end_ns, HostProcess.GATEWAY, PauseCause.GC, detail)


def _blocked(loop: EventLoop, draw: Random) -> Iterable[Fact]:
    """Pauses of the gateway's loop; two less than 1 ms apart are one to the probe."""
    merged: list[tuple[int, int, str]] = []
    for begin_ns, end_ns, detail in loop.blocked:
        if merged and begin_ns - merged[-1][1] < MS:
            merged[-1] = (merged[-1][0], end_ns, detail)
        else:
            merged.append((begin_ns, end_ns, detail))
    for begin_ns, end_ns, detail in merged:
        if end_ns - begin_ns >= _LEAST_LATE_NS:
            begin_ns += draw.randrange(4 * MS)
            cause = PauseCause.OFF_CPU if detail == OFF_CPU else PauseCause.LOOP_BLOCKED
            yield _paused(begin_ns, end_ns, HostProcess.GATEWAY, cause, detail)


def _waits(losses: Sequence[LostInterval], last_ns: int) -> Iterable[Fact]:
    """Waits for a CPU, counted per tick of 50 ms."""
    waited, throttled = _TimeBins(TICK_NS, last_ns), _TimeBins(TICK_NS, last_ns)
    for loss in losses:
        if loss.kind in _WAITS:
            waited.add(loss.begin_ns, loss.end_ns)
        if loss.kind is Loss.THROTTLED:
            throttled.add(loss.begin_ns, loss.end_ns)
    both = (HostProcess.ENGINE, HostProcess.GATEWAY)
    yield from _ticks(waited, both[:1], PauseCause.OFF_CPU, "main thread")
    yield from _ticks(throttled, both, PauseCause.THROTTLED, "control group")


def _ticks(
    bins: _TimeBins, processes: Iterable[HostProcess], cause: PauseCause, detail: str
) -> Iterable[Fact]:
    for index, lost_ns in enumerate(bins.values):
        if lost_ns < _LEAST_WAIT_NS:
            continue
        begin_ns = START_NS + index * TICK_NS
        for process in processes:
            yield _paused(begin_ns, begin_ns + TICK_NS, process, cause, detail, lost_ns)


def _paused(
    begin_ns: int,
    end_ns: int,
    process: HostProcess,
    cause: PauseCause,
    detail: str,
    lost_ns: int | None = None,
) -> HostPaused:
    return HostPaused(
        at_ns=end_ns,
        begin_ns=begin_ns,
        end_ns=end_ns,
        process=process,
        cause=cause,
        detail=detail,
        lost_ns=lost_ns,
    )
