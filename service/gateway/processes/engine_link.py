"""A gateway process' client of the engine: it joins each engine that the main process starts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from service.gateway.engine_client.client import EngineClient
from service.process import frames
from telemetry.facts.base import SPACE_BITS

_RETRY_S = 0.05


class JoiningClient(EngineClient):
    """Numbers its sequences in `space`, and calls `before_commands` before it writes any.

    Commands of one iteration of the event loop are written at its end, in order.
    """

    def __init__(self, space: int) -> None:
        super().__init__(None, lambda stage: None, first_seq_id=space << SPACE_BITS)
        self.before_commands: Callable[[], None] = lambda: None
        self._space = space
        self._commands: list[bytes] = []

    async def run(self, path: str) -> None:
        """Join one engine after the other, at the socket `path`. Never returns."""
        loop = asyncio.get_running_loop()
        first = frames.encode(frames.Join(self._space))
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            try:
                await loop.sock_connect(connection, path)
                await self._use(connection, first)
            except OSError:
                connection.close()
            await asyncio.sleep(_RETRY_S)

    def give_up(self, pid: int) -> None:
        """Leave the engine with that process id, if it is the running one: it was killed, and keeps
        its sockets open."""
        if self.has_engine and self.started is not None and self.started.pid == pid:
            self.abort()

    @property
    def read_so_far(self) -> tuple[int, int]:
        """The running engine's process id and how many of its frames the main process had been
        sent when it sent the last one here; zeros before the first."""
        return (0, 0) if self.started is None else (self.started.pid, self.frames)

    def _write(self, message: bytes) -> None:
        if not self._commands:
            asyncio.get_running_loop().call_soon(self._write_commands)
        self._commands.append(message)

    def _write_commands(self) -> None:
        self.before_commands()
        commands, self._commands = self._commands, []
        self._put(b"".join(commands))
