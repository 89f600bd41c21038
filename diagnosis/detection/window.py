"""The stretch of time that is judged."""

from __future__ import annotations

from dataclasses import dataclass

from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import Counts
from diagnosis.detection.host_time import NOT_SAMPLED, HostTime
from diagnosis.detection.steps import Steps
from telemetry.facts.engine_records import EngineStarted


@dataclass(frozen=True, slots=True)
class Window:
    """`seconds` of facts: counts of all of it and of its later half, its steps, the limits of the
    engine, and what the host says of its thread. `has_finding` once something was found in it:
    chance is then ruled out already."""

    seconds: float
    counts: Counts
    later_half: Counts
    steps: Steps
    started: EngineStarted | None
    has_finding: bool = False
    host: HostTime = NOT_SAMPLED


def window_of(
    aggregator: Aggregator, begin_ns: int, end_ns: int, *, has_finding: bool = False
) -> Window:
    """[begin, end) of what is counted."""
    counts = aggregator.counts(begin_ns, end_ns)
    counts.open_lengths = aggregator.requests.open_lengths()
    return Window(
        seconds=(end_ns - begin_ns) / 1e9,
        counts=counts,
        later_half=aggregator.counts((begin_ns + end_ns) // 2, end_ns),
        steps=aggregator.steps(begin_ns, end_ns),
        started=aggregator.started,
        has_finding=has_finding,
        host=aggregator.host_time(counts, begin_ns),
    )
