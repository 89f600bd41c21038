"""The gateway's end of the engine: commands out, emissions to mailboxes, facts to a lane.

One bridge lives as long as the gateway; engine processes come and go behind it
(`attach`, `detach`). It runs on the event loop and never blocks it. When an engine goes
away, every sequence in flight is told so at once.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.config.settings import EngineConfig
from service.engine.inbox import (
    Cancel,
    FlushCache,
    Pause,
    Resume,
    SetRecording,
    SetStepCost,
    Submit,
)
from service.engine.plan import Emission
from service.engine.vocabulary import Vocabulary
from service.gateway.engine_client.mailbox import Mailbox
from service.gateway.errors import ApiError, EngineUnavailable, not_ready, not_responding
from service.process import frames
from telemetry.facts.engine_records import (
    EngineStarted,
    GrammarCompiled,
    SequenceAdmitted,
    SequenceQueued,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact

_MAILBOXES_A_TURN = 64  # about a millisecond of work


@dataclass(slots=True)
class Health:
    """The present engine's signs of life, for any thread to read; None: there is none to watch, or
    it gives them. `hung_ns` is for how long it has given none; `hangs` counts, since the start,
    how often one began to."""

    hung_ns: int | None = None
    heartbeat_age_ns: int | None = None
    hangs: int = 0


class Bridge:
    """Routes between HTTP requests and whichever engine process is alive.

    `on_frame` gets the facts of each frame when it has been read: a sign of the loop's life.
    """

    def __init__(self, lane: Lane, on_progress: Callable[[str], None]) -> None:
        self.started: EngineStarted | None = None
        self.failure: frames.EngineFailed | None = None
        self.lost_facts = 0
        self.health = Health()
        self.on_frame: Callable[[Sequence[Fact]], None] = lambda facts: None
        self._lane = lane
        self._on_progress = on_progress
        self._mailboxes: dict[int, Mailbox] = {}
        self._waiting: set[int] = set()
        self._writer: asyncio.WriteTransport | None = None
        self._writes: list[tuple[Callable[[bytes], None], bytes]] = []
        self._unread: dict[Mailbox, None] = {}
        self._vocabulary: bytes | None = None
        self._last_seq_id = 0
        self._lost_before = 0
        self._ready = asyncio.Event()
        self._profile: asyncio.Future[frames.ProfileEnded | None] | None = None

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self.has_engine and self.health.hung_ns is None

    @property
    def has_engine(self) -> bool:
        """One has loaded and lives, even if it is hung."""
        return self._ready.is_set()

    @property
    def sequences(self) -> int:
        """How many the engine has to work on."""
        return len(self._mailboxes)

    def refusal(self) -> ApiError:
        """Why no request is taken now."""
        hung_ns = self.health.hung_ns
        return not_ready() if hung_ns is None else not_responding(hung_ns)

    async def wait_ready(self) -> EngineStarted:
        await self._ready.wait()
        assert self.started is not None
        return self.started

    def next_seq_id(self) -> int:
        self._last_seq_id += 1
        return self._last_seq_id

    def submit(self, command: Submit, mailbox: Mailbox) -> int:
        """Hand a sequence to the engine; its emissions arrive in `mailbox`. Bytes written.

        Raises EngineUnavailable when no engine is ready.
        """
        if self._writer is None or not self.ready:
            raise EngineUnavailable
        self._mailboxes[command.seq_id] = mailbox
        message = frames.encode(command)
        self._writer.write(message)
        return len(message)

    def cancel(self, seq_id: int, reason: EndReason) -> None:
        """Ask for the end of a sequence; one that has ended already is left alone."""
        if self._writer is not None and seq_id in self._mailboxes:
            self._writer.write(frames.encode(Cancel(seq_id, reason)))

    def pause(self, seq_id: int, paused: bool) -> None:
        """Stop or go on generating for a sequence whose reader is slow."""
        if self._writer is not None and seq_id in self._mailboxes:
            self._writer.write(frames.encode(Pause(seq_id) if paused else Resume(seq_id)))

    def tell(self, command: FlushCache | SetRecording | SetStepCost) -> None:
        """A command that concerns no single sequence; dropped when no engine is ready."""
        if self._writer is not None and self.ready:
            self._writer.write(frames.encode(command))

    @property
    def is_profiling(self) -> bool:
        """The engine has not yet answered the last `start_profile`."""
        return self._profile is not None

    def start_profile(self, steps: int, path: str) -> asyncio.Future[frames.ProfileEnded | None]:
        """Have the engine record its next steps into a file; None comes if it dies before.

        Only one at a time. Raises EngineUnavailable when no engine is ready.
        """
        assert self._profile is None
        if self._writer is None or not self.ready:
            raise EngineUnavailable
        self._profile = asyncio.get_running_loop().create_future()
        self._writer.write(frames.encode(frames.StartProfile(steps, path)))
        return self._profile

    def stop_profile(self, keep: bool) -> None:
        """Have the profile end now, with its file or without; one that has ended is left alone."""
        if self._writer is not None and self._profile is not None:
            self._writer.write(frames.encode(frames.StopProfile(keep)))

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """What the tokenizer knows, for this engine and all that come after it."""
        self._vocabulary = frames.encode(frames.UseVocabulary(vocabulary))
        if self._writer is not None:
            self._writer.write(self._vocabulary)

    async def attach(self, connection: socket.socket, config: EngineConfig, begun_ns: int) -> None:
        """Serve one engine process until its end of the socket closes."""
        loop = asyncio.get_running_loop()
        gone = loop.create_future()
        writer, _ = await loop.create_connection(
            lambda: _EngineLink(self._receive, gone), sock=connection
        )
        self.failure = None
        self._writer = writer
        try:
            writer.write(frames.encode(frames.Launch(config, begun_ns)))
            if self._vocabulary is not None:
                writer.write(self._vocabulary)
            await gone
        finally:
            self._detach()
            writer.close()

    def request_shutdown(self) -> None:
        """Tell the engine process to end."""
        if self._writer is not None:
            self._writer.write(frames.encode(frames.Shutdown()))

    def after_frame(self, write: Callable[[bytes], None], body: bytes) -> None:
        """Call `write` when all tokens of this turn have been handed over."""
        self._writes.append((write, body))

    def _receive(self, message: frames.ToGateway) -> None:
        match message:
            case frames.Frame():
                self._receive_frame(message)
            case frames.LoadProgress():
                self._on_progress(message.stage)
            case frames.ProfileEnded():
                self._profile_ended(message)
            case frames.EngineFailed():
                self.failure = message

    def _receive_frame(self, frame: frames.Frame) -> None:
        self.on_frame(frame.facts)
        for fact in frame.facts:
            self._lane.append(fact)
            if isinstance(fact, EngineStarted):
                self.started = fact
                self._ready.set()
            elif isinstance(fact, SequenceQueued | GrammarCompiled | SequenceAdmitted):
                self._note(fact)
        is_under_way = bool(self._unread)
        for emission in frame.emissions:
            if (box := self._deliver(emission)) is not None:
                self._unread[box] = None
        if not is_under_way:
            self._hand_over()
        self.lost_facts = self._lost_before + frame.lost_facts

    def _hand_over(self) -> None:
        """Have tokens of some mailboxes made text and written; the rest after others' turn.

        A step's tokens for hundreds of streams are several milliseconds of work, and the event
        loop has more to do. A later frame's tokens go behind those that wait already.
        """
        try:
            for box in list(itertools.islice(self._unread, _MAILBOXES_A_TURN)):
                del self._unread[box]
                box.hand_over()
            writes, self._writes = self._writes, []
            for write, body in writes:
                write(body)
        finally:
            if self._unread:
                asyncio.get_running_loop().call_soon(self._hand_over)

    def _note(self, fact: SequenceQueued | GrammarCompiled | SequenceAdmitted) -> None:
        """What the engine has done with a sequence that has no emissions yet."""
        mailbox = self._mailboxes.get(fact.seq_id)
        if mailbox is None:
            return
        if isinstance(fact, SequenceQueued):
            self._waiting.add(fact.seq_id)
        elif isinstance(fact, SequenceAdmitted):
            self._waiting.discard(fact.seq_id)
        mailbox.noted(fact)

    def waiting_before(self, seq_id: int) -> int:
        """Sequences that came before this one and have never been in the batch."""
        return sum(other < seq_id for other in self._waiting)

    def _profile_ended(self, ended: frames.ProfileEnded | None) -> None:
        profile, self._profile = self._profile, None
        if profile is not None and not profile.done():
            profile.set_result(ended)

    def _deliver(self, emission: Emission) -> Mailbox | None:
        mailbox = self._mailboxes.get(emission.seq_id)
        if mailbox is None:
            return None
        if emission.end is not None:
            del self._mailboxes[emission.seq_id]
            self._waiting.discard(emission.seq_id)
        mailbox.put(emission)
        return mailbox

    def _detach(self) -> None:
        """The engine is gone: say so to everybody who waits for it."""
        self._ready.clear()
        self.health.hung_ns = self.health.heartbeat_age_ns = None
        self._writer = None
        self._lost_before = self.lost_facts
        self._profile_ended(None)
        orphans, self._mailboxes = self._mailboxes, {}
        self._waiting.clear()
        for seq_id, mailbox in orphans.items():
            mailbox.put(Emission(seq_id, None, EndReason.ENGINE_DIED))
        for mailbox in orphans.values():
            mailbox.stop_flow()


class _EngineLink(asyncio.Protocol):
    """Frames are worked in as they are read: a stream's task would be one more turn."""

    def __init__(
        self, receive: Callable[[frames.ToGateway], None], gone: asyncio.Future[None]
    ) -> None:
        self._receive = receive
        self._gone = gone
        self._unframer = frames.Unframer()
        self._decode = frames.to_gateway_decoder.decode

    def data_received(self, data: bytes) -> None:
        for payload in self._unframer.feed(data):
            self._receive(self._decode(payload))

    def connection_lost(self, error: Exception | None) -> None:
        """Whatever ended it, it is the same news."""
        if not self._gone.done():
            self._gone.set_result(None)
