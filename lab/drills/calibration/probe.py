"""Tries intensities on a real server until its clients are hit as hard as is wanted.

Each probe is a short episode without a diagnosis to judge: the same requests (one seed for all
probes, so that harm rises with the intensity and not with chance), with a fault as long as that of
an episode, since of few requests one alone is the 95th percentile. The reference is measured once.
A fault that acts on a running server needs one server for all probes; a wrong limit a server each.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from lab.drills.calibration.steps import (
    BANDS,
    MOST_STEPS,
    Band,
    Probe,
    intensity_at,
    is_calm,
    nearest,
    next_place,
)
from lab.drills.capacity import capacity_of
from lab.drills.client import Sent
from lab.drills.harm import Harm, Level, reached
from lab.drills.injection import InjectionTarget
from lab.drills.mechanism import Mechanism, Need
from lab.drills.outside import Hooks, InjectionFailed
from lab.drills.registry import find
from lab.drills.servers import (
    JOURNAL_FLAGS,
    TERMINATED,
    Cores,
    DrillServer,
    Say,
    cancel_on_sigterm,
    split_cores,
)
from lab.drills.spec import Capacity, EpisodeSpec, Phase, Phases
from lab.drills.stage import Stage, TimedAction
from lab.drills.traffic import Scene
from telemetry.facts.clock import Clock, MonotonicClock

SEED = 7000  # of no episode
_REFERENCE = Phases(warm_up_s=5, reference_s=40, fault_s=0.5, recovery_s=0)
_PROBE = Phases(warm_up_s=1, reference_s=1, fault_s=40, recovery_s=2)
_IDLE_WITHIN_S, _LOOK_EVERY_S = 20.0, 0.25


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The intensity for one level of a mechanism's tail. `value` is the harm that a probe had with
    it, `tried` every probe, and `reference` the measure without the fault, in its own unit. It is
    met if a probe lay in the band and the reference was calm."""

    symptom: str
    mechanism: str
    level: Level
    intensity: float
    value: float | None
    is_met: bool
    reference: float | None
    tried: tuple[Probe, ...]


def calibrate(spec: EpisodeSpec, levels: Sequence[Level], say: Say) -> list[Calibration]:
    """Find the intensities of these levels for the mechanism of `spec`, whose own intensity and
    seed count for nothing. Raises ConfigError, DidNotStart, InjectionFailed, and on SIGTERM
    SystemExit, once every process that it started has ended."""
    spec.validate()
    mechanism = find(spec.symptom, spec.mechanism)
    assert mechanism.tail is not None, f"{mechanism.name} has no tail"
    with tempfile.TemporaryDirectory(prefix="phasescope-") as folder:
        prober = _Prober(spec, mechanism, mechanism.tail, Path(folder), say)
        try:
            return asyncio.run(prober.run(levels))
        except asyncio.CancelledError:
            raise SystemExit(TERMINATED) from None


class _Prober:
    def __init__(
        self, spec: EpisodeSpec, mechanism: Mechanism, harm: Harm, folder: Path, say: Say
    ) -> None:
        self._spec, self._mechanism, self._harm, self._say = spec, mechanism, harm, say
        self._folder = folder
        self._clock: Clock = MonotonicClock()
        self._cores: Cores = split_cores()
        self._hooks = Hooks(folder, self._clock)
        self._flags = (*spec.base_flags(), *mechanism.flags, *JOURNAL_FLAGS)
        self._capacity: Capacity | None = spec.capacity
        self._reference: list[Sent] = []
        self._need = Need(blocks_total=1)
        self._tried: dict[float, Probe] = {}

    async def run(self, levels: Sequence[Level]) -> list[Calibration]:
        cancel_on_sigterm()
        spec = self._spec
        if self._capacity is None:
            self._capacity = await capacity_of(
                self._flags,
                self._mechanism.mix,
                spec.capacity_s,
                spec.out,
                self._clock,
                self._say,
                self._cores,
            )
        async with self._server(self._flags) as server:
            await self._measure_reference(server)
            if self._mechanism.bad_flags is None:
                return [await self._level(level, server) for level in levels]
        return [await self._level(level, None) for level in levels]

    async def _measure_reference(self, server: DrillServer) -> None:
        scene = self._scene(_REFERENCE, self._mechanism.ends[0])
        requests = self._mechanism.without_fault().traffic(scene)
        stage = self._stage(server, _REFERENCE)
        end_s = _REFERENCE.fault_at_s
        await stage.play(requests, 0.0, end_s, [])
        await stage.close_clients()
        begin_ns = stage.at_ns(_REFERENCE.reference_at_s)
        self._reference = [one for one in stage.log if one.due_ns >= begin_ns]
        self._need = Need(blocks_total=int((await server.snapshot())["blocks_total"]))
        usual = self._harm.value(self._reference, self._clock.now_ns())
        if not is_calm(self._harm.measure, usual):
            self._say(f"no calm reference: {self._harm.measure} {usual}; is the machine quiet?")

    async def _level(self, level: Level, server: DrillServer | None) -> Calibration:
        band = BANDS[self._harm.measure, level]
        for step in range(MOST_STEPS):
            place = next_place(list(self._tried.values()), band, MOST_STEPS - step)
            if place is None or place in self._tried:
                break
            await self._probe(place, server, band)
        tried = tuple(sorted(self._tried.values(), key=lambda one: one.place))
        best = nearest(tried, band)
        place = 0.0 if best is None else best.place
        reference = self._harm.value(self._reference, 0)
        calm = is_calm(self._harm.measure, reference)
        return Calibration(
            symptom=self._mechanism.symptom,
            mechanism=self._mechanism.name,
            level=level,
            intensity=intensity_at(place, self._mechanism.ends),
            value=None if best is None else best.value,
            is_met=calm and best is not None and band.has(best.value),
            reference=None if reference is None else round(reference, 4),
            tried=tried,
        )

    async def _probe(self, place: float, server: DrillServer | None, band: Band) -> None:
        intensity = intensity_at(place, self._mechanism.ends)
        if server is not None:
            fault, end_ns = await self._with_fault(server, intensity)
        else:
            fault, end_ns = await self._with_limit(intensity)
        found = reached(self._harm, self._reference, fault, end_ns)
        value = None if found.value is None else round(found.value, 3)
        self._tried[place] = Probe(place, value)
        self._say(
            f"{self._mechanism.name} at {intensity:g} {self._mechanism.unit}: {found.measure} "
            f"{value} (wanted {band.low:g} to {band.high:g}, {found.requests} requests)"
        )

    async def _with_fault(self, server: DrillServer, intensity: float) -> tuple[list[Sent], int]:
        scene = self._scene(_PROBE, intensity)
        injection = self._mechanism.injection(scene)
        target = InjectionTarget(server, self._hooks, scene, self._cores)
        stage = self._stage(server, _PROBE)
        actions: list[tuple[float, TimedAction]] = [
            (_PROBE.fault_at_s, partial(injection.begin, target)),
            (_PROBE.recovery_at_s, partial(injection.end, target)),
        ]
        try:
            await injection.arm(target)
            await stage.play(self._mechanism.traffic(scene), 0.0, _PROBE.end_s, actions)
        finally:
            await injection.end(target)
            await stage.close_clients()
        if injection.failures:
            raise InjectionFailed(f"a probe counts for nothing: {'; '.join(injection.failures)}")
        await self._until_idle(server)
        return self._in_fault(stage), self._clock.now_ns()

    async def _with_limit(self, intensity: float) -> tuple[list[Sent], int]:
        scene = self._scene(_PROBE, intensity)
        assert self._mechanism.bad_flags is not None
        bad = self._mechanism.bad_flags(self._need, intensity)
        async with self._server((*self._flags, *bad)) as server:
            stage = self._stage(server, _PROBE)
            requests = self._mechanism.traffic(scene)
            await stage.play(requests, _PROBE.fault_at_s, _PROBE.recovery_at_s, [])
            await stage.close_clients()
            return self._in_fault(stage), self._clock.now_ns()

    def _in_fault(self, stage: Stage) -> list[Sent]:
        begin_s, end_s = _PROBE.span_s(Phase.FAULT)
        begin_ns, end_ns = stage.at_ns(begin_s), stage.at_ns(end_s)
        return [one for one in stage.log if begin_ns <= one.due_ns < end_ns]

    async def _until_idle(self, server: DrillServer) -> None:
        """Wait until nothing runs or waits, so that no probe feels the one before it."""
        limit_ns = self._clock.now_ns() + int(_IDLE_WITHIN_S * 1e9)
        while self._clock.now_ns() < limit_ns:
            now: Mapping[str, int] = await server.snapshot()
            if not now.get("running") and not now.get("waiting"):
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    def _scene(self, phases: Phases, intensity: float) -> Scene:
        assert self._capacity is not None
        mechanism = self._mechanism
        return Scene(
            seed=SEED,
            phases=phases,
            capacity=self._capacity,
            intensity=intensity,
            load=mechanism.load,
            mix=mechanism.mix,
        )

    def _server(self, flags: tuple[str, ...]) -> DrillServer:
        return DrillServer(
            flags, self._folder, self._clock, self._say, env=self._hooks.env, cores=self._cores
        )

    def _stage(self, server: DrillServer, phases: Phases) -> Stage:
        quiet: Say = lambda line: None  # noqa: E731 - probes say one line each
        return Stage(server, phases, self._cores, self._clock, quiet, f"{SEED}p")
