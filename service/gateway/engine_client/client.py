"""The gateway's client of the engine process: sends commands, receives frames.

A frame's emissions go to the requests' output queues, its facts to a lane. One client serves for
as long as the gateway runs; engine processes are attached to it one after the other. It runs on
the event loop and never blocks it. When an engine process ends, every sequence in flight gets an
emission that ends it with ENGINE_DIED.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Iterable, Sequence

from service.config.settings import EngineConfig
from service.engine.inbox import Cancel, Pause, Resume, Submit
from service.engine.plan import Emission
from service.engine.vocabulary import Vocabulary
from service.gateway.engine_client.adapters import AdapterView
from service.gateway.engine_client.engine_protocol import EngineProtocol
from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.engine_client.request_context import RequestContext
from service.gateway.engine_client.runtime_limits import RuntimeLimitsOwner
from service.gateway.errors import ApiError, EngineUnavailable, not_ready, not_responding
from service.gateway.server_state import Health
from service.process import frames
from telemetry.facts.adapter_records import AdapterFact
from telemetry.facts.engine_records import (
    EngineStarted,
    GrammarCompiled,
    LimitsSet,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact

_QUEUES_PER_ITERATION = 16  # of the event loop: less than half a millisecond of work


class EngineClient:
    """Connects requests with the running engine process.

    `on_frame` is called with the facts of each frame that was read (the loop probe uses it),
    `on_prefixes` with what the engine says of its prefix cache, where it was asked, `on_detach`
    when the engine process has ended.
    `frames` counts those of this engine. Of several gateway processes the main one has a `lane`:
    it records the engine's facts. Sequence ids begin after `first_seq_id`.
    """

    def __init__(
        self, lane: Lane | None, on_progress: Callable[[str], None], first_seq_id: int = 0
    ) -> None:
        self.started: EngineStarted | None = None
        self.failure: frames.EngineFailed | None = None
        self.kv_launch: frames.KvLaunch | None = None
        self.kv_offered: frames.KvOffered | None = None
        self.lost_facts = 0
        self.health = Health()
        self.limits = RuntimeLimitsOwner(self.send)
        self.adapters = AdapterView(self.send)
        self.on_frame: Callable[[Sequence[Fact]], None] = lambda facts: None
        self.on_prefixes: Callable[[frames.PrefixesHeld], None] = lambda news: None
        self.on_detach: Callable[[], None] = _nothing
        self.before_frame: Callable[[], None] = _nothing
        self.after_frame: Callable[[], None] = _nothing
        self._lane = lane
        self._on_progress = on_progress
        self.frames = 0
        self._queues: dict[int, OutputQueue] = {}
        self._waiting: dict[int, None] = {}  # in the order of their arrival in the engine
        self._writer: asyncio.WriteTransport | None = None
        self._pending_writes: list[tuple[Callable[[bytes], None], bytes]] = []
        self._unflushed: dict[OutputQueue, None] = {}
        self._vocabulary: bytes | None = None
        self._last_seq_id = first_seq_id
        self._lost_before = 0
        self._ready = asyncio.Event()
        self._profile: asyncio.Future[frames.ProfileEnded | None] | None = None

    @property
    def ready(self) -> bool:
        """Whether requests are accepted."""
        return self.has_engine and self.health.hung_ns is None

    @property
    def has_engine(self) -> bool:
        """Whether an engine has loaded and its process runs; it may be hung."""
        writer = self._writer
        return self._ready.is_set() and (writer is None or not writer.is_closing())

    @property
    def sequences(self) -> int:
        """Number of sequences in flight."""
        return len(self._queues)

    def unavailable_error(self) -> ApiError:
        """The error for a request while the engine is not ready."""
        hung_ns = self.health.hung_ns
        return not_ready() if hung_ns is None else not_responding(hung_ns)

    async def wait_ready(self) -> EngineStarted:
        await self._ready.wait()
        assert self.started is not None
        return self.started

    def next_seq_id(self) -> int:
        self._last_seq_id += 1
        return self._last_seq_id

    def submit(self, command: Submit, queue: OutputQueue, about: RequestContext) -> int:
        """Send a sequence to the engine; its emissions arrive in `queue`. `about` its request is
        for engines that are elsewhere.

        Returns the number of bytes written. Raises EngineUnavailable when no engine is ready.
        """
        if self._writer is None or not self.ready:
            raise EngineUnavailable
        self._queues[command.seq_id] = queue
        message = frames.encode(command)
        self._write(message)
        return len(message)

    def cancel(self, seq_id: int, reason: EndReason) -> None:
        """Ask the engine to end a sequence; does nothing if it has ended."""
        if seq_id in self._queues:
            self._write(frames.encode(Cancel(seq_id, reason)))

    def pause(self, seq_id: int, paused: bool) -> None:
        """Pause or resume a sequence whose client reads slowly."""
        if seq_id in self._queues:
            self._write(frames.encode(Pause(seq_id) if paused else Resume(seq_id)))

    def send(self, command: frames.ToEngine) -> None:
        """Send a command that is about no request of this client, or comes before its submit;
        dropped when no engine is ready."""
        if self.ready:
            self._put(frames.encode(command))

    @property
    def is_profiling(self) -> bool:
        """Whether a profile was started that the engine has not answered yet."""
        return self._profile is not None

    def start_profile(self, steps: int, path: str) -> asyncio.Future[frames.ProfileEnded | None]:
        """Let the engine profile its next `steps` steps into the file `path`.

        The future's result is None if the engine dies first. One profile at a time. Raises
        EngineUnavailable when no engine is ready.
        """
        assert self._profile is None
        if self._writer is None or not self.ready:
            raise EngineUnavailable
        self._profile = asyncio.get_running_loop().create_future()
        self._put(frames.encode(frames.StartProfile(steps, path)))
        return self._profile

    def stop_profile(self, keep: bool) -> None:
        """End the profile now; its file is written if `keep`. Does nothing if it has ended."""
        if self._profile is not None:
            self._put(frames.encode(frames.StopProfile(keep)))

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Send the tokenizer's vocabulary to this engine process and to all later ones."""
        self._vocabulary = frames.encode(frames.UseVocabulary(vocabulary))
        self._put(self._vocabulary)

    def _write(self, message: bytes) -> None:
        """Write a command about a sequence to the engine."""
        self._put(message)

    def _put(self, message: bytes) -> None:
        """Write to the engine that there is; one that is ending needs no commands any more."""
        if self._writer is not None:
            # uvloop's raises between the end of the socket and `_detach`, an iteration later
            with contextlib.suppress(RuntimeError):
                self._writer.write(message)

    async def attach(self, connection: socket.socket, config: EngineConfig, begun_ns: int) -> None:
        """Use one engine process until its end of the socket closes.

        `begun_ns` is when the process was started.
        """
        first = frames.encode(frames.Launch(config, begun_ns, self.kv_launch))
        await self._use(connection, first)

    async def _use(self, connection: socket.socket, first: bytes) -> None:
        """Write the `first` message, and the vocabulary if it is there, then read until the socket
        closes."""
        loop = asyncio.get_running_loop()
        closed = loop.create_future()
        writer, _ = await loop.create_connection(
            lambda: EngineProtocol(self._receive, closed), sock=connection
        )
        self.failure = None
        self._writer = writer
        try:
            # looked at only now: it may have come while the connection was made
            writer.write(first + (self._vocabulary or b""))
            await closed
        finally:
            self._detach()
            writer.close()

    def abort(self) -> None:
        """Close our end of the socket at once: the engine does not, though it was killed. Does
        nothing where no engine is attached."""
        if self._writer is not None:
            self._writer.abort()

    def request_shutdown(self) -> None:
        """Ask the engine process to exit."""
        self._put(frames.encode(frames.Shutdown()))

    def write_after_flush(self, write: Callable[[bytes], None], body: bytes) -> None:
        """Call `write(body)` once all queues of this event loop iteration have been flushed."""
        self._pending_writes.append((write, body))

    def _receive(self, message: frames.ToGateway) -> None:
        match message:
            case frames.Frame():
                self._receive_frame(message)
            case frames.LoadProgress():
                self._on_progress(message.stage)
            case frames.PrefixesHeld():
                self.on_prefixes(message)
            case frames.KvOffered():
                self.kv_offered = message
            case frames.ProfileEnded():
                self._profile_ended(message)
            case frames.EngineFailed():
                self.failure = message

    def _receive_frame(self, frame: frames.Frame) -> None:
        self.before_frame()
        self.on_frame(frame.facts)
        self.frames = frame.number or self.frames + 1
        for fact in frame.facts:
            if self._lane is not None:
                self._lane.append(fact)
            if isinstance(fact, EngineStarted):
                self.started = fact
                self._ready.set()
                self.limits.engine_started(fact)
                self.adapters.engine_started()
            elif isinstance(fact, LimitsSet):
                self.limits.limits_set(fact)
            elif isinstance(fact, AdapterFact):
                self.adapters.take(fact)
            elif isinstance(fact, SequenceQueued | GrammarCompiled | SequenceAdmitted):
                self._on_sequence_fact(fact)
            elif isinstance(fact, SequenceEnded):
                self._waiting.pop(fact.seq_id, None)
        self._deliver(frame.emissions)
        self.lost_facts = self._lost_before + frame.lost_facts
        self.after_frame()

    def _deliver(self, emissions: Iterable[Emission]) -> None:
        """Pass emissions on to their requests."""
        is_flushing = bool(self._unflushed)
        for emission in emissions:
            if (queue := self._enqueue(emission)) is not None:
                self._unflushed[queue] = None
        if not is_flushing:
            self._flush_queues()

    def _flush_queues(self) -> None:
        """Flush up to `_QUEUES_PER_ITERATION` queues, and the rest in the next iteration.

        Detokenizing and writing one step's tokens for hundreds of streams takes several
        milliseconds, and the event loop has other work. Queues of a later frame go to the end.
        """
        try:
            for queue in list(itertools.islice(self._unflushed, _QUEUES_PER_ITERATION)):
                del self._unflushed[queue]
                queue.flush()
            writes, self._pending_writes = self._pending_writes, []
            for write, body in writes:
                write(body)
        finally:
            if self._unflushed:
                asyncio.get_running_loop().call_soon(self._flush_queues)

    def _on_sequence_fact(self, fact: SequenceQueued | GrammarCompiled | SequenceAdmitted) -> None:
        """Pass on that the engine has queued, compiled or admitted a sequence."""
        if isinstance(fact, SequenceQueued):
            self._waiting[fact.seq_id] = None
        elif isinstance(fact, SequenceAdmitted):
            self._waiting.pop(fact.seq_id, None)
        queue = self._queues.get(fact.seq_id)
        if queue is not None:
            queue.on_sequence_fact(fact)

    def waiting_before(self, seq_id: int) -> int:
        """Number of earlier sequences that have never been in the batch."""
        earlier = itertools.takewhile(lambda other: other != seq_id, self._waiting)
        return sum(1 for _ in earlier) if seq_id in self._waiting else 0

    def _profile_ended(self, ended: frames.ProfileEnded | None) -> None:
        profile, self._profile = self._profile, None
        if profile is not None and not profile.done():
            profile.set_result(ended)

    def _enqueue(self, emission: Emission) -> OutputQueue | None:
        queue = self._queues.get(emission.seq_id)
        if queue is None:
            return None
        if emission.end is not None:
            del self._queues[emission.seq_id]
            self._waiting.pop(emission.seq_id, None)
        queue.put(emission)
        return queue

    def _detach(self) -> None:
        """The engine process has ended: end every sequence in flight."""
        self._ready.clear()
        self.health.hung_ns = self.health.heartbeat_age_ns = None
        self._writer = self.kv_offered = None
        self.frames = 0
        self._lost_before = self.lost_facts
        self._profile_ended(None)
        self.limits.engine_ended()
        self.adapters.engine_ended()
        in_flight, self._queues = self._queues, {}
        self._waiting.clear()
        for seq_id, queue in in_flight.items():
            queue.put(Emission(seq_id, None, EndReason.ENGINE_DIED))
        for queue in in_flight.values():
            queue.stop_pushing()
        self.on_detach()


def _nothing() -> None:
    """What a frame is read between, unless there are several gateway processes."""
