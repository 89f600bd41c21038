"""The adapters of the engine as the gateway knows them: a view made of facts.

The engine process owns the registry. What was loaded or unloaded at run time is told again to an
engine that replaces another; the adapters of the start it reads itself. While no engine has said
what it has, the names that the next one will have are listed as awaited.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from service.engine.inbox import OF_START, LoadAdapter, UnloadAdapter
from telemetry.facts.adapter_records import (
    AdapterAdded,
    AdapterClosed,
    AdapterEvicted,
    AdapterFact,
    AdapterFailed,
    AdapterLoaded,
    AdapterRead,
    AdapterRefusal,
    AdapterRefused,
    AdapterStage,
    AdapterUnloaded,
    UnloadMode,
)

log = logging.getLogger("phasescope.adapters")

Send = Callable[[LoadAdapter | UnloadAdapter], None]
_Waiting = dict[int, asyncio.Future[None]]


class AdaptersRefused(Exception):
    """The engine changed nothing; `live` sequences use the adapter."""

    def __init__(self, why: AdapterRefusal, live: int) -> None:
        super().__init__(why.value)
        self.why, self.live = why, live


class AdapterBroken(Exception):
    """The adapter cannot be loaded; the message is one line."""


class AdapterEngineGone(Exception):
    """The engine ended before it had answered."""


@dataclass(slots=True, eq=False)
class KnownAdapter:
    """One adapter that clients may name. `bytes` and `rank` are None until it has been read; an
    awaited one has no number of a running engine."""

    number: int
    name: str
    source: str
    bytes: int | None = None
    rank: int | None = None
    placed: bool = False


class AdapterView:
    """Belongs to the event loop. `send` writes a command to the engine that runs. Tickets tell the
    answers for this gateway from those for another one."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._by_name: dict[str, KnownAdapter] = {}
        self._awaited: dict[str, KnownAdapter] = {}
        self._known: dict[int, KnownAdapter] = {}
        self._of_start: set[str] = set()
        self._told: dict[str, LoadAdapter | UnloadAdapter] = {}  # by name
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._reads: dict[int, asyncio.Future[None]] = {}
        self._unloads: dict[int, asyncio.Future[None]] = {}

    def await_start(self, named: Iterable[tuple[str, object]]) -> None:
        """Name and folder of each adapter that the first engine will read."""
        for name, folder in named:
            self._awaited[name] = KnownAdapter(len(self._awaited), name, str(folder))

    # What the routes ask

    def number_of(self, name: str) -> int | None:
        """The number of the adapter of that name; None if there is none."""
        known = self._by_name.get(name)
        return None if known is None else known.number

    def is_awaited(self, name: str) -> bool:
        """Whether an engine that starts will have the adapter of that name."""
        return name in self._awaited

    def listed(self) -> list[KnownAdapter]:
        """The adapters that clients may name, in the order in which they became known, then the
        awaited ones."""
        known = sorted(self._by_name.values(), key=lambda one: one.number)
        return [*known, *self._awaited.values()]

    async def load(self, name: str, source: str, replace: bool, within_s: float) -> None:
        """Know an adapter and read it. Raises AdaptersRefused, AdapterBroken, AdapterEngineGone,
        and TimeoutError if it may yet be loaded."""
        command = LoadAdapter(ticket=_ticket(), name=name, source=source, replace=replace)
        async with asyncio.timeout(within_s):
            number = await self._ask(command)
            await self._wait(self._reads, number)
            self._told[name] = command

    async def unload(self, name: str, mode: UnloadMode, within_s: float) -> None:
        """Unload an adapter, and wait until its memory is free. Raises AdaptersRefused,
        AdapterEngineGone, and TimeoutError while sequences still use it; it is unloaded after
        them."""
        command = UnloadAdapter(ticket=_ticket(), name=name, mode=mode)
        async with asyncio.timeout(within_s):
            number = await self._ask(command)
            self._told.pop(name, None)
            if name in self._of_start:
                self._told[name] = replace(command, mode=UnloadMode.FORCE)
            await self._wait(self._unloads, number)

    # What the client of the engine reports

    def take(self, fact: AdapterFact) -> None:
        """A fact of the engine."""
        match fact:
            case AdapterAdded():
                self._added(fact)
            case AdapterRead():
                self._read(fact)
            case AdapterLoaded():
                self._set_placed(fact.number, True)
            case AdapterEvicted():
                self._set_placed(fact.number, False)
            case AdapterClosed():
                self._closed(fact)
            case AdapterUnloaded():
                self._unloaded(fact)
            case AdapterFailed():
                self._failed(fact)
            case AdapterRefused():
                self._awaited.pop(fact.name, None)
                _fail(self._asked.get(fact.ticket), AdaptersRefused(fact.why, fact.live))

    def engine_started(self) -> None:
        """A new engine is ready; it is told what was changed since the start. What it read at its
        start it says in the same frame."""
        told = self._told
        for name in [one for one in self._awaited if not isinstance(told.get(one), LoadAdapter)]:
            del self._awaited[name]
        for command in list(self._told.values()):
            self._send(command)

    def engine_ended(self) -> None:
        """Nothing is known until another engine says what it has, but which names it will have."""
        for known in self.listed():
            self._awaited[known.name] = KnownAdapter(known.number, known.name, known.source)
        self._by_name.clear()
        self._known.clear()
        waiting: list[asyncio.Future[Any]] = [*self._asked.values()]
        waiting += [*self._reads.values(), *self._unloads.values()]
        for one in waiting:
            _fail(one, AdapterEngineGone())

    def _added(self, fact: AdapterAdded) -> None:
        known = KnownAdapter(fact.number, fact.name, fact.source)
        self._known[fact.number] = known
        self._awaited.pop(fact.name, None)
        if fact.replaces is None:
            self._by_name[fact.name] = known
        if fact.ticket == OF_START:
            self._of_start.add(fact.name)
        self._answer(fact.ticket, fact.number, self._reads)

    def _read(self, fact: AdapterRead) -> None:
        known = self._known.get(fact.number)
        if known is not None:
            if known.bytes is None:
                self._by_name[known.name] = known
            known.bytes, known.rank = fact.bytes, fact.rank
        _succeed(self._reads.get(fact.number), None)

    def _set_placed(self, number: int, placed: bool) -> None:
        if number in self._known:
            self._known[number].placed = placed

    def _closed(self, fact: AdapterClosed) -> None:
        known = self._by_name.get(fact.name)
        if known is not None and known.number == fact.number:
            del self._by_name[fact.name]
        if fact.replaced_by is None:
            self._answer(fact.ticket, fact.number, self._unloads)

    def _unloaded(self, fact: AdapterUnloaded) -> None:
        known = self._known.pop(fact.number, None)
        if known is not None and self._by_name.get(known.name) is known:
            del self._by_name[known.name]  # it could not be read
        _succeed(self._unloads.get(fact.number), None)

    def _failed(self, fact: AdapterFailed) -> None:
        known = self._known.get(fact.number)
        name = "?" if known is None else known.name
        log.warning("adapter %s could not be loaded (%s): %s", name, fact.stage.value, fact.detail)
        if fact.stage is not AdapterStage.PLACE:
            _fail(self._reads.get(fact.number), AdapterBroken(fact.detail))

    # Answers

    async def _ask(self, command: LoadAdapter | UnloadAdapter) -> int:
        """The number that the engine answers with."""
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked[command.ticket] = asked
        self._send(command)
        try:
            return await asked
        finally:
            del self._asked[command.ticket]

    def _answer(self, ticket: int, number: int, next_answers: _Waiting) -> None:
        """The first answer to a command; the second, about the number, may follow at once."""
        asked = self._asked.get(ticket)
        if asked is not None:
            next_answers[number] = asyncio.get_running_loop().create_future()
            _succeed(asked, number)

    async def _wait(self, waiting: _Waiting, number: int) -> None:
        try:
            await waiting[number]
        finally:
            del waiting[number]


def _ticket() -> int:
    return 1 + secrets.randbits(62)


def _succeed(found: asyncio.Future[Any] | None, result: int | None) -> None:
    if found is not None and not found.done():
        found.set_result(result)


def _fail(found: asyncio.Future[Any] | None, error: Exception) -> None:
    if found is not None and not found.done():
        found.set_exception(error)
