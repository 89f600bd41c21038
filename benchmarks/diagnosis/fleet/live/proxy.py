"""A TCP proxy in front of a node whose way back is as late and as narrow as it is told to be."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

_CHUNK = 1 << 14
_MOST_WAITING = 4096


class SlowLink:
    """`with SlowLink(port) as link:` listens at `link.port` and forwards to `port` of this machine.
    What the node sends arrives `delay_s` later, in order whatever happens to `delay_s`, and at most
    `bytes_per_s` of it (None: no limit)."""

    def __init__(self, node_port: int) -> None:
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self._node_port = node_port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> SlowLink:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, sock=self._socket)

    async def _connected(
        self, gateway: asyncio.StreamReader, to_gateway: asyncio.StreamWriter
    ) -> None:
        try:
            node, to_node = await asyncio.open_connection("127.0.0.1", self._node_port)
        except OSError:
            to_gateway.close()
            return
        ways = (self._forward(gateway, to_node), self._forward_late(node, to_gateway))
        both = [asyncio.ensure_future(one) for one in ways]
        with contextlib.suppress(asyncio.CancelledError):  # of the end, which asyncio would log
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in both:
            one.cancel()
        to_node.close()
        to_gateway.close()

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                target.write(data)
                await target.drain()

    async def _forward_late(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        """Read at once, write when it is due; what a narrow link has not taken is not read."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MOST_WAITING)
        writing = asyncio.ensure_future(self._write(waiting, target))
        try:
            while data := await source.read(_CHUNK):
                await waiting.put((self._loop.time() + self.delay_s, data))
        finally:
            writing.cancel()

    async def _write(
        self, waiting: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                due_s, data = await waiting.get()
                await asyncio.sleep(max(0.0, due_s - self._loop.time()))
                if self.bytes_per_s is not None:
                    await asyncio.sleep(len(data) / self.bytes_per_s)
                target.write(data)
                await target.drain()
