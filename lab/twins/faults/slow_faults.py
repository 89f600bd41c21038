"""The machine is slow, is taken away, or stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.life import Life, Span
from lab.twins.losses import Loss, Quota, Starvation, Stops
from lab.twins.physics import MS, SECOND, Slowdown

_QUOTA_PERIOD_NS = 100 * MS


def _copying_neighbour(life: Life, span: Span, draw: Random) -> None:
    """Memory is shared with somebody who copies: what reads much of it slows down, weights and
    the cache above all; prompts, which compute more than they read, hardly."""
    factor = draw.uniform(1.6, 2.2)
    life.slowdowns.append(
        Slowdown(
            begin_ns=span.begin_ns,
            end_ns=span.end_ns,
            base=factor,
            decode=factor,
            context=factor,
            prompt=draw.uniform(1.05, 1.15),
        )
    )


def _scanning_neighbour(life: Life, span: Span, draw: Random) -> None:
    """One whose array is larger than the caches: the context, which was in them, suffers most."""
    factor = draw.uniform(1.4, 1.7)
    life.slowdowns.append(
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
    "stream": Fault(strike=_copying_neighbour),
    "scan": Fault(strike=_scanning_neighbour),
}


def _quota(life: Life, span: Span, draw: Random) -> None:
    """The control group may use 40 to 60 ms of each 100 ms."""
    run_ns = int(draw.uniform(0.42, 0.6) * _QUOTA_PERIOD_NS)
    life.thieves.append(Quota(span.begin_ns, span.end_ns, _QUOTA_PERIOD_NS, run_ns))


def _stop_signals(life: Life, span: Span, draw: Random) -> None:
    """Somebody stops the process for 30 to 70 ms again and again."""
    goes_ms = draw.uniform(45, 90)
    stops: list[tuple[int, int]] = []
    at_ns = span.begin_ns
    while at_ns < span.end_ns:
        length_ns = int(draw.uniform(30, 70) * MS)
        stops.append((at_ns, length_ns))
        at_ns += length_ns + int(draw.uniform(0.7, 1.3) * goes_ms * MS)
    life.thieves.append(Stops(stops, Loss.STOPPED))


THROTTLED: Mechanisms = {
    "quota": Fault(strike=_quota),
    "stop_signals": Fault(strike=_stop_signals),
}


def _stalls(span: Span, draw: Random) -> Iterator[tuple[int, int]]:
    """200 to 500 ms every 1 to 2 s."""
    at_ns = span.begin_ns
    while at_ns < span.end_ns:
        yield at_ns, int(draw.uniform(200, 500) * MS)
        at_ns += int(draw.uniform(1.0, 2.0) * SECOND)


def _stalled(kind: Loss, between: bool) -> Callable[[Life, Span, Random], None]:
    def strike(life: Life, span: Span, draw: Random) -> None:
        life.thieves.append(Stops(_stalls(span, draw), kind, between))

    return strike


STALLED: Mechanisms = {
    "collections": Fault(strike=_stalled(Loss.COLLECTED, between=True)),
    "blocking_write": Fault(strike=_stalled(Loss.BLOCKED, between=True)),
    "collections_anywhere": Fault(strike=_stalled(Loss.COLLECTED, between=False)),
}


def _starve(
    life: Life, span: Span, draw: Random, run_ms: tuple[float, float], wait: tuple[float, float]
) -> None:
    """The engine runs for so long, then waits for so many times as long."""
    run_ns = int(draw.uniform(*run_ms) * MS)
    wait_ns = int(run_ns * draw.uniform(*wait))
    turns = Random(draw.getrandbits(32))
    life.thieves.append(Starvation(span.begin_ns, span.end_ns, run_ns, wait_ns, turns))


STARVED: Mechanisms = {
    "one_hog": Fault(strike=partial(_starve, run_ms=(3.0, 6.0), wait=(0.6, 1.0))),
    "strong_hogs": Fault(strike=partial(_starve, run_ms=(10.0, 20.0), wait=(1.0, 1.8))),
}
