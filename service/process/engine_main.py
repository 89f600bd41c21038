"""The engine process: reads commands from a socket, runs the engine loop, sends a frame a step.

It is a process of its own so that nothing in the gateway (SSE, JSON, exporters, garbage
collection) holds the interpreter lock while the device waits. One thread runs the loop, another
writes the heartbeat (`service.process.heartbeat`). The process never blocks on the gateway
(`service.process.gateway_connection`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from service.config.settings import ConfigError, EngineConfig
from service.device.failures import stated_failure
from service.device.loader import LoadedEngine, load_executor
from service.device.sampling.grammar_compiler import GrammarCompiler
from service.engine.admission import Limits
from service.engine.inbox import (
    Cancel,
    FlushCache,
    GrammarReady,
    Inbox,
    LoadAdapter,
    Pause,
    Resume,
    SetLimits,
    SetRecording,
    SetStepCost,
    Submit,
    UnloadAdapter,
    WeightsRead,
)
from service.engine.limits_record import record_of
from service.engine.loop import EngineLoop
from service.engine.scheduler import Scheduler
from service.engine.warm_up import warm_up
from service.process import frames
from service.process.adapter_store import AdapterStore
from service.process.engine_limits import limits_of
from service.process.gateway_connection import GatewayConnection, GatewayGone
from service.process.grammars import Compiler, Grammars
from service.process.heartbeat import Heartbeat
from service.process.kv_exchange import KvExchange, open_exchange
from service.process.live_sequences import SequenceLister
from service.process.many_gateways import ManyGateways
from service.process.prefix_news import PrefixNews
from service.process.profiling import Profiles
from telemetry.costs.step_cost import fit, warm_up_steps
from telemetry.facts.clock import Clock, MonotonicClock, sleep_ns
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.engine_start import StageTime, WarmUpStep
from telemetry.facts.reasons import FactSource, HostProcess, StartStage
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact
from telemetry.facts.stages import Stages
from telemetry.host.gc_watch import GcWatch, settle_collector

_PAUSES_KEPT = 1024
_GAP_S = 1.0  # the longest wait while dropped facts have not been reported
_EXIT_DELAY_NS = 1_000_000_000


class EngineServer:
    """Passes commands from the gateway to the engine loop, and its emissions and facts back."""

    def __init__(
        self,
        gateway: GatewayConnection,
        inbox: Inbox,
        loop: EngineLoop,
        lane: Lane,
        clock: Clock,
        compiler: Compiler,
        profiles: Profiles,
        pauses: Lane | None = None,
        heartbeat: Heartbeat | None = None,
        kv: KvExchange | None = None,
    ) -> None:
        self._gateway = gateway
        self._clock = clock
        self._profiles = profiles
        self._inbox = inbox
        self._loop = loop
        self._grammars = Grammars(compiler, loop)
        self._lane = lane
        self._lister = SequenceLister(clock)
        self._prefixes = PrefixNews(loop.scheduler.prefix, gateway)
        self._pauses = Lane(1) if pauses is None else pauses
        self._heartbeat = Heartbeat(None, clock) if heartbeat is None else heartbeat
        self._kv = kv

    def serve(self) -> None:
        """Run until a Shutdown. Raises GatewayGone when the gateway closes the socket."""
        while True:
            constrained: list[Submit] = []
            for message in self._receive():
                match message:
                    case Submit():
                        self._lister.note_submitted(message.seq_id)
                        if self._kv is None or not self._kv.submit(message):
                            self._inbox.put(message)
                        if message.grammar is not None:
                            constrained.append(message)
                    case Cancel() | Pause() | Resume() | FlushCache() | SetLimits():
                        self._inbox.put(message)
                    case SetRecording() | SetStepCost() | LoadAdapter() | UnloadAdapter():
                        self._inbox.put(message)
                    case frames.PrefillElsewhere():
                        if self._kv is not None:
                            self._kv.elsewhere(message)
                    case frames.StartProfile() | frames.StopProfile():
                        self._profiles.handle(message)
                    case frames.WatchPrefixes():
                        self._prefixes.watch(message)
                    case frames.Shutdown():
                        self._loop.apply_commands()
                        self._gateway.send_frame(frames.Frame([], self._take_facts(), self._lost))
                        return
                    case frames.Launch() | frames.UseVocabulary():
                        raise ValueError(f"a second {type(message).__name__}")
            self._grammars.compile(constrained + self._poll_kv())
            emissions = self._loop.step()
            self._grammars.after_step(emissions)
            facts = self._take_facts()
            if self._kv is not None:
                emissions = self._kv.after_step(emissions, facts)
                facts += self._take_facts()
            live = self._loop.scheduler.table.live
            facts += self._lister.due(facts, live, self._gateway.has_gap_to_report)
            if emissions or facts:
                self._gateway.send_frame(frames.Frame(emissions, facts, self._lost))
            self._prefixes.say()
            if self._profiles.open is not None and self._profiles.end_full():
                self._gateway.send_frame(frames.Frame([], self._take_facts(), self._lost))
            self._loop.check_idle()

    def _poll_kv(self) -> list[Submit]:
        """What came from other engines; gives the sequences of theirs that need a grammar."""
        begun = [] if self._kv is None else self._kv.poll()
        for submit in begun:
            self._lister.note_submitted(submit.seq_id)
        return [submit for submit in begun if submit.grammar is not None]

    def _receive(self) -> list[frames.ToEngine]:
        """Wait for messages while idle; they begin an iteration of the loop."""
        idle_s = self._idle_s()
        if idle_s != 0:
            self._heartbeat.idle()
        messages = self._gateway.receive(idle_s)
        self._heartbeat.begin_iteration()
        return messages

    def _take_facts(self) -> list[Fact]:
        facts = self._lane.drain()
        if len(self._pauses):
            facts += self._pauses.drain()
        return facts

    @property
    def _lost(self) -> int:
        return self._lane.lost + self._pauses.lost

    def _idle_s(self) -> float | None:
        """How long the loop may wait for a message; None: without limit."""
        if self._loop.has_work or len(self._inbox) or self._prefixes.has_more:
            return 0
        wakes_ns = (self._loop.wake_ns, None if self._kv is None else self._kv.wake_ns)
        wake_ns = min((one for one in wakes_ns if one is not None), default=None)
        most_s = _GAP_S if self._gateway.has_gap else None
        if wake_ns is None:
            return most_s
        wait_s = max(0.0, (wake_ns - self._clock.now_ns()) / 1e9)
        return wait_s if most_s is None else min(wait_s, most_s)


def run_engine_process(
    connection: socket.socket,
    heartbeat_fd: int | None = None,
    listener: socket.socket | None = None,
) -> int:
    """Run the engine process; returns its exit code.

    `heartbeat_fd` is the shared page of the heartbeat, if the gateway watches it. Further gateway
    processes connect to `listener`, if there are several.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the gateway sends Shutdown
    clock = MonotonicClock()
    gateway = (
        GatewayConnection(connection) if listener is None else ManyGateways(connection, listener)
    )
    heartbeat = Heartbeat(heartbeat_fd, clock)
    heartbeat.start()
    try:
        return _run(gateway, _read_only(gateway, frames.Launch), clock, heartbeat)
    except GatewayGone:
        return 0
    except ConfigError as error:
        gateway.send_last(frames.EngineFailed(str(error), is_config=True))
        return 2
    except Exception as error:
        said, failure = f"{type(error).__name__}: {error}", stated_failure(error)
        gateway.send_last(frames.EngineFailed(said, is_config=False, failure=failure))
        raise


First = TypeVar("First", frames.Launch, frames.UseVocabulary)


def _read_only(gateway: GatewayConnection, kind: type[First]) -> First:
    """The next message, which must be of type `kind`. Raises GatewayGone on a Shutdown."""
    message = gateway.receive_one()
    if isinstance(message, frames.Shutdown):
        raise GatewayGone
    if not isinstance(message, kind):
        raise ValueError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message


def _run(
    gateway: GatewayConnection, launch: frames.Launch, clock: Clock, heartbeat: Heartbeat
) -> int:
    config = launch.config
    lane, inbox = Lane(source=FactSource.ENGINE), Inbox()
    stages = Stages(clock, launch.begun_ns)
    stages.end(StartStage.IMPORTS)

    def progress(stage: str) -> None:
        gateway.send(frames.LoadProgress(stage))

    def on_ready(ready: GrammarReady | WeightsRead) -> None:
        inbox.put(ready)
        gateway.wake()

    config.validate()
    compilers: list[GrammarCompiler] = []

    def make_compiler(vocab_logits: int) -> GrammarCompiler:
        # as many as sequences can be live; what live ones want is kept anyway
        kept = config.queue_limit_requests + config.max_seqs
        vocabulary = _read_only(gateway, frames.UseVocabulary).vocabulary
        compilers.append(GrammarCompiler(vocabulary, vocab_logits, clock, on_ready, kept))
        return compilers[0]

    loaded = load_executor(config, clock, progress, make_compiler, stages.end, _exit_rank_lost)
    loaded.own_process()
    limits = limits_of(config, loaded)
    progress("warming up")
    warm = warm_up(loaded.executor, limits, clock)
    stages.end(StartStage.WARM_UP)
    scheduler = Scheduler(limits, vocab_tokens=loaded.spec.vocab)
    adapters = AdapterStore(loaded, clock, on_ready, config.lora_read_timeout_s)
    loop = EngineLoop(
        scheduler, loaded.executor, inbox, lane, clock, loaded.pipeline_depth, adapters
    )
    inbox.put(first_cost(warm))
    settle_collector()
    pauses = Lane(_PAUSES_KEPT)
    if config.watch_host:
        GcWatch(HostProcess.ENGINE, pauses, clock).install()
    stages.end(StartStage.ENGINE)
    lane.append(_started(config, limits, loaded, stages.done, warm))
    adapters.load_at_start(config.named_loras, inbox, loop.apply_commands)
    kv = open_exchange(launch.kv, loaded, scheduler, limits, inbox, lane, clock, gateway)
    gateway.send_frame(frames.Frame([], lane.drain(), lane.lost))
    profiles = Profiles(loop, loaded, lane, clock, gateway.send)
    try:
        EngineServer(
            gateway, inbox, loop, lane, clock, compilers[0], profiles, pauses, heartbeat, kv
        ).serve()
    finally:
        profiles.close()
        compilers[0].close()
        adapters.close()
        if kv is not None:
            kv.close()
    loaded.executor.close()
    return 0


def first_cost(steps: Sequence[WarmUpStep]) -> SetStepCost:
    """What steps cost by the warm-up, until the gateway has fitted served ones."""
    return SetStepCost(**msgspec.structs.asdict(fit(warm_up_steps(steps))))


def _exit_rank_lost(what: str) -> None:
    """A rank was lost: exit after a second. A running step reports the failure itself and ends
    the process earlier, unless it waits for a GPU that waits for the lost rank."""
    sleep_ns(_EXIT_DELAY_NS)
    sys.stderr.write(f"phasescope: {what}\n")
    sys.stderr.flush()
    os._exit(frames.EXIT_RANK_LOST)


def _started(
    config: EngineConfig,
    limits: Limits,
    loaded: LoadedEngine,
    stages: tuple[StageTime, ...],
    warm: tuple[WarmUpStep, ...],
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
        warm_up=warm,
        no_prompt_outputs=loaded.backend.no_states,
    )
