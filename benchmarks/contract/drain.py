"""SIGTERM with streams running: short ones finish, long ones are cut, new ones are refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contract.client import COMPLETIONS, Exchange, Reply, completion, now_ns, prompt_ids
from benchmarks.contract.common import Figure, Server, at_most, equal, ticking

GRACE_S = 5.0  # what the end may take beyond the drain's timeout
SHORT_TOKENS, LONG_TOKENS = 4, 4000


@dataclass
class Drained:
    """What became of the requests that ran, and of one that came too late."""

    limit_s: float
    ids: set[str] = field(default_factory=set)
    ends: Counter[str] = field(default_factory=Counter)
    late: str = "no answer"
    seconds: float | None = None
    status: int | None = None
    engine_alive: bool = True

    def figures(self) -> list[Figure]:
        return [
            equal("drained streams without an end", self.ends["cut off"], 0),
            equal("late request refused as draining", float(self.late == "503 draining"), 1),
            at_most("drain, s", self.seconds, self.limit_s),
            equal("exit status of the drain", self.status, 0),
            equal("engine processes left", float(self.engine_alive), 0),
        ]

    def detail(self) -> dict[str, Any]:
        return {
            "ends": dict(self.ends),
            "late": self.late,
            "seconds": self.seconds,
            "exit_status": self.status,
        }


async def drain_check(server: Server, count: int, timeout_s: float) -> Drained:
    """Half of the requests are short; SIGTERM comes when the first streams have begun."""
    drained = Drained(limit_s=timeout_s + GRACE_S)
    begun = asyncio.Event()
    streams = [
        asyncio.create_task(
            _stream(server, f"drain-{index}", SHORT_TOKENS if index % 2 else LONG_TOKENS, begun)
        )
        for index in range(count)
    ]
    async with ticking("draining"):
        await asyncio.wait_for(begun.wait(), 60)
        await asyncio.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        begin_ns = now_ns()
        await asyncio.sleep(0.3)
        drained.late = await _late(server)
        try:
            drained.status = await server.ended(timeout_s + 2 * GRACE_S)
            drained.seconds = (now_ns() - begin_ns) / 1e9
        except TimeoutError:
            pass
        done, waiting = await asyncio.wait(streams, timeout=5)
    for task in waiting:
        task.cancel()
    ended = [task.result() for task in done]
    drained.ends = Counter(end for _, end in ended)
    drained.ends["cut off"] += len(waiting)
    drained.ids = {request_id for request_id, _ in ended}
    drained.engine_alive = _alive(server.engine_pid)
    return drained


async def _stream(
    server: Server, request_id: str, tokens: int, begun: asyncio.Event
) -> tuple[str, str]:
    """The id, and how it ended for its client: done, an error's code, or cut off."""
    reply = Reply()
    try:
        body = completion(prompt_ids(request_id, 32), tokens)
        headers = {"x-request-id": request_id}
        exchange = await Exchange.begin(server.port, "POST", COMPLETIONS, body, headers)
        if await exchange.head() != 200:
            return request_id, await _refusal(exchange)
        async for event in exchange.events():
            begun.set()
            reply.take(event)
    except (OSError, EOFError, ValueError):
        return request_id, "cut off"
    if reply.error:
        return request_id, str(reply.error.get("code"))
    return request_id, "done" if reply.done else "cut off"


async def _late(server: Server) -> str:
    try:
        body = completion(prompt_ids("late", 16), 1)
        exchange = await Exchange.begin(server.port, "POST", COMPLETIONS, body)
        await exchange.head()
        return await _refusal(exchange)
    except (OSError, EOFError, ValueError) as error:
        return f"no answer: {type(error).__name__}"


async def _refusal(exchange: Exchange) -> str:
    raw = b"".join([piece async for piece in exchange.pieces()])
    exchange.leave()
    return f"{exchange.status} {json.loads(raw)['error']['code']}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
