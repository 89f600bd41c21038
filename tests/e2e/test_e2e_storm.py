"""A hundred and twenty clients, half of them gone in the middle: nothing is lost, nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import httpx

from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.server import Server, eventually

REQUESTS = 120


async def one_client(client: httpx.AsyncClient, index: int, leave_after_s: float | None) -> str:
    """Stream one completion; a client with `leave_after_s` closes its connection then."""
    request_id = f"storm-{index}"
    body = {
        "prompt": "Tell me about the sea. " * (1 + index % 12),
        "max_tokens": 8 + index % 17,
        "stream": True,
        "ignore_eos": True,
        "temperature": 0,
    }

    async def read() -> None:
        async with client.stream(
            "POST", "/v1/completions", json=body, headers={"x-request-id": request_id}
        ) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for _ in answer.aiter_lines():
                pass

    if leave_after_s is None:
        await read()
    else:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(read(), leave_after_s)
    return request_id


async def storm(url: str) -> list[str]:
    generator = random.Random(7)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=240, limits=limits) as client:
        clients = [
            one_client(client, index, generator.uniform(0.0, 4.0) if index % 2 else None)
            for index in range(REQUESTS)
        ]
        return list(await asyncio.gather(*clients))


def test_a_storm_of_disconnects_leaves_nothing_behind(
    server: Server, receiver: OtlpReceiver
) -> None:
    """Every request ends once, with one tree; no sequence runs, waits or holds a block."""
    before = server.snapshot()
    ids = asyncio.run(storm(server.url))

    eventually(server.is_empty, "an empty engine", 60)
    ended = {}
    for request_id in ids:
        answer = server.client.get(f"/debug/requests/{request_id}")
        if answer.status_code == 200:
            ended[request_id] = server.facts_of(request_id)
    after = server.snapshot()

    # a client that left before its request was on the wire never made a request
    outcomes = Counter(facts["outcome"] for facts in ended.values())
    assert set(outcomes) == {"finished", "cancelled"}
    assert outcomes["finished"] >= REQUESTS // 2
    assert outcomes["cancelled"] > 0
    for outcome, count in outcomes.items():
        assert after["requests_total"][outcome] - before["requests_total"].get(outcome, 0) == count
    trees = eventually(lambda: _trees_of(receiver, set(ended)), "a span tree for each request", 30)
    assert all(count == 1 for count in trees.values())
    receiver.check_all()


def _trees_of(receiver: OtlpReceiver, ids: set[str]) -> Counter[str] | None:
    found = Counter(tree.attribute("gen_ai.request.id") for tree in receiver.trees())
    mine = Counter({request_id: found[request_id] for request_id in ids})
    return mine if all(mine.values()) else None
