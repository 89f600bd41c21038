"""Addresses of the TCP transport: this engine's own, at which others come in, and those of others
that gave no answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from telemetry.facts.clock import Clock

SILENT_ADDRESS_NS = 30_000_000_000
"""How long an address that gave no answer is not tried again. A try takes five seconds from the
prompt that waits for it, little of this; an engine that is back computes nothing for as long."""
_PAUSE_S = 0.1
"""Until the next connection is accepted where descriptors, memory or threads are short."""

Address = tuple[str, int]


class Door:
    """Listens until it is closed, whatever is short meanwhile. `let_in` gets each connection, and
    raises RuntimeError where no thread can be started for it; `missed` is told of each that could
    not come in."""

    def __init__(
        self,
        address: Address,
        let_in: Callable[[socket.socket], None],
        missed: Callable[[], None],
    ) -> None:
        """Raises OSError if the address cannot be had."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family)
        self._let_in, self._missed = let_in, missed
        self._closing = threading.Event()
        self.address: Address = self._listener.getsockname()[:2]
        threading.Thread(target=self._run, daemon=True, name="phasescope-kv-accept").start()

    def close(self) -> None:
        self._closing.set()
        self._listener.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._let_in(self._listener.accept()[0])
            except (OSError, RuntimeError):
                if self._closing.wait(_PAUSE_S):
                    return
                self._missed()


class SilentAddresses:
    """Not thread-safe: whoever has it has a lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns: dict[Address, int] = {}

    def add(self, address: Address) -> None:
        """It gave no answer just now."""
        self._since_ns[address] = self._clock.now_ns()

    def __contains__(self, address: Address) -> bool:
        """Whether it gave none lately."""
        since_ns = self._since_ns.get(address)
        if since_ns is None:
            return False
        if self._clock.now_ns() < since_ns + SILENT_ADDRESS_NS:
            return True
        del self._since_ns[address]
        return False
