"""Faults of the machine: memory bandwidth, throttling, stalls, CPU contention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.losses import CpuQuota, CpuStarvation, Loss, ProcessStops
from lab.twins.physics import MS, SECOND, Slowdown
from lab.twins.simulated_run import SimulatedRun, Span

_QUOTA_PERIOD_NS = 100 * MS


def _copying_neighbour(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A neighbour copies memory: reading weights and KV cache slows down. Prompts compute more than
    they read, and hardly slow down."""
    factor = draw.uniform(1.6, 2.2)
    run.slowdowns.append(
        Slowdown(
            begin_ns=span.begin_ns,
            end_ns=span.end_ns,
            base=factor,
            decode=factor,
            context=factor,
            prompt=draw.uniform(1.05, 1.15),
        )
    )


def _scanning_neighbour(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A neighbour scans an array larger than the CPU caches: KV cache reads slow down most."""
    factor = draw.uniform(1.4, 1.7)
    run.slowdowns.append(
        Slowdown(
            begin_ns=span.begin_ns,
            end_ns=span.end_ns,
            base=factor,
            decode=factor * 1.1,
            context=draw.uniform(5.0, 8.0),
            prompt=draw.uniform(1.1, 1.2),
        )
    )


BANDWIDTH: Mechanisms = {
    "stream": Fault(inject=_copying_neighbour),
    "scan": Fault(inject=_scanning_neighbour),
}


def _quota(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The control group may use 40 to 60 ms of each 100 ms."""
    run_ns = int(draw.uniform(0.42, 0.6) * _QUOTA_PERIOD_NS)
    run.cpu_contention.append(CpuQuota(span.begin_ns, span.end_ns, _QUOTA_PERIOD_NS, run_ns))


def _stop_signals(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The process is stopped by signals for 30 to 70 ms, again and again."""
    runs_ms = draw.uniform(45, 90)
    stops: list[tuple[int, int]] = []
    at_ns = span.begin_ns
    while at_ns < span.end_ns:
        length_ns = int(draw.uniform(30, 70) * MS)
        stops.append((at_ns, length_ns))
        at_ns += length_ns + int(draw.uniform(0.7, 1.3) * runs_ms * MS)
    run.cpu_contention.append(ProcessStops(stops, Loss.STOPPED))


THROTTLED: Mechanisms = {
    "quota": Fault(inject=_quota),
    "stop_signals": Fault(inject=_stop_signals),
}


def _stalls(span: Span, draw: Random) -> Iterator[tuple[int, int]]:
    """200 to 500 ms every 1 to 2 s."""
    at_ns = span.begin_ns
    while at_ns < span.end_ns:
        yield at_ns, int(draw.uniform(200, 500) * MS)
        at_ns += int(draw.uniform(1.0, 2.0) * SECOND)


def _stalled(kind: Loss, between: bool) -> Callable[[SimulatedRun, Span, Random], None]:
    def inject(run: SimulatedRun, span: Span, draw: Random) -> None:
        run.cpu_contention.append(ProcessStops(_stalls(span, draw), kind, between))

    return inject


STALLED: Mechanisms = {
    "collections": Fault(inject=_stalled(Loss.COLLECTED, between=True)),
    "blocking_write": Fault(inject=_stalled(Loss.BLOCKED, between=True)),
    "collections_anywhere": Fault(inject=_stalled(Loss.COLLECTED, between=False)),
}


def _starve(
    run: SimulatedRun,
    span: Span,
    draw: Random,
    run_ms: tuple[float, float],
    wait: tuple[float, float],
) -> None:
    """The engine runs for `run_ms`, then waits for a multiple (`wait`) of that."""
    run_ns = int(draw.uniform(*run_ms) * MS)
    wait_ns = int(run_ns * draw.uniform(*wait))
    intervals_draw = Random(draw.getrandbits(32))
    run.cpu_contention.append(
        CpuStarvation(span.begin_ns, span.end_ns, run_ns, wait_ns, intervals_draw)
    )


STARVED: Mechanisms = {
    "one_hog": Fault(inject=partial(_starve, run_ms=(3.0, 6.0), wait=(0.6, 1.0))),
    "strong_hogs": Fault(inject=partial(_starve, run_ms=(10.0, 20.0), wait=(1.0, 1.8))),
}
