"""Kernel profiles in the engine process, started and ended by messages from the gateway.

If a profile fails, the gateway gets the error and the engine continues. Each profile is recorded
as a fact, because it slows the steps down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.device.loader import LoadedEngine
from service.device.profiler import StepProfiler
from service.engine.loop import EngineLoop
from service.process import frames
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import ProfileTaken
from telemetry.facts.recorder import Lane


@dataclass(frozen=True, slots=True)
class OpenProfile:
    """A running profile; `request` is the message that started it."""

    profiler: StepProfiler
    request: frames.StartProfile
    begin_ns: int


class Profiles:
    """At most one profile at a time.

    `open` is the running profile or None; while it runs, the loop's executor is replaced by a
    StepProfiler.
    """

    def __init__(
        self,
        loop: EngineLoop,
        loaded: LoadedEngine,
        lane: Lane,
        clock: Clock,
        answer: Callable[[frames.ProfileEnded], None],
    ) -> None:
        self.open: OpenProfile | None = None
        self._loop = loop
        self._loaded = loaded
        self._lane = lane
        self._clock = clock
        self._answer = answer

    def handle(self, message: frames.StartProfile | frames.StopProfile) -> None:
        match message:
            case frames.StartProfile():
                self._start(message)
            case frames.StopProfile():
                if self.open is not None:
                    self._end(self.open, message.keep)

    def end_full(self) -> bool:
        """End the running profile if it has all its steps. True if it was ended."""
        if self.open is None or not self.open.profiler.is_full:
            return False
        self._end(self.open, keep=True)
        return True

    def close(self) -> None:
        """Drop the running profile, without an answer: the process exits."""
        if self.open is not None:
            with contextlib.suppress(Exception):  # the device may be the reason for the exit
                self.open.profiler.stop(None, {})

    def _start(self, request: frames.StartProfile) -> None:
        assert self.open is None, self.open
        begin_ns = self._clock.now_ns()
        try:
            profiler = StepProfiler(self._loaded.executor, request.steps, self._loop.in_flight)
            profiler.start()
        except Exception as error:  # any error of torch or a driver
            self._answer(frames.ProfileEnded(0, "", _line(error)))
            return
        self._loop.executor = profiler
        self.open = OpenProfile(profiler, request, begin_ns)

    def _end(self, profile: OpenProfile, keep: bool) -> None:
        self.open, self._loop.executor = None, self._loaded.executor
        steps = len(profile.profiler.step_ids)
        contents = self._contents(profile.profiler)
        path = Path(profile.request.path) if keep else None
        error: str | None = None
        try:
            profile.profiler.stop(path, self._metadata(profile, contents))
        except Exception as fault:  # any error of torch, a driver or the disk
            error = _line(fault)
        end_ns = self._clock.now_ns()
        self._lane.append(ProfileTaken(end_ns, profile.begin_ns, end_ns, steps))
        self._answer(frames.ProfileEnded(steps, contents, error))

    def _contents(self, profiler: StepProfiler) -> str:
        """What was recorded, in words: torch's profiler does not see the work of every backend."""
        if self._loaded.backend.computes_in_torch:
            parts = ["spans of steps", "torch operators"]
        else:
            parts = ["spans of steps", "torch operators of sampling only"]
        if profiler.sees_gpu:
            parts.append("kernels and copies of the GPU")
        return ", ".join(parts)

    def _metadata(self, profile: OpenProfile, contents: str) -> dict[str, Any]:
        step_ids, backend = profile.profiler.step_ids, self._loaded.backend
        return {
            "steps": len(step_ids),
            "steps_asked": profile.request.steps,
            "first_step_id": step_ids[0] if step_ids else None,
            "last_step_id": step_ids[-1] if step_ids else None,
            "contents": contents,
            "backend": backend.name,
            "dtype": backend.dtype,
            "begin_monotonic_ns": profile.begin_ns,
        }


def _line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
