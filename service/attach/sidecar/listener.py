"""Takes the connections of the engine's processes, and checks what they send.

Everything is bounded: connections, messages, texts, and the time until a connection says who it is.
A connection that sends something else than our messages is closed and counted. One that is refused
for what it is, such as a second engine core, stays open and is ignored: its adapter would try again
and again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import cast

import msgspec

from service.attach.sidecar.hub import Hub
from service.attach.sidecar.socket_file import peer_of
from service.attach.sidecar.streams import Counts, Refusal, Stream
from service.attach.sidecar.watch import Watch
from service.attach.wire import (
    MAX_MESSAGE_BYTES,
    NAME_CHARACTERS,
    PROTOCOL,
    Batch,
    Hello,
    Message,
    SequenceName,
    TurnedOff,
    decoder,
    sent_name,
)
from telemetry.facts.clock import Clock
from telemetry.facts.framing import Unframer
from telemetry.facts.records import Fact

log = logging.getLogger("phasescope.attach")

MOST_CONNECTIONS = 64
HELLO_S = 10.0
AHEAD_NS = 1_000_000_000
"""On one clock a Hello comes after it was written; a time namespace may have another clock."""
_REASON_CHARACTERS = 300


class Refused(Exception):
    """What a connection is or sends is not accepted; the message is one line."""

    def __init__(self, why: Refusal, text: str) -> None:
        super().__init__(text)
        self.why = why


class Connections:
    """All connections, on the event loop. `on_facts` is called with those of each message."""

    def __init__(self, hub: Hub, watch: Watch, counts: Counts, clock: Clock) -> None:
        self.on_facts: Callable[[list[Fact]], None] = lambda facts: None
        self.open = 0
        self.lost_facts = 0  # dropped by the adapters while this sidecar could have had them
        self._streams: list[Stream] = []
        self._other_cores: set[_Connection] = set()
        self._hub, self._watch, self._counts, self._clock = hub, watch, counts, clock
        self._told_lost: dict[object, int] = {}  # by process

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The connections that have said who they are."""
        return tuple(self._streams)

    @property
    def core(self) -> Stream | None:
        return next((stream for stream in self._streams if stream.is_core), None)

    @property
    def has_front_end(self) -> bool:
        return any(not stream.is_core for stream in self._streams)

    def protocol(self) -> asyncio.Protocol:
        return _Connection(self, self._clock)

    def greet(self, hello: Hello, pid: int | None) -> Stream:
        """A connection says who it is. Raises Refused."""
        if hello.protocol != PROTOCOL:
            raise Refused(
                Refusal.PROTOCOL,
                f"the adapter speaks protocol {hello.protocol}, this sidecar {PROTOCOL}: install "
                "the same phasescope in both",
            )
        texts = (hello.engine, hello.engine_version, hello.adapter_version)
        if any(len(text) > NAME_CHARACTERS for text in texts):
            raise Refused(Refusal.TOO_LARGE, "a name is too long")
        now_ns = self._clock.now_ns()
        if hello.at_ns - now_ns > AHEAD_NS:
            raise Refused(
                Refusal.CLOCK,
                f"the clock of the {hello.role.value.replace('_', ' ')} (process {hello.pid}) is "
                f"{(hello.at_ns - now_ns) / 1e9:.1f} s ahead of the sidecar's: run both in one "
                "time namespace",
            )
        stream = Stream(hello, pid, now_ns, now_ns)
        core = self.core
        if stream.is_core and core is not None and not _is_same(core, stream):
            raise Refused(
                Refusal.SECOND_CORE,
                f"engine core {hello.index} (process {hello.pid}): a sidecar observes one engine "
                f"core, and has core {core.hello.index}; start one sidecar for each",
            )
        self._streams = [one for one in self._streams if one.who != stream.who]
        self._streams.append(stream)
        log.warning("%s of %s %s is attached (process %s)", hello.role.value.replace("_", " "),
                    hello.engine, hello.engine_version, hello.pid)  # fmt: skip
        return stream

    def take(self, stream: Stream, message: Message) -> None:
        """Raises Refused."""
        now_ns = self._clock.now_ns()
        stream.heard_ns = now_ns
        match message:
            case Batch():
                message = _checked(message)
                stream.turn_ns = message.turn_ns
                lost = self._newly_lost(stream, message.lost_facts)
                self.lost_facts += lost
                self._hub.take(stream, message, lost)
                self.on_facts(message.facts)
            case TurnedOff():
                if max(len(message.reason), len(message.hook)) > _REASON_CHARACTERS:
                    raise Refused(Refusal.TOO_LARGE, "a reason is too long")
                log.warning("%s: %s is not observed any more: %s", stream.hello.role.value,
                            message.hook, message.reason)  # fmt: skip
                self._counts.turn_off(message, stream.hello.role)
                if message.is_all:
                    self._hub.unobserved(stream, now_ns)
            case Hello():
                raise Refused(Refusal.MALFORMED, "a second Hello")

    def gone(self, stream: Stream) -> None:
        """Its connection has ended."""
        if stream in self._streams:
            self._streams.remove(stream)
            self._watch.lost(stream, self._clock.now_ns())
        if self.core is None:
            for one in list(self._other_cores):
                one.abort()  # its adapter connects again, and may be observed now

    def ignored(self, connection: _Connection, is_there: bool) -> None:
        """Another engine core than the one that is observed."""
        (self._other_cores.add if is_there else self._other_cores.discard)(connection)
        self._hub.has_other_cores = bool(self._other_cores)

    def refuse(self, refused: Refused) -> None:
        if not self._counts.refused[refused.why]:  # once; the counter has the others
            log.warning("a connection was refused: %s", refused)
        self._counts.refuse(self._clock.now_ns(), refused.why, str(refused))

    def count(self) -> None:
        self._counts.connections += 1

    def _newly_lost(self, stream: Stream, lost_facts: int) -> int:
        """How many facts a process has dropped since its last message. What was lost while nobody
        listened is no gap in what was heard here: of a process that is new the count begins now.
        Messages that have waited for a connection tell smaller counts than its first one."""
        process = (stream.who, stream.pid)
        told = self._told_lost.pop(process, lost_facts)
        self._told_lost[process] = stream.lost_facts = max(told, lost_facts)
        if len(self._told_lost) > MOST_CONNECTIONS:
            del self._told_lost[next(iter(self._told_lost))]
        return max(0, lost_facts - told)


def _is_same(core: Stream, other: Stream) -> bool:
    """Whether two connections are of one process: those of two containers may have the same number
    inside."""
    is_known = core.pid is not None and other.pid is not None
    return core.who == other.who and (not is_known or core.pid == other.pid)


def _checked(batch: Batch) -> Batch:
    """The batch with no name that is too long: clients choose a part of them, and a batch has those
    of all clients. Raises Refused if the id of a request is too long."""
    if any(len(one.request_id) > NAME_CHARACTERS for one in batch.submitted):
        raise Refused(Refusal.TOO_LARGE, "the id of a request is too long")
    names = [one.name for one in batch.names] + [one.name for one in batch.submitted]
    if all(len(name) <= NAME_CHARACTERS for name in names):
        return batch
    return msgspec.structs.replace(
        batch,
        names=[SequenceName(one.seq_id, sent_name(one.name)) for one in batch.names],
        submitted=[
            msgspec.structs.replace(one, name=sent_name(one.name)) for one in batch.submitted
        ],
    )


class _Connection(asyncio.Protocol):
    """One connection: its bytes become messages."""

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections, self._clock = connections, clock
        self._unframer = Unframer(MAX_MESSAGE_BYTES)
        self._transport: asyncio.Transport | None = None
        self._stream: Stream | None = None
        self._pid: int | None = None
        self._is_ignored = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type
        self._connections.open += 1
        self._connections.count()
        connection: socket.socket = transport.get_extra_info("socket")
        self._pid, uid = peer_of(connection)
        if uid not in (os.geteuid(), 0):
            self._refuse(Refused(Refusal.USER, f"a process of user {uid}"))
        elif self._connections.open > MOST_CONNECTIONS:
            self._refuse(Refused(Refusal.TOO_MANY, f"more than {MOST_CONNECTIONS} connections"))
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(HELLO_S, self._not_heard)

    def data_received(self, data: bytes) -> None:
        if self._is_ignored:
            return
        try:
            for payload in self._unframer.feed(data):
                self._take(decoder.decode(payload))
        except Refused as refused:
            self._refuse(refused)
        except ValueError:  # msgspec's errors are ValueErrors too
            self._refuse(Refused(Refusal.MALFORMED, "not the messages of an adapter of ours"))

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.open -= 1
        self._connections.ignored(self, is_there=False)
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is not None:
            self._connections.gone(self._stream)

    def _take(self, message: Message) -> None:
        """Raises Refused."""
        if self._stream is not None:
            self._connections.take(self._stream, message)
            return
        if not isinstance(message, Hello):
            raise Refused(Refusal.MALFORMED, "the first message is no Hello")
        if self._timer is not None:
            self._timer.cancel()
        self._stream = self._connections.greet(message, self._pid)

    def _not_heard(self) -> None:
        self._refuse(Refused(Refusal.SILENT, f"no Hello within {HELLO_S:g} s"))

    def _refuse(self, refused: Refused) -> None:
        self._connections.refuse(refused)
        assert self._transport is not None
        self._is_ignored = True
        if refused.why is Refusal.SECOND_CORE:
            self._connections.ignored(self, is_there=True)
        elif refused.why not in (Refusal.PROTOCOL, Refusal.CLOCK):
            self._transport.abort()

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()
