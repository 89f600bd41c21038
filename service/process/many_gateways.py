"""The engine's end of the sockets to several gateway processes.

The main process sends the engine's settings, gets all facts, and ends the engine. The others
connect to a listening socket that it owns; each submits sequences with ids of a space of its own,
and gets their tokens directly, so a token passes through one interpreter. The main process' frame
is written first: the facts that precede a token are on their way before the token is.

When a gateway process ends, its sequences are cancelled.
"""

from __future__ import annotations

import logging
import select
import socket
from dataclasses import dataclass, field

import msgspec

from service.engine.inbox import Cancel, Submit
from service.engine.plan import Emission
from service.process import frames
from service.process.gateway_connection import GatewayConnection
from service.process.link import Link, LinkClosed
from telemetry.facts.adapter_records import AdapterFact
from telemetry.facts.base import space_of
from telemetry.facts.engine_records import (
    EngineStarted,
    GrammarCompiled,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    SequenceRefused,
)
from telemetry.facts.known_adapters import KnownAdapters
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact

log = logging.getLogger("phasescope.engine")

# what a gateway process is told of sequences, its own and others': how many wait before it; and
# which adapters there are
_NEWS = (
    SequenceQueued
    | SequenceAdmitted
    | SequenceEnded
    | SequenceRefused
    | GrammarCompiled
    | AdapterFact
)


@dataclass(slots=True, eq=False)
class _Process:
    """A gateway process; `space` is None until it has joined. `live` are its sequences."""

    link: Link
    space: int | None = None
    live: set[int] = field(default_factory=set)


class ManyGateways(GatewayConnection):
    """The connection to the main process, and to those that connect to `listener`."""

    def __init__(self, connection: socket.socket, listener: socket.socket) -> None:
        super().__init__(connection)
        listener.setblocking(False)
        self._listener = listener
        self._processes: dict[int, _Process] = {}  # by descriptor
        self._started: EngineStarted | None = None
        self._adapters = KnownAdapters()
        self._sent = 0
        self._poll.register(listener, select.POLLIN)

    def send_frame(self, frame: frames.Frame) -> None:
        """Facts to the main process, emissions to the process that each belongs to, be it the main
        one."""
        by_space: dict[int, list[Emission]] = {}
        for emission in frame.emissions:
            by_space.setdefault(space_of(emission.seq_id), []).append(emission)
        own = by_space.get(0, [])
        super().send_frame(frames.Frame(own, frame.facts, frame.lost_facts))
        self._sent += 1
        news: list[Fact] = [one for one in frame.facts if isinstance(one, _NEWS)]
        for fact in news:
            if isinstance(fact, AdapterFact):
                self._adapters.take(fact)
        if self._started is None:
            self._started = next((f for f in frame.facts if isinstance(f, EngineStarted)), None)
            news = news if self._started is None else [self._started, *news]
        for process in list(self._processes.values()):
            if process.space is None:
                continue
            emissions = by_space.get(process.space, [])
            process.live.difference_update(one.seq_id for one in emissions if one.end is not None)
            if emissions or news:
                self._tell(process, emissions, news)

    def _tell(self, process: _Process, emissions: list[Emission], facts: list[Fact]) -> None:
        frame = frames.Frame(emissions, facts, 0, self._sent)
        try:
            process.link.send(frames.packed(frame))
        except LinkClosed:
            return  # reading from it finds that too, and cancels its sequences

    # What GatewayConnection.receive calls

    def _wait(self, wait_s: float | None) -> set[int]:
        for process in self._processes.values():
            self._watch(process.link)
        return super()._wait(wait_s)

    def _flush(self) -> None:
        super()._flush()
        for process in self._processes.values():
            if process.link.has_backlog:
                self._tell_rest(process)

    def _tell_rest(self, process: _Process) -> None:
        try:
            process.link.flush()
        except LinkClosed:
            return  # as in `_tell`

    def _read(self) -> list[frames.ToEngine]:
        messages = super()._read()
        ready = {number for number, _ in self._poll.poll(0)}
        if self._listener.fileno() in ready:
            self._accept()
        for number in ready:
            if (process := self._processes.get(number)) is not None:
                messages += self._read_process(number, process)
        return messages

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            process = _Process(Link(connection))
            self._processes[process.link.fileno()] = process
            self._watch(process.link)

    def _read_process(self, number: int, process: _Process) -> list[frames.ToEngine]:
        found: list[frames.ToEngine] = []
        try:
            for payload in process.link.receive():
                message = frames.from_process_decoder.decode(payload)
                if isinstance(message, frames.Join):
                    self._join(process, message.space)
                    continue
                self._check(process, message.seq_id)
                if isinstance(message, Submit):
                    process.live.add(message.seq_id)
                found.append(message)
        except LinkClosed:
            return found + self._lose(number)
        except (ValueError, msgspec.DecodeError):
            log.exception("a gateway process sent what cannot be read; its sequences are cancelled")
            return found + self._lose(number)
        return found

    def _join(self, process: _Process, space: int) -> None:
        if process.space is not None or space <= 0:
            raise ValueError(f"cannot join as {space}")
        process.space = space
        if self._started is not None:
            self._tell(process, [], [self._started, *self._adapters.facts()])

    def _check(self, process: _Process, seq_id: int) -> None:
        if process.space is None or space_of(seq_id) != process.space:
            raise ValueError("a sequence of another process")

    def _lose(self, number: int) -> list[frames.ToEngine]:
        """The process has ended: cancel its sequences."""
        process = self._processes.pop(number)
        self._poll.unregister(number)
        process.link.close()
        return [Cancel(seq_id, EndReason.DISCONNECT) for seq_id in sorted(process.live)]
