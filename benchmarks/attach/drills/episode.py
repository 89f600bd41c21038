"""One episode on an attached vLLM: traffic, a fault from outside, verdicts of the sidecar, a label.

    warm-up -> reference -> fault -> recovery

Where the fault is a limit, a vLLM with a good one serves the reference, and one with a bad limit
takes over for the fault; the sidecar stays, as it would in production. Everything that is kept has
the form of `benchmarks.diagnosis`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from benchmarks.attach.drills.gauges import Scraper, gauges_of
from benchmarks.attach.drills.mechanisms import BASE_FLAGS, NO_NEED
from benchmarks.attach.sidecar import Sidecar
from benchmarks.attach.vllm_server import Vllm
from benchmarks.diagnosis.episodes import Kept
from benchmarks.diagnosis.gauges import Gauges
from benchmarks.diagnosis.records import SLO_FILE
from benchmarks.machine import machine
from lab.drills.capacity import measure
from lab.drills.injection import InjectionTarget
from lab.drills.mechanism import Mechanism
from lab.drills.outcome.conditions import read
from lab.drills.outcome.labels import seal
from lab.drills.outcome.truth import EpisodeRecord, label_of, result_of
from lab.drills.outside import Hooks
from lab.drills.pace import Pacer
from lab.drills.servers import Cores, DrillServer, call, pinned_here, split_cores
from lab.drills.spec import Capacity, Phase, Phases
from lab.drills.stage import Stage, TimedAction
from lab.drills.traffic import PlannedRequest, Scene
from lab.drills.watch import DiagnosisPoller, root_of
from telemetry.facts.clock import Clock, MonotonicClock

Say = Callable[[str], None]
_CAPACITIES = "capacity.json"
LAG_LIMIT_MS = 15.0
"""API server, engine core, sidecar and clients share a core, and a turn on it is some ms."""
SLO = """[classes.chat]
ttft_ms = 1500
itl_ms = 200
"""
"""An SLO that this server keeps when nothing is wrong, as an operator would state one."""


@dataclass(frozen=True, kw_only=True)
class EpisodePlan:
    """`work` is where journals, logs and labels go. `capacity_s` is how long it is measured."""

    mechanism: Mechanism
    seed: int
    intensity: float
    phases: Phases
    split: str
    work: Path
    flags: tuple[str, ...] = ()
    capacity_s: float = 12.0

    @property
    def name(self) -> str:
        return f"{self.mechanism.symptom}-{self.mechanism.name}-{self.seed}"


class Attached:
    """A vLLM as the parts of `lab.drills` know a server: `engine_pid` is the process that computes,
    whose core is the engine's."""

    def __init__(self, server: Vllm) -> None:
        self.port, self.pid = server.port, server.pid
        self.engine_pid, self.core_pid = server.worker_pid, server.core_pid
        self._server = server

    @property
    def pids(self) -> list[int]:
        return self._server.pids


@dataclass
class AttachedStage(Stage):
    """The clients ask vLLM; the diagnosis is the sidecar's."""

    sidecar: Sidecar | None = None
    scraper: Scraper = field(init=False)

    def __post_init__(self) -> None:
        assert self.sidecar is not None
        super().__post_init__()
        self.poller = DiagnosisPoller(self.sidecar.port, self.clock)
        self.scraper = Scraper(self.server.port)

    async def take_reading(self, phase: Phase) -> None:
        """Read the host's counters of all processes of vLLM, and of the sidecar."""
        assert self.sidecar is not None
        pids = [*cast(Any, self.server).pids, self.sidecar.pid]
        cores = self.cores.engine | self.cores.rest
        self._readings.append((phase, read(self.clock, pids, cores)))

    @property
    def gauges(self) -> Gauges:
        return gauges_of(self.scraper.pages)


async def run_episode(plan: EpisodePlan, say: Say) -> Kept:
    """From the start of the servers to the sealed label. Raises NotSupported when one does not
    start."""
    clock, cores = MonotonicClock(), split_cores()
    episode = _Episode(plan, clock, cores, say)
    pacer = Pacer(episode.folder / "pace", min(cores.engine, default=-1))
    pacer.start()
    try:
        await episode.play()
    finally:
        episode.record.beats = await pacer.end()
    return episode.kept()


class _Episode:
    def __init__(self, plan: EpisodePlan, clock: Clock, cores: Cores, say: Say) -> None:
        self._plan, self._clock, self._cores, self._say = plan, clock, cores, say
        self.folder = plan.work / plan.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.record = EpisodeRecord(lag_limit_ms=LAG_LIMIT_MS)
        self._flags = (*BASE_FLAGS, *plan.mechanism.flags, *plan.flags)
        self._scene: Scene | None = None
        self._gauges: Gauges | None = None
        self._usual: Gauges | None = None
        self._sidecar_flags: tuple[str, ...] = ()

    async def play(self) -> None:
        slo = self.folder / SLO_FILE
        slo.write_text(SLO)
        async with Sidecar("--slo-file", str(slo)) as sidecar:
            self._sidecar_flags = sidecar.flags
            if self._plan.mechanism.bad_flags is not None:
                await self._with_bad_server(sidecar)
            else:
                await self._with_one_server(sidecar)

    async def _with_one_server(self, sidecar: Sidecar) -> None:
        record = self.record
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(self._vllm(sidecar, self._flags))
            scene = await self._begin(sidecar, server)
            injection = self._plan.mechanism.injection(scene)
            stage = self._stage(server, sidecar, "a")
            hooks = Hooks(self.folder, self._clock)
            target = InjectionTarget(stage.server, hooks, scene, self._cores)
            stack.push_async_callback(injection.end, target)
            await injection.arm(target)

            async def begin() -> None:
                await stage.take_reading(Phase.FAULT)
                record.on_ns = self._clock.now_ns()
                await injection.begin(target)

            async def end() -> None:
                record.root = await root_of(sidecar.port)
                await injection.end(target)
                record.off_ns = self._clock.now_ns()
                record.failures += injection.failures
                record.nices += injection.nices
                await stage.take_reading(Phase.RECOVERY)

            phases = scene.phases
            actions: list[tuple[float, TimedAction]] = [
                (phases.reference_at_s, partial(stage.take_reading, Phase.REFERENCE)),
                (phases.fault_at_s, begin),
                (phases.recovery_at_s, end),
            ]
            async with scraping(stage):
                await stage.play(self._plan.mechanism.traffic(scene), 0.0, phases.end_s, actions)
            await stage.take_reading(Phase.RECOVERY)
            await self._close(stage, sidecar, "journal")
            self._gauges = stage.gauges

    async def _with_bad_server(self, sidecar: Sidecar) -> None:
        record, bad_flags = self.record, self._plan.mechanism.bad_flags
        assert bad_flags is not None
        async with self._vllm(sidecar, self._flags) as good:
            scene = await self._begin(sidecar, good)
            requests = self._plan.mechanism.traffic(scene)
            stage = self._stage(good, sidecar, "a")
            phases = scene.phases
            actions: list[tuple[float, TimedAction]] = [
                (phases.reference_at_s, partial(stage.take_reading, Phase.REFERENCE)),
                (phases.fault_at_s, partial(stage.take_reading, Phase.FAULT)),
            ]
            async with scraping(stage):
                await stage.play(requests, 0.0, phases.fault_at_s, actions)
            await self._close(stage, sidecar, "reference.journal")
            self._usual = stage.gauges
        record.samples.clear()  # what was said of the good server
        bad = bad_flags(NO_NEED, scene.intensity)
        self._say(f"a vLLM takes over with {' '.join(bad)}")
        async with self._vllm(sidecar, (*self._flags, *bad)) as server:
            await sidecar.until_attached()
            await self._take_over(server, sidecar, scene, requests)

    async def _take_over(
        self, server: Vllm, sidecar: Sidecar, scene: Scene, requests: list[PlannedRequest]
    ) -> None:
        record, phases = self.record, scene.phases
        stage = self._stage(server, sidecar, "b")
        actions: list[tuple[float, TimedAction]] = [
            (phases.fault_at_s, partial(stage.take_reading, Phase.FAULT))
        ]
        async with scraping(stage):
            await stage.play(requests, phases.fault_at_s, phases.recovery_at_s, actions)
        await stage.take_reading(Phase.RECOVERY)
        record.root = await root_of(sidecar.port)
        record.on_ns = stage.at_ns(phases.fault_at_s)
        record.off_ns = stage.at_ns(phases.recovery_at_s)
        await self._close(stage, sidecar, "journal")
        self._gauges = stage.gauges

    def _vllm(self, sidecar: Sidecar, flags: tuple[str, ...]) -> Vllm:
        return Vllm(*flags, attach_to=sidecar.socket)

    async def _begin(self, sidecar: Sidecar, server: Vllm) -> Scene:
        """The engine is attached; its capacity is known."""
        await sidecar.until_attached()
        plan, mechanism = self._plan, self._plan.mechanism
        self._scene = Scene(
            seed=plan.seed,
            phases=plan.phases,
            capacity=await self._capacity(server),
            intensity=plan.intensity,
            load=mechanism.load,
            mix=mechanism.mix,
        )
        self._say(f"{plan.name}: {mechanism.about} ({plan.intensity:g} {mechanism.unit})")
        return self._scene

    async def _capacity(self, server: Vllm) -> Capacity:
        """Measured once for a mix and flags, on the server that runs; then known."""
        plan, path = self._plan, self._plan.work / _CAPACITIES
        key = f"{plan.mechanism.mix.name}: {' '.join(self._flags)}"
        known: dict[str, Capacity] = {}
        if path.exists():
            known = msgspec.json.decode(path.read_bytes(), type=dict[str, Capacity])
        if key not in known:
            self._say(f"measuring the capacity: {plan.capacity_s:g} s")
            with pinned_here(self._cores.rest):
                known[key] = await measure(
                    server.port, plan.mechanism.mix, plan.capacity_s, self._clock
                )
            path.write_bytes(msgspec.json.format(msgspec.json.encode(known)))
        return known[key]

    def _stage(self, server: Vllm, sidecar: Sidecar, name: str) -> AttachedStage:
        plan = self._plan
        attached = cast(DrillServer, Attached(server))
        return AttachedStage(
            attached, plan.phases, self._cores, self._clock, self._say, f"{plan.seed}{name}",
            sidecar=sidecar,
        )  # fmt: skip

    async def _close(self, stage: AttachedStage, sidecar: Sidecar, journal: str) -> None:
        """Save the sidecar's journal while requests are still open, and keep the clients' log."""
        record = self.record
        if not await save_journal(sidecar.port, self.folder / journal):
            self._say("the sidecar's journal could not be saved")
        await stage.close_clients()
        record.logs.append((stage.begin_ns, stage.log))
        record.samples += stage.poller.samples
        record.conditions |= stage.conditions()
        stage.poller.save(self.folder / "verdicts.jsonl")

    def kept(self) -> Kept:
        """Write the clients' log, seal the label; the result in the form of the diagnosis."""
        record, plan, scene = self.record, self._plan, self._scene
        assert scene is not None, "the episode was not played"
        lines = [msgspec.json.encode(one) + b"\n" for _, log in record.logs for one in log]
        (self.folder / "clients.jsonl").write_bytes(b"".join(lines))
        label = label_of(record, scene, plan.mechanism)
        sealed = seal(label, plan.work, plan.name)
        result = result_of(
            record, scene, plan.mechanism, label, sealed.sha256, plan.name, self._flags
        )
        return Kept(
            split=plan.split,
            date=time.strftime("%Y-%m-%d %H:%M:%S %z"),
            machine=machine(),
            episode=result,
            gauges=self._gauges,
            usual_gauges=self._usual,
        )


@contextlib.asynccontextmanager
async def scraping(stage: AttachedStage) -> AsyncIterator[None]:
    task = asyncio.create_task(stage.scraper.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def save_journal(port: int, path: Path) -> bool:
    """The sidecar's flight recorder in a file; False when it does not answer."""

    try:
        status, body = await call(port, "GET", "/debug/journal")
    except OSError:
        return False
    if status == 200:
        await asyncio.to_thread(path.write_bytes, body)
    return status == 200
