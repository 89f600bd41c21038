"""What the contract checks make of what they measured: quantiles, and clients that are late."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.contract.client import Reply, ask, completion, now_ns, open_loop
from benchmarks.contract.common import Options, Report, percentile
from benchmarks.contract.lateness import is_late, sending, sent_in_time
from benchmarks.fleet.live import SKIPPED_S, Answer, Ask, ask_one, run_of
from benchmarks.samples import least_count
from tests.support.servers.scripted_llm import Pieces, ScriptedServer, whole

LATE_S = 1.0


def test_a_quantile_of_too_few_values_is_not_a_figure() -> None:
    """Of nine, 19 or 99 values it is their maximum; a median is one of any."""
    assert percentile(range(9), 0.95) is None
    assert percentile(range(19), 0.95) is None
    assert percentile(range(20), 0.95) == 18
    assert percentile(range(99), 0.99) is None
    assert percentile(range(100), 0.99) == 98
    assert percentile([3.0], 0.5) == percentile([3.0], 1.0) == 3.0
    assert [least_count(share) for share in (0.9, 0.95, 0.99)] == [10, 20, 100]


def test_what_never_came_is_null_in_a_report(tmp_path: Path) -> None:
    """Infinity is no JSON."""
    detail = {"to_detect_s": {"p50": math.inf, "each": [math.nan, (1.0, -math.inf)]}}
    Report("never", [], {}, detail).finish(Options(quick=True, minutes=0.0, out=tmp_path))

    found = json.loads((tmp_path / "never.json").read_text(), parse_constant=pytest.fail)
    assert found["to_detect_s"] == {"p50": None, "each": [None, [1.0, None]]}


def tokens(number: int, body: dict[str, Any]) -> Pieces:
    """A stream of one token with its log-probability."""
    event = b'data: {"choices":[{"text":"a","logprobs":{"tokens":["a"]}}]}\n\n'
    return [event, b"data: [DONE]\n\n"]


def test_a_request_that_the_client_sent_late_is_late() -> None:
    """Its time to the first token counts from when it was due."""
    with ScriptedServer(tokens, probe=tokens) as server:
        due_ns = now_ns() - int(LATE_S * 1e9)
        reply = asyncio.run(ask(server.port, completion([1], 1), due_ns=due_ns))
        prompt = asyncio.run(ask(server.port, completion([1], 1)))

    assert reply.done
    assert 1e3 * LATE_S <= reply.late_ms <= reply.ttft_ms
    assert prompt.late_ms == 0.0
    assert prompt.ttft_ms > 0.0


def test_a_client_of_the_fleet_that_sent_late_is_late() -> None:
    """As the load generator has it; and the run says how many were."""

    async def asked(url: str) -> Answer:
        begin_s = time.monotonic() - LATE_S
        async with httpx.AsyncClient(base_url=url) as client:
            return await ask_one(client, Ask(0.0, None, 3, 1), [1, 2, 3], begin_s)

    with ScriptedServer(lambda number, body: whole(3)) as server:
        answer = asyncio.run(asked(server.url))

    assert answer.ttft_ns is not None
    assert 1e6 * answer.late_ms <= answer.ttft_ns
    assert answer.late_ms >= 1e3 * LATE_S
    counted = [Answer(SKIPPED_S, 0.0), Answer(SKIPPED_S, answer.late_ms)]
    assert run_of("unshared", 1, "round_robin", 5.0, counted).late_share == 0.5


def test_a_run_whose_client_was_late_is_no_run() -> None:
    """One request in twenty may be; of none nothing is known."""
    in_time, late = [0.0] * 19, [1e3 * LATE_S]

    assert not is_late(in_time + late)
    assert is_late(in_time + late + late)
    assert is_late([])
    assert sent_in_time(in_time).holds
    assert not sent_in_time([]).holds
    assert sending(in_time + late) == {"requests": 20, "late_share": 0.05, "latest_ms": 1000.0}


def test_an_open_loop_says_when_each_request_was_due() -> None:
    """The moments of the seeded process, whenever the loop came to them."""
    told: list[tuple[int, int]] = []

    async def reply() -> Reply:
        return Reply()

    def start(number: int, due_ns: int) -> asyncio.Task[Reply]:
        told.append((number, due_ns))
        return asyncio.create_task(reply())

    async def run() -> None:
        await asyncio.gather(*await open_loop(200.0, 0.05, 7, start))

    asyncio.run(run())

    draw = random.Random(7)
    moments_s = list(itertools.accumulate(draw.expovariate(200.0) for _ in told))
    assert [number for number, _ in told] == list(range(len(told)))
    assert len(told) > 1
    waits_ns = [b - a for (_, a), (_, b) in itertools.pairwise(told)]
    assert waits_ns == pytest.approx(
        [(b - a) * 1e9 for a, b in itertools.pairwise(moments_s)], abs=2
    )
