"""One episode: a server, its traffic, a fault, and the label of that fault.

    warm-up -> reference -> fault -> recovery

A running server gets its fault from outside. Where the fault is a configured limit, a server with
a good limit serves warm-up and reference, and one with a bad limit takes over for the fault. Where
it is a model that does not load, there is no traffic. Label, journal and the clients' log are
below `out`. The server's own folder is elsewhere, and nothing in it names the fault.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec

from lab.drills.capacity import capacity_of
from lab.drills.collector import Collector
from lab.drills.commands import baseline_flags, diagnosis_of, save_baseline
from lab.drills.injection import InjectionTarget
from lab.drills.mechanism import Mechanism, Need
from lab.drills.outcome.labels import FOLDER, seal
from lab.drills.outcome.result import EpisodeResult
from lab.drills.outcome.truth import EpisodeRecord, label_of, result_of
from lab.drills.outside import Hooks
from lab.drills.pace import Pacer
from lab.drills.registry import find
from lab.drills.servers import (
    JOURNAL_FLAGS,
    TERMINATED,
    Cores,
    DidNotStart,
    DrillServer,
    Say,
    cancel_on_sigterm,
    split_cores,
)
from lab.drills.spec import Capacity, EpisodeSpec, Phase
from lab.drills.stage import Stage, TimedAction
from lab.drills.traffic import PlannedRequest, Scene
from lab.drills.watch import DiagnosisPoller, root_of
from service.config.settings import ConfigError, ModelKind
from service.model_files.model_store import resolve_model
from telemetry.facts.clock import Clock, MonotonicClock

_NO_CAPACITY = Capacity(requests_per_s=1.0, tokens_per_s=1.0)


def run_episode(spec: EpisodeSpec, say: Say = print) -> EpisodeResult:
    """Run an episode, from the server's start to the sealed label. Raises ConfigError, DidNotStart,
    InjectionFailed, and on SIGTERM SystemExit, once every process that it started has ended."""
    spec.validate()
    mechanism = find(spec.symptom, spec.mechanism)
    if spec.clean:
        mechanism = mechanism.without_fault()
    clock, cores = MonotonicClock(), split_cores()
    with tempfile.TemporaryDirectory(prefix="phasescope-") as folder:
        episode = _Episode(spec, mechanism, Path(folder), clock, cores, say)
        try:
            return asyncio.run(episode.run())
        except asyncio.CancelledError:
            raise SystemExit(TERMINATED) from None


class _Episode:
    def __init__(
        self,
        spec: EpisodeSpec,
        mechanism: Mechanism,
        folder: Path,
        clock: Clock,
        cores: Cores,
        say: Say,
    ) -> None:
        """`folder` is the server's: temporary, with a name that does not show the fault."""
        self._spec, self._mechanism = spec, mechanism
        self._clock, self._cores, self._say = clock, cores, say
        self._server_folder = folder
        self.name = f"{mechanism.symptom}-{mechanism.name}-{spec.seed}"
        self._out_folder = spec.out / self.name
        self._hooks = Hooks(folder, clock)
        self._record = EpisodeRecord(lag_limit_ms=mechanism.lag_limit_ms)
        files = () if mechanism.files is None else mechanism.files(folder / "files", spec.model)
        self._flags = (*spec.base_flags(), *mechanism.flags, *files)

    async def run(self) -> EpisodeResult:
        cancel_on_sigterm()
        self._out_folder.mkdir(parents=True, exist_ok=True)
        mechanism, spec = self._mechanism, self._spec
        if mechanism.broken_model is not None:
            capacity = _NO_CAPACITY
        else:
            capacity = spec.capacity or await self._capacity()
        scene = Scene(
            seed=spec.seed,
            phases=spec.phases,
            capacity=capacity,
            intensity=mechanism.level(spec.intensity),
            load=mechanism.load,
            mix=mechanism.mix,
        )
        self._say(f"{self.name}: {mechanism.about} ({scene.intensity:g} {mechanism.unit})")
        requests = [] if mechanism.broken_model else mechanism.traffic(scene)
        pacer = Pacer(self._out_folder / "pace", min(self._cores.engine, default=-1))
        pacer.start()
        try:
            await self._play(scene, requests)
        finally:
            self._record.beats = await pacer.end()
        return self._finish(scene)

    async def _play(self, scene: Scene, requests: list[PlannedRequest]) -> None:
        mechanism = self._mechanism
        if mechanism.broken_model is not None:
            await self._with_broken_model(scene)
        elif mechanism.never_better:
            await self._with_server_never_better(scene, requests)
        elif mechanism.bad_flags is not None:
            await self._with_bad_server(scene, requests)
        else:
            await self._with_one_server(scene, requests)

    # The kinds of episode

    async def _with_one_server(self, scene: Scene, requests: list[PlannedRequest]) -> None:
        phases, record = scene.phases, self._record
        injection = self._mechanism.injection(scene)
        async with AsyncExitStack() as stack:
            collector = None
            if self._mechanism.needs_collector:
                collector = await stack.enter_async_context(Collector())
            flags = (*self._flags, *(collector.flags if collector else ()))
            server = await stack.enter_async_context(self._server(flags))
            target = InjectionTarget(server, self._hooks, scene, self._cores, collector)
            stack.push_async_callback(injection.end, target)
            await injection.arm(target)
            stage = self._stage(server, "a")

            async def begin() -> None:
                await stage.take_reading(Phase.FAULT)
                record.on_ns = self._clock.now_ns()
                await injection.begin(target)

            async def end() -> None:
                record.root = await root_of(server.port)
                await injection.end(target)
                record.off_ns = self._clock.now_ns()
                record.failures += injection.failures
                record.nices += injection.nices
                await stage.take_reading(Phase.RECOVERY)

            actions: list[tuple[float, TimedAction]] = [
                (phases.reference_at_s, partial(stage.take_reading, Phase.REFERENCE)),
                (phases.fault_at_s, begin),
                (phases.recovery_at_s, end),
            ]
            await stage.play(requests, 0.0, phases.end_s, actions)
            await stage.take_reading(Phase.RECOVERY)
            await self._close(stage, "journal")
        record.conditions |= stage.conditions()

    async def _with_bad_server(self, scene: Scene, requests: list[PlannedRequest]) -> None:
        phases, record = scene.phases, self._record
        baseline = self._server_folder / "baseline.json"
        async with self._server(self._flags) as good:
            stage = self._stage(good, "a")
            actions: list[tuple[float, TimedAction]] = [
                (phases.reference_at_s, partial(stage.take_reading, Phase.REFERENCE)),
                (phases.fault_at_s, partial(stage.take_reading, Phase.FAULT)),
            ]
            await stage.play(requests, 0.0, phases.fault_at_s, actions)
            record.has_baseline = await save_baseline(good.url, baseline)
            if record.has_baseline:
                shutil.copyfile(baseline, self._out_folder / "baseline.json")
            need = Need(blocks_total=int((await good.snapshot())["blocks_total"]))
            await self._close(stage, "reference.journal")
        record.conditions |= stage.conditions()
        record.samples.clear()  # those of the good server
        assert self._mechanism.bad_flags is not None
        bad = self._mechanism.bad_flags(need, scene.intensity)
        flags = (*self._flags, *bad, *await baseline_flags(baseline))
        self._say(f"a server takes over with {' '.join(bad)}")
        async with self._server(flags) as server:
            stage = self._stage(server, "b")
            actions = [(phases.fault_at_s, partial(stage.take_reading, Phase.FAULT))]
            await stage.play(requests, phases.fault_at_s, phases.recovery_at_s, actions)
            await stage.take_reading(Phase.RECOVERY)
            record.root = await root_of(server.port)
            record.conditions |= stage.conditions()
            record.on_ns = stage.at_ns(phases.fault_at_s)
            record.off_ns = stage.at_ns(phases.recovery_at_s)
            await self._close(stage, "journal")

    async def _with_server_never_better(self, scene: Scene, requests: list[PlannedRequest]) -> None:
        """No reference: what is wrong has been so since the start."""
        phases, record = scene.phases, self._record
        assert self._mechanism.bad_flags is not None
        bad = self._mechanism.bad_flags(Need(blocks_total=0), scene.intensity)
        async with self._server((*self._flags, *bad)) as server:
            stage = self._stage(server, "a")
            actions: list[tuple[float, TimedAction]] = [
                (phases.reference_at_s, partial(stage.take_reading, Phase.FAULT))
            ]
            await stage.play(requests, 0.0, phases.recovery_at_s, actions)
            await stage.take_reading(Phase.RECOVERY)
            record.root = await root_of(server.port)
            record.conditions |= stage.conditions()
            record.on_ns = stage.at_ns(0.0)
            record.off_ns = stage.at_ns(phases.recovery_at_s)
            await self._close(stage, "journal")

    async def _with_broken_model(self, scene: Scene) -> None:
        record, break_model = self._record, self._mechanism.broken_model
        assert break_model is not None
        model = resolve_model(self._spec.model, self._say)
        if model.kind is not ModelKind.GGUF:
            raise ConfigError(
                "this drill breaks a .gguf file: give one with --model, or leave --model out"
            )
        broken = self._server_folder / "model.gguf"
        await asyncio.to_thread(break_model, Path(model.path), broken, scene.intensity)
        spec = msgspec.structs.replace(self._spec, model=str(broken))
        written, kept = self._server_folder / "journal", self._out_folder / "journal"
        server = self._server((*spec.base_flags(), "--journal-dir", str(written)))
        poller = DiagnosisPoller(server.port, self._clock)
        polling = asyncio.create_task(poller.run())
        record.on_ns = self._clock.now_ns()
        try:
            async with server:
                record.failures.append("the server started, although its model is broken")
        except DidNotStart:
            record.exit_code, record.exit_line = server.exit_code, server.last_line()
        finally:
            polling.cancel()
        diagnosis = await diagnosis_of(written)
        if diagnosis is not None:
            poller.take(diagnosis)
        record.off_ns = self._clock.now_ns()
        record.samples += poller.samples
        if written.exists():
            await asyncio.to_thread(shutil.copytree, written, kept, dirs_exist_ok=True)

    # Shared by all

    async def _capacity(self) -> Capacity:
        flags = (*self._flags, *JOURNAL_FLAGS)
        return await capacity_of(
            flags,
            self._mechanism.mix,
            self._spec.capacity_s,
            self._spec.out,
            self._clock,
            self._say,
            self._cores,
            self._spec.capacity_users,
        )

    def _server(self, flags: tuple[str, ...]) -> DrillServer:
        return DrillServer(
            (*flags, *JOURNAL_FLAGS),
            self._server_folder,
            self._clock,
            self._say,
            env=self._hooks.env,
            cores=self._cores,
        )

    def _stage(self, server: DrillServer, name: str) -> Stage:
        spec, name = self._spec, f"{self._spec.seed}{name}"
        return Stage(server, spec.phases, self._cores, self._clock, self._say, name)

    async def _close(self, stage: Stage, journal: str) -> None:
        """Save the server's journal while requests are still open, close these and keep the
        logs."""
        record = self._record
        if not await stage.server.save_journal(self._out_folder / journal):
            self._say("the server's journal could not be saved")
        await stage.close_clients()
        record.logs.append((stage.begin_ns, stage.log))
        record.samples += stage.poller.samples
        stage.poller.save(self._out_folder / "verdicts.jsonl")
        record.exit_code = stage.server.exit_code

    def _finish(self, scene: Scene) -> EpisodeResult:
        """Write the clients' log, then seal the label and write the result."""
        record, name = self._record, self.name
        lines = [msgspec.json.encode(one) + b"\n" for _, log in record.logs for one in log]
        (self._out_folder / "clients.jsonl").write_bytes(b"".join(lines))
        server_log = self._server_folder / "server.log"
        if server_log.exists():
            shutil.copyfile(server_log, self._out_folder / "server.log")
        label = label_of(record, scene, self._mechanism)
        sealed = seal(label, self._spec.out, name)
        self._say(f"label sealed: {sealed.path} sha256 {sealed.sha256}")
        result = result_of(record, scene, self._mechanism, label, sealed.sha256, name, self._flags)
        data = msgspec.json.format(msgspec.json.encode(result), indent=1)
        (self._spec.out / FOLDER / f"{name}.result.json").write_bytes(data)
        return result
