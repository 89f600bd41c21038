"""An OTLP/HTTP receiver of spans that can be made to hang."""

from __future__ import annotations

import asyncio
import contextlib

from lab.drills.client import HOST

_EMPTY_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
_LINE_LIMIT_BYTES = 1 << 20


class Collector:
    """`async with Collector() as collector:`; while `hangs` is set it does not answer."""

    def __init__(self) -> None:
        self.hangs = False
        self.posts = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def flags(self) -> tuple[str, ...]:
        """What makes a server send its spans here."""
        assert self._server is not None, "the collector was not started"
        port = self._server.sockets[0].getsockname()[1]
        return ("--otlp-endpoint", f"http://{HOST}:{port}", "--otlp-protocol", "http/protobuf")

    async def __aenter__(self) -> Collector:
        self._server = await asyncio.start_server(self._serve, HOST, 0, limit=_LINE_LIMIT_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._post(reader, writer):
                    pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _post(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take one export; False when the sender has gone."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, found, rest = head.partition(b"content-length:")
        await reader.readexactly(int(rest.split(b"\r\n", 1)[0]) if found else 0)
        self.posts += 1
        while self.hangs:
            await asyncio.sleep(0.1)
            if writer.transport.is_closing():
                return False
        writer.write(_EMPTY_OK)
        await writer.drain()
        return True
