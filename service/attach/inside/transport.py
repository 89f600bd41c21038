"""The way of facts out of a process of the engine: a queue, and one thread that sends.

What the engine's own threads do is append to a deque. The thread encodes, sends, and bounds what
waits: a sidecar that is frozen, slow or gone costs lost facts, which are counted, and nothing else.
A process that forks takes nothing along: in the child the sender is as new, and opens a connection
of its own with the child's first fact.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.attach.inside.guard import where
from service.attach.inside.link import Link
from service.attach.inside.outbox import Outbox, Part
from service.attach.inside.versions import UnknownEngine
from service.attach.wire import (
    PROTOCOL,
    Batch,
    Hello,
    Message,
    Role,
    SequenceName,
    Submitted,
    TurnedOff,
)
from telemetry.facts.clock import Clock, MonotonicClock
from telemetry.facts.engine_records import EngineStarted, SequencesListed
from telemetry.facts.records import Fact, RequestsListed
from telemetry.facts.version import installed_version

Listing = tuple[RequestsListed | SequencesListed, list[SequenceName]]
_REASON_CHARACTERS = 300
_MOST_TURNED_OFF = 100
_NAMES_A_BATCH = 4_096  # of the longest names still less than a message may be


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much may wait and how often the thread works. `queued_items` bounds what the engine's
    threads have written since the thread last worked, `waiting_bytes` what it has encoded."""

    queued_items: int = 5_000
    waiting_bytes: int = 8 * 1024 * 1024
    batch_items: int = 256
    turn_ms: int = 50
    heartbeat_ms: int = 1_000
    list_again_ms: int = 1_000
    first_retry_ms: int = 100
    last_retry_ms: int = 5_000


class Sender:
    """Hands facts to the sidecar. `append`, `name`, `submit`, `started` and `turn_off` may be
    called from any thread; they never wait and never raise.

    `listing` gives what is live: it is sent after a connection was made, and, once the sidecar has
    taken what waited, after facts were lost.
    The sending thread calls it, so it must copy what others change. Whoever keeps the list adds to
    it before the first fact of a sequence, and removes from it after the last.
    `is_resting` says on the same thread whether the engine's loop waits and has no work.
    """

    def __init__(
        self,
        role: Role,
        engine: str,
        engine_version: str,
        index: int = 0,
        *,
        path: Path,
        listing: Callable[[], Listing] | None = None,
        is_resting: Callable[[], bool] | None = None,
        clock: Clock | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._who = (role, engine, engine_version, index)
        self._path, self._listing = path, listing
        self._is_resting = is_resting or (lambda: False)
        self._clock: Clock = clock or MonotonicClock()
        self._bounds = bounds or Bounds()
        self._is_over = self._is_closing = False
        self._begin()
        _senders.add(self)

    def append(self, fact: Fact) -> None:
        """One fact, in the order of the others."""
        self._put(fact)

    def name(self, seq_id: int, name: str) -> None:
        """The engine's own name of a sequence, before its first fact."""
        self._put(SequenceName(seq_id, name))

    def submit(self, submitted: Submitted) -> None:
        """The front end handed a sequence to the engine core."""
        self._put(submitted)

    def started(self, fact: EngineStarted) -> None:
        """What a sidecar must hear first: every later connection begins with it too."""
        self._put(fact)

    def turn_off(self, hook: str, reason: str, *, is_all: bool = False) -> None:
        """Say, on this connection and every later one, that `hook` is not observed any more. After
        `is_all` nothing else is taken."""
        self._put(TurnedOff(self._clock.now_ns(), hook, reason[:_REASON_CHARACTERS], is_all))
        self._is_over = self._is_over or is_all

    @property
    def turn_ns(self) -> int | None:
        """When the engine's loop last turned; its thread sets it. None: it has nothing to do."""
        return None if self._is_resting() else self._turn_ns

    @turn_ns.setter
    def turn_ns(self, at_ns: int | None) -> None:
        self._turn_ns: int | None = at_ns

    @property
    def queued(self) -> int:
        """Facts and names that the thread has not looked at yet."""
        return len(self._queue)

    @property
    def lost_facts(self) -> int:
        """How many facts the sidecar will never see, since the start of this process."""
        return self._refused_facts + self._outbox.dropped_facts

    def close(self, timeout_s: float = 1.0) -> None:
        """Send what waits, if the sidecar takes it at once, and end the thread."""
        self._is_closing = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _put(self, item: Part | TurnedOff) -> None:
        if self._is_over:
            return
        if len(self._queue) >= self._bounds.queued_items:
            self._refused_facts += 1
            return
        self._queue.append(item)
        if self._thread is None:
            self._start()

    def _begin(self) -> None:
        """Set all state as new: at the start, and in a process that forked."""
        self._turn_ns = None
        self._queue: deque[Part | TurnedOff] = deque()
        self._refused_facts = 0
        self._outbox, self._link = Outbox(self._bounds.waiting_bytes), Link(self._path)
        self._started: EngineStarted | None = None
        self._turned_off: list[TurnedOff] = []
        self._wake, self._start_lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._told_lost, self._next_list_ns, self._is_list_due = 0, 0, False
        self._retry_ms, self._next_try_ns, self._beat_ns = self._bounds.first_retry_ms, 0, 0
        self._is_over = self._is_closing = False

    def _begin_after_fork(self) -> None:
        self._link.close()
        self._begin()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="phasescope-attach", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the process may have no more threads
                self._is_over = True

    def _run(self) -> None:
        while not self._is_closing:
            self._turn_safely()
            self._wake.wait(self._bounds.turn_ms / 1000)
        self._turn_safely()
        self._link.close()

    def _turn_safely(self) -> None:
        """What is wrong with telemetry costs the facts that were at hand, and nothing else."""
        try:
            self._connect_if_due()
            has_taken_all = self._outbox.is_empty
            self._encode_queued()
            if self._link.is_up:
                self._list_if_due(has_taken_all)
                self._beat_if_due()
                self._send_waiting()
        except Exception:
            self._refused_facts += 1
            self._link.close()

    def _connect_if_due(self) -> None:
        now_ns = self._clock.now_ns()
        if self._link.is_up or now_ns < self._next_try_ns:
            return
        if not self._link.connect():
            self._next_try_ns = now_ns + self._retry_ms * 1_000_000
            self._retry_ms = min(2 * self._retry_ms, self._bounds.last_retry_ms)
            return
        self._retry_ms = self._bounds.first_retry_ms
        self._is_list_due = self._listing is not None
        role, engine, engine_version, index = self._who
        hello = Hello(
            PROTOCOL, role, engine, engine_version, installed_version(), os.getpid(), index, now_ns
        )
        names = self._listing()[1] if self._listing is not None else []
        first: list[Fact] = [] if self._started is None else [self._started]
        parts = [names[at : at + _NAMES_A_BATCH] for at in range(0, len(names), _NAMES_A_BATCH)]
        begin = [self._batch(first, []), *(self._batch([], part) for part in parts)]
        self._outbox.greet([hello, *begin, *self._turned_off])

    def _encode_queued(self) -> None:
        """A bounded number of items at a time, as encoding holds the interpreter's lock."""
        self._outbox.refused_facts = self._refused_facts
        for _ in range(len(self._queue) // self._bounds.batch_items + 1):
            parts: list[Part] = []
            for _ in range(min(len(self._queue), self._bounds.batch_items)):
                item = self._queue.popleft()
                if not isinstance(item, EngineStarted | TurnedOff):
                    parts.append(item)
                elif self._remember(item) and self._link.is_up:
                    self._outbox.put_urgent(self._said(item))
            if parts:
                self._outbox.put(parts, self.turn_ns)

    def _said(self, item: EngineStarted | TurnedOff) -> Message:
        if isinstance(item, TurnedOff):
            return item
        return self._batch([item], [])

    def _batch(self, facts: list[Fact], names: list[SequenceName]) -> Batch:
        return Batch(facts, names, [], self._outbox.lost_facts, self.turn_ns)

    def _remember(self, item: EngineStarted | TurnedOff) -> bool:
        """For later connections. False: there are too many of them already."""
        if isinstance(item, EngineStarted):
            self._started = item
        elif len(self._turned_off) < _MOST_TURNED_OFF:
            self._turned_off.append(item)
        else:
            return False
        return True

    def _list_if_due(self, has_taken_all: bool) -> None:
        """What is live, at a moment when everything that was written before has been encoded. A
        sidecar that still has to take what waits would lose such a list too."""
        now_ns, has_lost = self._clock.now_ns(), self._outbox.lost_facts > self._told_lost
        is_again = has_lost and has_taken_all and now_ns >= self._next_list_ns
        if self._listing is None or not (self._is_list_due or is_again):
            return
        fact, names = self._listing()
        if self._queue:
            return  # in the next turn
        self._outbox.put([*names, fact], self.turn_ns)
        self._next_list_ns = now_ns + self._bounds.list_again_ms * 1_000_000
        self._is_list_due = False
        self._told_lost = self._outbox.lost_facts  # what had to make room for the list is in it

    def _beat_if_due(self) -> None:
        """An empty batch if there was time for others and none was sent."""
        now_ns = self._clock.now_ns()
        if now_ns - self._beat_ns >= self._bounds.heartbeat_ms * 1_000_000:
            self._beat_ns = now_ns
            if self._outbox.is_empty:
                self._outbox.put([], self.turn_ns)

    def _send_waiting(self) -> None:
        """Until the socket is full for a whole turn; then the queue must be looked at again."""
        while self._link.is_up and (rest := self._outbox.rest()):
            taken_bytes = self._link.send(rest, self._bounds.turn_ms)
            if taken_bytes == 0:
                return
            self._outbox.sent(taken_bytes)


def report_not_observed(
    role: Role,
    engine: str,
    version: str,
    *,
    path: Path,
    hook: str,
    error: Exception,
    index: int = 0,
) -> None:
    """Tell the sidecar at `path` why this process is not observed: `hook` met `error`. The text of
    one that is not ours is left out."""
    reason = str(error) if isinstance(error, UnknownEngine) else where(error)
    sender = Sender(role, engine, version, index, path=path)
    sender.turn_off(hook, reason, is_all=True)
    _unobserved.append(sender)


_unobserved: list[Sender] = []
_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


def _after_fork() -> None:
    for sender in list(_senders):
        sender._begin_after_fork()


os.register_at_fork(after_in_child=_after_fork)
