"""A stretch of time as it is judged."""

from __future__ import annotations

from dataclasses import dataclass

from diagnosis.detection.counts import Counts
from diagnosis.detection.steps import Steps
from telemetry.facts.engine_records import EngineStarted


@dataclass(frozen=True, slots=True)
class Window:
    """`seconds` of it, its counts, those of its later half, its steps, and the engine's limits.
    `is_told` once something has been found in it, which is then no work of chance."""

    seconds: float
    counts: Counts
    later: Counts
    steps: Steps
    started: EngineStarted | None
    is_told: bool = False
