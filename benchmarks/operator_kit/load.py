"""A load with something of everything that a board shows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import Any

import httpx

CLASSES, TENANTS = ("chat", "voice", "batch", "code"), ("red", "green", "blue")
WORKERS = 12
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}},
    "required": ["name"],
    "additionalProperties": False,
}


async def everything(port: int, seconds: float) -> int:
    """Load the server on this port for so long; the number of requests."""
    end_s = time.monotonic() + seconds
    numbers = itertools.count()
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        timeout=60,
        limits=httpx.Limits(max_connections=WORKERS + 8),
    ) as client:
        await asyncio.gather(
            *(_worker(client, numbers, end_s) for _ in range(WORKERS)),
            _slow_readers(port, end_s),
            _dumps(client, end_s),
        )
    return next(numbers)


async def _worker(client: httpx.AsyncClient, numbers: Any, end_s: float) -> None:
    while time.monotonic() < end_s:
        number = next(numbers)
        headers = {
            "x-slo-class": "unheard-of" if number % 97 == 0 else CLASSES[number % len(CLASSES)],
            "x-tenant": TENANTS[number % len(TENANTS)],
        }
        with contextlib.suppress(httpx.HTTPError):
            await _one(client, number, headers)


async def _one(client: httpx.AsyncClient, number: int, headers: dict[str, str]) -> None:
    shared = [30 + place % 7 for place in range(64)]  # repeats itself, so that drafts are found
    body: dict[str, Any] = {
        "prompt": [*shared, 10 + number % 50],
        "max_tokens": 24 + number % 64,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }
    match number % 12:
        case 0:  # what delays the others
            body["prompt"] = [10 + (number + place) % 90 for place in range(400)]
        case 1:
            body |= {"max_tokens": 60, "stream": False, "ignore_eos": False}
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "one", "schema": SCHEMA},
            }
        case 2:  # invalid
            body["temperature"] = -1
        case 3:  # a client that goes away
            async with client.stream("POST", "/v1/completions", json=body, headers=headers) as sent:
                async for _ in sent.aiter_bytes():
                    return
        case 4:  # a grammar that cannot be
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "two", "schema": {"type": "no such type"}},
            }
    await client.post("/v1/completions", json=body, headers=headers)


async def _slow_readers(port: int, end_s: float) -> None:
    """One stream after the other whose client reads almost nothing."""
    body = (
        b'{"prompt": [11, 12, 13], "max_tokens": 400, "ignore_eos": true, "stream": true, '
        b'"temperature": 0}'
    )
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"x-slo-class: batch\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    while time.monotonic() < end_s:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=256)
        with contextlib.suppress(ConnectionError):
            writer.write(head.encode() + body)
            await reader.read(64)
            await asyncio.sleep(min(10.0, max(0.0, end_s - time.monotonic())))
            while time.monotonic() < end_s + 5 and await reader.read(65536):
                pass
        writer.close()


async def _dumps(client: httpx.AsyncClient, end_s: float) -> None:
    """Dumps on request now and then."""
    while time.monotonic() < end_s:
        with contextlib.suppress(httpx.HTTPError):
            await client.post("/debug/dump")
        await asyncio.sleep(20)
