"""Brings the facts of gateway processes and of the engine together, each after its causes.

A cause is in the main process' socket before its effect is. A gateway process sends what it
records before it tells the engine; the engine sends the main process its frame before it sends
tokens to anybody. So

- before an engine's frame is taken, all gateway processes' sockets are read; if one of them has
  facts that its socket did not take, the engine's facts wait for these (at most `PATIENCE_NS`);
- facts of a gateway process wait for the frames that it had seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from service.gateway.processes import messages
from service.gateway.processes.peer import Peer
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import FactSource
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact

PATIENCE_NS = 1_000_000_000
"""How long facts wait for their causes; a process that is stopped must not stop telemetry."""


class EngineLane(Lane):
    """The lane of the engine's facts; they wait while `causes_missing` counts some."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(source=FactSource.ENGINE)
        self.causes_missing: Callable[[], int] = lambda: 0
        self.released_early = 0
        self._clock = clock
        self._held: deque[tuple[int, Fact]] = deque()

    def append(self, fact: Fact) -> None:
        if self._held or self.causes_missing():
            self._held.append((self._clock.now_ns(), fact))
        else:
            super().append(fact)

    def release(self) -> None:
        """Pass on what waited, if its causes have come or it has waited for too long."""
        if not self._held:
            return
        edge_ns = self._clock.now_ns() - PATIENCE_NS
        are_there = not self.causes_missing()
        while self._held and (are_there or self._held[0][0] <= edge_ns):
            _, fact = self._held.popleft()
            self.released_early += not are_there
            super().append(fact)


class Intake:
    """Takes the messages of all peers in order. `seen` says the engine's process id and how many of
    its frames were read, `handle` is called with each message when its causes have been."""

    def __init__(
        self,
        seen: Callable[[], tuple[int, int]],
        handle: Callable[[Peer, messages.ToMain], None],
        on_lost: Callable[[Peer], None],
    ) -> None:
        self._seen = seen
        self._handle = handle
        self._on_lost = on_lost

    def read(self, peer: Peer) -> None:
        """Read what has arrived, and handle what can be."""
        try:
            while peer.read():
                peer.silent_ns = 0
        except Exception:  # closed, or what came cannot be read
            self.take(peer, even_early=True)
            self._on_lost(peer)
            return
        self.take(peer)

    def read_all(self, peers: Iterable[Peer]) -> None:
        for peer in list(peers):
            self.read(peer)

    def take(self, peer: Peer, even_early: bool = False) -> None:
        """Handle the messages whose causes have come; all of them if `even_early`."""
        while peer.inbox and (even_early or self._is_due(peer.inbox[0])):
            self._handle(peer, peer.inbox.popleft())

    def _is_due(self, message: messages.ToMain) -> bool:
        if not isinstance(message, messages.Facts):
            return True
        pid, frames = self._seen()
        return message.engine_pid != pid or message.after_frame <= frames
