"""A sidecar's end of the socket for tests: it reads when it is told to."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from service.attach.wire import Batch, Hello, Message, decoder
from telemetry.facts.framing import Unframer
from telemetry.facts.records import Fact

_TIMEOUT_S = 20.0


class Connection:
    """One connection of an engine's process."""

    def __init__(self, found: socket.socket) -> None:
        found.settimeout(_TIMEOUT_S)
        self._socket, self._unframer = found, Unframer()
        self.messages: list[Message] = []

    def read_until(self, is_enough: Callable[[Connection], bool]) -> None:
        """Read on until `is_enough`; the timeout says that it never became so."""
        while not is_enough(self):
            data = self._socket.recv(65536)
            assert data, "the engine's end was closed"
            self.messages += [decoder.decode(one) for one in self._unframer.feed(data)]

    def read_to_end(self, is_end: Callable[[Message], bool] = lambda one: False) -> None:
        """Until the engine's end is closed, or a message that is the last."""
        while not any(map(is_end, self.messages)) and (data := self._socket.recv(65536)):
            self.messages += [decoder.decode(one) for one in self._unframer.feed(data)]

    @property
    def hello(self) -> Hello:
        first = self.messages[0]
        assert isinstance(first, Hello)
        return first

    @property
    def batches(self) -> list[Batch]:
        return [one for one in self.messages if isinstance(one, Batch)]

    @property
    def facts(self) -> list[Fact]:
        return [fact for batch in self.batches for fact in batch.facts]

    @property
    def lost_facts(self) -> int:
        return self.batches[-1].lost_facts if self.batches else 0

    def close(self) -> None:
        self._socket.close()


class Sidecar:
    """Listens at `path`."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(8)
        self._socket.settimeout(_TIMEOUT_S)
        self._connections: list[Connection] = []

    def accept(self) -> Connection:
        self._connections.append(Connection(self._socket.accept()[0]))
        return self._connections[-1]

    def close(self) -> None:
        self._socket.close()
        for one in self._connections:
            one.close()
