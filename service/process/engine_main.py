"""The engine process: commands in from a socket, the loop, one frame a step out.

It is a process of its own so that nothing the gateway does (SSE, JSON, exporters, its
garbage collector) can hold the interpreter lock while the device waits. The process has
one thread that works and one that beats (`service.process.heartbeat`); it never blocks on the
gateway (`service.process.link`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import TypeVar

from service.config.settings import ConfigError, EngineConfig
from service.device.failures import told_failure
from service.device.loader import LoadedEngine, load_executor
from service.device.sampling.grammar_compiler import GrammarCompiler
from service.engine.admission import Limits
from service.engine.fairness import Policy
from service.engine.inbox import (
    Cancel,
    FlushCache,
    GrammarReady,
    Inbox,
    Pause,
    Resume,
    SetRecording,
    SetStepCost,
    Submit,
)
from service.engine.kv.cpu_offload import Retention
from service.engine.limits_record import record_of
from service.engine.loop import EngineLoop
from service.engine.scheduler import Scheduler
from service.engine.warm_up import warm_up
from service.process import frames
from service.process.heartbeat import Pulse
from service.process.link import GatewayGone, Link
from service.process.live_sequences import SequenceLister
from service.process.profiling import Profiles
from telemetry.facts.clock import Clock, MonotonicClock, sleep_ns
from telemetry.facts.engine_records import EngineStarted, StageTime
from telemetry.facts.reasons import FactSource, HostProcess, StartStage
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact
from telemetry.facts.stages import Stages
from telemetry.host.gc_watch import GcWatch, settle_collector

_PAUSES_KEPT = 1024
_GAP_S = 1.0  # while facts were shed and that could not be told
_LAST_WORDS_NS = 1_000_000_000


class EngineHost:
    """Feeds the loop from the link and the link from the loop."""

    def __init__(
        self,
        link: Link,
        inbox: Inbox,
        loop: EngineLoop,
        lane: Lane,
        clock: Clock,
        compiler: GrammarCompiler,
        profiles: Profiles,
        pauses: Lane | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        self._link = link
        self._clock = clock
        self._compiler = compiler
        self._profiles = profiles
        self._inbox = inbox
        self._loop = loop
        self._lane = lane
        self._lister = SequenceLister(clock)
        self._pauses = Lane(1) if pauses is None else pauses
        self._pulse = Pulse(None, clock) if pulse is None else pulse

    def serve(self) -> None:
        """Run until told to shut down. Raises GatewayGone when the gateway went away."""
        while True:
            constrained: list[Submit] = []
            for message in self._receive():
                match message:
                    case Submit():
                        self._lister.heard(message.seq_id)
                        self._inbox.put(message)
                        if message.grammar is not None:
                            constrained.append(message)
                    case (
                        Cancel()
                        | Pause()
                        | Resume()
                        | FlushCache()
                        | SetRecording()
                        | SetStepCost()
                    ):
                        self._inbox.put(message)
                    case frames.StartProfile() | frames.StopProfile():
                        self._profiles.take(message)
                    case frames.Shutdown():
                        self._loop.apply_commands()
                        self._link.send_frame(frames.Frame([], self._take_facts(), self._lost))
                        return
                    case frames.Launch() | frames.UseVocabulary():
                        raise ValueError(f"a second {type(message).__name__}")
            self._compile(constrained)
            emissions = self._loop.step()
            facts = self._take_facts()
            live = self._loop.scheduler.table.live
            facts += self._lister.due(facts, live, self._link.has_gap_to_tell)
            if emissions or facts:
                self._link.send_frame(frames.Frame(emissions, facts, self._lost))
            if self._profiles.open is not None and self._profiles.end_full():
                self._link.send_frame(frames.Frame([], self._take_facts(), self._lost))
            self._loop.check_idle()

    def _receive(self) -> list[frames.ToEngine]:
        """What has come; a turn begins with it."""
        idle_s = self._idle_s()
        if idle_s != 0:
            self._pulse.rest()
        messages = self._link.receive(idle_s)
        self._pulse.turn()
        return messages

    def _take_facts(self) -> list[Fact]:
        facts = self._lane.drain()
        if len(self._pauses):
            facts += self._pauses.drain()
        return facts

    @property
    def _lost(self) -> int:
        return self._lane.lost + self._pauses.lost

    def _compile(self, submits: list[Submit]) -> None:
        """Have grammars compiled, of those requests only that the queue has taken."""
        if not submits:
            return
        self._loop.apply_commands()
        for submit in submits:
            if submit.seq_id in self._loop.scheduler.table.live:
                assert submit.grammar is not None
                self._compiler.request(submit.seq_id, submit.grammar)

    def _idle_s(self) -> float | None:
        """How long nothing is to be done unless a message comes."""
        if self._loop.has_work or len(self._inbox):
            return 0
        wake_ns = self._loop.wake_ns
        most_s = _GAP_S if self._link.has_gap else None
        if wake_ns is None:
            return most_s
        wait_s = max(0.0, (wake_ns - self._clock.now_ns()) / 1e9)
        return wait_s if most_s is None else min(wait_s, most_s)


def run_engine_process(connection: socket.socket, pulse_fd: int | None = None) -> int:
    """The engine process from its first message to its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the gateway decides when we end
    link, clock = Link(connection), MonotonicClock()
    pulse = Pulse(pulse_fd, clock)
    pulse.start()
    try:
        return _run(link, _read_only(link, frames.Launch), clock, pulse)
    except GatewayGone:
        return 0
    except ConfigError as error:
        link.send_last(frames.EngineFailed(str(error), is_config=True))
        return 2
    except Exception as error:
        said, failure = f"{type(error).__name__}: {error}", told_failure(error)
        link.send_last(frames.EngineFailed(said, is_config=False, failure=failure))
        raise


First = TypeVar("First", frames.Launch, frames.UseVocabulary)


def _read_only(link: Link, kind: type[First]) -> First:
    """The next message, which must be of that kind. Raises GatewayGone when told to end."""
    message = link.receive_one()
    if isinstance(message, frames.Shutdown):
        raise GatewayGone
    if not isinstance(message, kind):
        raise ValueError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message


def _run(link: Link, launch: frames.Launch, clock: Clock, pulse: Pulse) -> int:
    config = launch.config
    lane, inbox = Lane(source=FactSource.ENGINE), Inbox()
    stages = Stages(clock, launch.begun_ns)
    stages.end(StartStage.IMPORTS)

    def progress(stage: str) -> None:
        link.send(frames.LoadProgress(stage))

    def on_ready(ready: GrammarReady) -> None:
        inbox.put(ready)
        link.wake()

    config.validate()
    compilers: list[GrammarCompiler] = []

    def make_compiler(vocab_logits: int) -> GrammarCompiler:
        # as many as can wait at once, or one would be pushed out before it is used
        kept = config.queue_limit_requests + config.max_seqs
        vocabulary = _read_only(link, frames.UseVocabulary).vocabulary
        compilers.append(GrammarCompiler(vocabulary, vocab_logits, clock, on_ready, kept))
        return compilers[0]

    loaded = load_executor(config, clock, progress, make_compiler, stages.end, _end_soon)
    loaded.own_process()
    limits = _limits(config, loaded)
    progress("warming up")
    warm_up(loaded.executor, limits)
    stages.end(StartStage.WARM_UP)
    scheduler = Scheduler(limits, vocab_tokens=loaded.spec.vocab)
    loop = EngineLoop(scheduler, loaded.executor, inbox, lane, clock, depth=loaded.pipeline_depth)
    settle_collector()
    pauses = Lane(_PAUSES_KEPT)
    if config.watch_host:
        GcWatch(HostProcess.ENGINE, pauses, clock).install()
    stages.end(StartStage.ENGINE)
    lane.append(_started(config, limits, loaded, stages.done))
    link.send_frame(frames.Frame([], lane.drain(), lane.lost))
    profiles = Profiles(loop, loaded, lane, clock, link.send)
    try:
        EngineHost(link, inbox, loop, lane, clock, compilers[0], profiles, pauses, pulse).serve()
    finally:
        profiles.close()
    loaded.executor.close()
    return 0


def _end_soon(what: str) -> None:
    """What the model is computed with is not whole any more. A step says so itself and ends the
    process, unless there is none or it waits for a GPU that waits for another."""
    sleep_ns(_LAST_WORDS_NS)
    sys.stderr.write(f"phasescope: {what}\n")
    sys.stderr.flush()
    os._exit(frames.EXIT_RANK_LOST)


def _limits(config: EngineConfig, loaded: LoadedEngine) -> Limits:
    return Limits(
        block_tokens=loaded.executor.block_tokens,
        blocks_total=loaded.executor.blocks_total,
        max_model_tokens=loaded.max_model_tokens,
        max_seqs=config.max_seqs,
        budget_tokens=config.max_batched_tokens,
        chunked_prefill=config.chunked_prefill,
        queue_limit_requests=config.queue_limit_requests,
        queue_limit_tokens=config.queue_limit_tokens,
        policy=Policy(config.fairness),
        ageing_ns=int(config.ageing_s * 1e9),
        tenant_max_seqs=config.tenant_max_seqs,
        tenant_queue_limit=config.tenant_queue_limit,
        itl_target_ns=_ns(config.itl_target_ms, 1e6),
        prefix_cache=config.prefix_cache,
        cache_identity=f"{config.model.kind} {config.model.path}; own tokenizer; no adapter; "
        f"{loaded.backend.dtype}",
        draft_tokens=config.draft_tokens,
        host_slots=loaded.executor.host_slots,
        retention=Retention(
            tenant_share=config.kv_offload_tenant_share, ttl_ns=_ns(config.kv_offload_ttl_s, 1e9)
        ),
    )


def _ns(value: float | None, factor: float) -> int | None:
    return None if value is None else int(value * factor)


def _started(
    config: EngineConfig, limits: Limits, loaded: LoadedEngine, stages: tuple[StageTime, ...]
) -> EngineStarted:
    return EngineStarted(
        at_ns=stages[-1].end_ns,
        pid=os.getpid(),
        model=config.model.name,
        backend=loaded.backend.name,
        dtype=loaded.backend.dtype,
        pipeline_depth=loaded.pipeline_depth,
        **record_of(limits),
        stages=stages,
        shape=loaded.shape,
    )
