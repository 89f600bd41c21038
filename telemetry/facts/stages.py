"""How long a start took, stage by stage.

Stages tile the time: each begins where the last one ended, so they add up to the whole, and work
without a stage of its own counts in the stage in which it happens.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from telemetry.facts.clock import Clock
from telemetry.facts.engine_start import StageTime
from telemetry.facts.reasons import StartStage


class Stages:
    """Records the ends of stages; the first stage begins at `begin_ns`."""

    def __init__(self, clock: Clock, begin_ns: int) -> None:
        self._clock = clock
        self._last_ns = begin_ns
        self._done: list[StageTime] = []

    def end(self, name: StartStage, at_ns: int | None = None) -> None:
        """End the stage `name` now, or at `at_ns`."""
        end_ns = max(self._last_ns, self._clock.now_ns() if at_ns is None else at_ns)
        self._done.append(StageTime(name, self._last_ns, end_ns))
        self._last_ns = end_ns

    @property
    def done(self) -> tuple[StageTime, ...]:
        return tuple(self._done)


class StartReport(msgspec.Struct, frozen=True):
    """From the start of the service's process to readiness.

    `stages` add up to `total_ns`; `beside` are the gateway's own stages in the same time.
    """

    total_ns: int
    stages: tuple[StageTime, ...]
    beside: tuple[StageTime, ...]

    def line(self) -> str:
        """`2.90 s (launch 0.20, imports 1.50, ...)`."""
        parts = ", ".join(f"{s.name} {(s.end_ns - s.begin_ns) / 1e9:.2f}" for s in self.stages)
        return f"{self.total_ns / 1e9:.2f} s ({parts})"

    def as_json(self) -> bytes:
        """For `/debug/startup`: durations by name, in ns."""
        return msgspec.json.encode(
            {
                "total_ns": self.total_ns,
                "stages": [_duration(stage) for stage in self.stages],
                "beside": [_duration(stage) for stage in self.beside],
            }
        )


def start_report(
    gateway: Sequence[StageTime], engine: Sequence[StageTime], announced_ns: int
) -> StartReport:
    """`gateway` begins with its LAUNCH; `engine` begins where that ended."""
    launch, beside = gateway[0], tuple(gateway[1:])
    last_ns = engine[-1].end_ns if engine else launch.end_ns
    announce = StageTime(StartStage.ANNOUNCE, last_ns, announced_ns)
    stages = (launch, *engine, announce)
    return StartReport(announced_ns - launch.begin_ns, stages, beside)


def _duration(stage: StageTime) -> dict[str, object]:
    return {"name": stage.name.value, "ns": stage.end_ns - stage.begin_ns}
