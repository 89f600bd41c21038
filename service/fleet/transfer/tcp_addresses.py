"""This engine's own address of the TCP transport, at which others come in."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

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
