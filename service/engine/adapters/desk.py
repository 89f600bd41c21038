"""Takes commands about adapters, and decides which are read, placed and evicted.

A sequence whose adapter is not placed waits, and others pass it. Adapters are wanted in the order
in which the first sequence of each arrived. For a wanted one those make room that no sequence of
the batch and no launched step uses, and that no earlier sequence waits to use, the least recently
used first. What is in use is never evicted, so a wanted adapter may have to wait for it. Once it
has waited for longer than the ageing time, nothing that arrived later is admitted: the batch runs
empty, and room comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from service.engine.adapters.orders import Drop, Forget, Order, Place, ReadWeights
from service.engine.adapters.registry import (
    MAX_KNOWN_ADAPTERS,
    Adapter,
    AdapterRegistry,
    State,
)
from service.engine.adapters.uses import InFlight, WaitingForAdapters
from service.engine.inbox import OF_START, LoadAdapter, Submit, UnloadAdapter, WeightsRead
from service.engine.plan import Plan
from service.engine.sequences.fact_log import FactLog
from service.engine.sequences.request import Request
from service.engine.sequences.sequence_table import SequenceTable
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
from telemetry.facts.reasons import EndReason

_CHANGED = "its files have changed since they were read first; load it with replace"


class AdapterDesk:
    """Belongs to the scheduler. `orders` gives what the device has to do, and `placed` and `failed`
    take its answers. An engine without memory for adapters has a desk that knows none."""

    def __init__(
        self, memory_bytes: int, max_placed: int, table: SequenceTable, log: FactLog
    ) -> None:
        self.registry = AdapterRegistry(memory_bytes, max_placed)
        self._table = table
        self._log = log
        self._waiting = WaitingForAdapters()
        self._in_flight = InFlight()
        self._closed: dict[int, Adapter] = {}
        self._orders: list[Order] = []

    # Commands

    def load(self, command: LoadAdapter) -> None:
        """Know an adapter, and have it read for the first time."""
        why = self._refusal_to_load(command)
        if why is not None:
            self._refuse(command.name, why, command.ticket)
            return
        adapter = self.registry.add(command.name, command.source, command.number)
        self._record(
            AdapterAdded,
            number=adapter.number,
            name=adapter.name,
            source=adapter.source,
            ticket=command.ticket,
            replaces=adapter.replaces,
        )
        self._read(adapter)

    def weights_read(self, command: WeightsRead) -> None:
        """The answer to a ReadWeights."""
        adapter = self.registry.known.get(command.number)
        if adapter is None or adapter.state is not State.READING:
            return  # it came too late
        if command.error is not None:
            self.failed(command.number, AdapterStage.READ, command.error, command.read_ns)
            return
        if adapter.bytes is not None and command.digest != adapter.digest:
            # cached blocks were computed with the weights of before
            self._orders.append(Forget(adapter.number))
            self.failed(command.number, AdapterStage.READ, _CHANGED, command.read_ns)
            return
        self._record(
            AdapterRead,
            number=command.number,
            bytes=command.bytes,
            rank=command.rank,
            read_ns=command.read_ns,
        )
        if command.bytes > self.registry.memory_bytes:
            self._orders.append(Forget(adapter.number))
            detail = f"it takes {command.bytes} bytes of {self.registry.memory_bytes}"
            self.failed(command.number, AdapterStage.MEMORY, detail, command.read_ns)
            return
        if adapter.bytes is None:
            self._take_name(adapter)
        adapter.bytes, adapter.digest = command.bytes, command.digest
        if adapter.holds and command.bytes > adapter.held_bytes:
            self.registry.release(adapter)  # its files are not what they were
        if not adapter.holds and self.registry.fits(adapter):
            self.registry.reserve(adapter)
        if adapter.holds and not self._is_over(adapter):
            adapter.state = State.READING  # until it is placed
            self._orders.append(Place(adapter.number))
            return
        self.registry.release(adapter)
        self._orders.append(Forget(adapter.number))

    def unload(self, command: UnloadAdapter) -> None:
        """Forget an adapter, at once or when the last of its sequences has ended."""
        adapter = self.registry.named(command.name)
        if adapter is None:
            self._refuse(command.name, AdapterRefusal.UNKNOWN, command.ticket)
            return
        live = self._live(adapter.number)
        if live and command.mode is UnloadMode.REFUSE:
            self._refuse(command.name, AdapterRefusal.IN_USE, command.ticket, len(live))
            return
        self._close(adapter, command.mode, command.ticket)
        if command.mode is UnloadMode.FORCE:
            self._end(live, EndReason.ADAPTER_UNLOADED, f"adapter {adapter.name!r} was unloaded")

    # Sequences

    def refusal(self, submit: Submit) -> str | None:
        """Why a new sequence cannot have its adapter; None if it can, or wants none."""
        if not submit.adapter:
            return None
        adapter = self.registry.known.get(submit.adapter)
        if adapter is None or adapter.closed:
            return "the adapter was unloaded"
        return None

    def must_wait(self, submit: Submit) -> bool:
        """Whether a new sequence has to wait for its adapter."""
        if not submit.adapter:
            return False
        return self.registry.known[submit.adapter].state is not State.PLACED

    def queued(self, request: Request) -> None:
        """A sequence waits for its adapter."""
        self._waiting.add(request)

    # Steps

    def planned(self, plan: Plan) -> None:
        """A step is launched."""
        if self.registry.known:
            self.registry.used(self._in_flight.launched(plan, self._table))
        else:
            self._in_flight.launched_without()

    def finished(self) -> None:
        """The oldest launched step is done."""
        self._in_flight.finished()

    # The device

    @property
    def knows_any(self) -> bool:
        """Whether there may be orders."""
        return bool(self.registry.known or self._orders)

    def orders(self) -> Sequence[Order]:
        """What the device has to do now, in this order."""
        self._unload_closed()
        self._make_room()
        orders, self._orders = self._orders, []
        return orders

    def placed(self, number: int, placed_bytes: int, place_ns: int) -> None:
        """The device has it: the sequences that waited for it may run."""
        adapter = self.registry.known[number]
        self.registry.placed(adapter, placed_bytes)
        self.registry.used((number,))
        woken = self._waiting.take(number)
        self._record(
            AdapterLoaded,
            number=number,
            bytes=placed_bytes,
            place_ns=place_ns,
            seq_ids=tuple(request.seq_id for request in woken),
        )
        for request in woken:
            request.awaits_adapter = False
            if not request.blocked:
                self._table.queue.unblock_in_place(request)

    def failed(self, number: int, stage: AdapterStage, detail: str, read_ns: int = 0) -> None:
        """It cannot be used: the sequences that wait for it end. One that has never been read is
        not known any more."""
        adapter = self.registry.known[number]
        self.registry.release(adapter)
        self._record(AdapterFailed, number=number, stage=stage, read_ns=read_ns, detail=detail)
        said = f"adapter {adapter.name!r} could not be loaded: {detail}"
        self._end(self._waiting.take(number), EndReason.ADAPTER_FAILED, said)
        if adapter.bytes is None:
            self._forget(adapter, 0)

    def check(self) -> None:
        """Raises AssertionError when the books are wrong."""
        self.registry.check()
        placed = {n for n, one in self.registry.known.items() if one.state is State.PLACED}
        for request in self._table.running:
            number = request.submit.adapter
            assert not number or number in placed, f"{request.seq_id} runs without {number}"

    # Decisions

    def _make_room(self) -> None:
        """Have the wanted adapters read, as far as there is memory."""
        queue = self._table.queue
        queue.held_for = None
        for first in self._waiting.firsts():
            adapter = self.registry.known[first.submit.adapter]
            if adapter.state is State.READING:
                continue
            if not self._evict_for(adapter, first):
                queue.held_for = first
                return
            self.registry.reserve(adapter)
            self._read(adapter)

    def _evict_for(self, adapter: Adapter, first: Request) -> bool:
        """Make room for an adapter that `first` waits for; False if there is not enough."""
        if self.registry.fits(adapter):
            return True
        kept = self._in_use(first.arrival)
        candidates = [
            one
            for one in self.registry.known.values()
            if one.state is State.PLACED and one.number not in kept
        ]
        victims = self.registry.victims(adapter, candidates)
        for victim in victims or ():
            self._evict(victim, adapter)
        return victims is not None

    def _in_use(self, arrival: int) -> set[int]:
        """Adapters of the batch, of launched steps, and of sequences that may be admitted and
        arrived before `arrival`."""
        kept = set(self._in_flight.numbers)
        kept.update(request.submit.adapter for request in self._table.running)
        kept.update(
            request.submit.adapter
            for request in self._table.queue
            if request.arrival < arrival and not request.blocked
        )
        return kept

    def _evict(self, victim: Adapter, adapter: Adapter) -> None:
        waiting = [r for r in self._table.queue if r.submit.adapter == victim.number]
        self._record(
            AdapterEvicted,
            number=victim.number,
            bytes=self.registry.release(victim),
            for_number=adapter.number,
            seq_ids=tuple(request.seq_id for request in waiting),
        )
        for request in waiting:
            request.awaits_adapter = True
            self._table.queue.block(request)
            self._waiting.add(request)
        self._orders.append(Drop(victim.number))

    def _unload_closed(self) -> None:
        """Unload the closed adapters that nobody uses any more."""
        for adapter in list(self._closed.values()):
            if self._is_over(adapter) and adapter.state is not State.READING:
                if adapter.state is State.PLACED:
                    self._orders.append(Drop(adapter.number))
                self._forget(adapter, self.registry.release(adapter))

    def _is_over(self, adapter: Adapter) -> bool:
        """Whether it is closed, and no sequence and no launched step uses it."""
        if not adapter.closed or adapter.number in self._in_flight.numbers:
            return False
        return not self._live(adapter.number)

    # The parts

    def _refusal_to_load(self, command: LoadAdapter) -> AdapterRefusal | None:
        if not self.registry.memory_bytes:
            return AdapterRefusal.OFF
        if self.registry.named(command.name) is not None and not command.replace:
            return AdapterRefusal.NAME_TAKEN
        full = len(self.registry.known) >= MAX_KNOWN_ADAPTERS
        return AdapterRefusal.TOO_MANY if full else None

    def _read(self, adapter: Adapter) -> None:
        adapter.state = State.READING
        self._orders.append(ReadWeights(adapter.number, adapter.source))

    def _close(
        self, adapter: Adapter, mode: UnloadMode, ticket: int, replaced_by: int | None = None
    ) -> None:
        self.registry.close(adapter)
        self._closed[adapter.number] = adapter
        self._record(
            AdapterClosed,
            number=adapter.number,
            name=adapter.name,
            mode=mode,
            live=len(self._live(adapter.number)),
            ticket=ticket,
            replaced_by=replaced_by,
        )

    def _take_name(self, adapter: Adapter) -> None:
        """It has been read, and can take the place of the one that it replaces."""
        if adapter.closed:
            return
        old = self.registry.take_name(adapter)
        if old is not None:
            self._close(old, UnloadMode.WAIT, OF_START, adapter.number)

    def _forget(self, adapter: Adapter, freed_bytes: int) -> None:
        self.registry.remove(adapter)
        self._closed.pop(adapter.number, None)
        self._record(AdapterUnloaded, number=adapter.number, bytes=freed_bytes)

    def _live(self, number: int) -> list[Request]:
        return [r for r in self._table.live.values() if r.submit.adapter == number]

    def _end(self, requests: list[Request], reason: EndReason, detail: str) -> None:
        for request in requests:
            self._table.end(request, reason, detail=detail)

    def _refuse(self, name: str, why: AdapterRefusal, ticket: int, live: int = 0) -> None:
        self._record(AdapterRefused, name=name, why=why, ticket=ticket, live=live)

    def _record(self, fact: Callable[..., AdapterFact], **fields: object) -> None:
        """A fact that the next step follows."""
        self._log.record(partial(fact, step_id=self._log.next_step_id, **fields))
