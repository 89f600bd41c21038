"""The stretch of time that is judged."""

from __future__ import annotations

from dataclasses import dataclass

from diagnosis.detection.counts import Counts
from diagnosis.detection.steps import Steps
from telemetry.facts.engine_records import EngineStarted


@dataclass(frozen=True, slots=True)
class Window:
    """`seconds` of facts: counts of all of it and of its later half, its steps, and the limits of
    the engine. `has_finding` once something was found in it: chance is then ruled out already."""

    seconds: float
    counts: Counts
    later_half: Counts
    steps: Steps
    started: EngineStarted | None
    has_finding: bool = False
