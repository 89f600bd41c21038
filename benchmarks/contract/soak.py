"""Half an hour of mixed traffic: no error, no leaked block, no growth of memory.

Both processes' RSS is sampled every 5 s. Its slope is fitted by least squares over the samples
after the warm-up (the first fifth); the 95 % interval uses the number of samples that are worth
an independent one, n (1 - r) / (1 + r) with r the residuals' correlation at lag one.

The gateway keeps the last ended requests as JSON, up to a bound that half an hour does not
reach. That growth is known: requests/s times the mean size of their records, which is measured.
It is reported, and taken off the gateway's slope.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.contract.client import (
    CHAT,
    COMPLETIONS,
    Body,
    Exchange,
    NotSupported,
    ask,
    completion,
    now_ns,
    prompt_ids,
)
from benchmarks.contract.common import (
    Figure,
    Options,
    Report,
    Server,
    at_most,
    equal,
    say,
    ticking,
)
from benchmarks.machine import rss_kib

FLAGS = ("--kv-memory", "512MiB", "--max-num-seqs", "8", "--max-batched-tokens", "128")
USERS = 6
SAMPLE_S = 5.0
WARM_UP = 0.2
SLOPE_LIMIT_KIB_PER_MIN = 100.0
SYSTEM_TOKENS = 200
TENANTS = ("blue", "green", "red")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "large": {"type": "boolean"}},
    "required": ["city", "large"],
    "additionalProperties": False,
}


@dataclass
class Slope:
    """KiB/min, with the ends of its 95 % interval; None where samples do not suffice."""

    per_min: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass
class Seen:
    """What the users and the sampler saw."""

    kinds: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[float, int, int]] = field(default_factory=list)
    record_bytes: list[int] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(self.kinds.values())


def chat_body(draw: random.Random, **more: Any) -> Body:
    words = " ".join(draw.choice(("river", "stone", "lamp", "cloud")) for _ in range(20))
    messages = [{"role": "user", "content": f"Name a large city. {words}"}]
    body = completion("", 24, logprobs=True, top_logprobs=0, messages=messages, **more)
    del body["prompt"]
    return body


def schema_body(draw: random.Random) -> Body:
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    body = chat_body(draw, response_format=wanted)
    return {**body, "ignore_eos": False, "max_tokens": 64}


class User:
    """One closed-loop client; all that it does follows from its seed."""

    def __init__(self, server: Server, seen: Seen, index: int, kinds: dict[str, float]) -> None:
        self._server, self._seen, self._kinds = server, seen, kinds
        self._draw = random.Random(index)
        self._headers = {"x-tenant": TENANTS[index % len(TENANTS)]}

    async def run(self, end_ns: int) -> None:
        while now_ns() < end_ns:
            kind = self._draw.choices(list(self._kinds), list(self._kinds.values()))[0]
            try:
                await self._turn(kind)
            except Exception as error:
                self._seen.errors[f"{kind}: {type(error).__name__}: {error}"] += 1
                await asyncio.sleep(0.5)
            self._seen.kinds[kind] += 1
            await asyncio.sleep(self._draw.expovariate(4))

    async def _turn(self, kind: str) -> None:
        draw = self._draw
        match kind:
            case "chat":
                await self._whole(chat_body(draw), CHAT)
            case "json_schema":
                await self._whole(schema_body(draw), CHAT)
            case "completion":
                prompt = prompt_ids(draw.random().hex(), draw.choice((8, 64, 300)))
                await self._whole(completion(prompt, draw.choice((1, 16, 48))), COMPLETIONS)
            case "shared prefix":
                system = prompt_ids(draw.randrange(3), SYSTEM_TOKENS)
                prompt = system + prompt_ids(draw.random().hex(), 10)
                await self._whole(completion(prompt, 8), COMPLETIONS)
            case "disconnect":
                await self._leave(completion(prompt_ids(draw.random().hex(), 200), 200))

    async def _whole(self, body: Body, path: str) -> None:
        reply = await ask(self._server.port, body, path, self._headers)
        if not reply.done or reply.error:
            raise RuntimeError(f"{reply.status} {reply.error or 'broken off'}")
        if self._draw.random() < 0.1:
            facts = await self._server.facts_of(reply.request_id)
            self._seen.record_bytes.append(len(json.dumps(facts, separators=(",", ":"))))

    async def _leave(self, body: Body) -> None:
        exchange = await Exchange.begin(
            self._server.port, "POST", COMPLETIONS, body, self._headers
        )  # fmt: skip
        await asyncio.sleep(self._draw.uniform(0.01, 1.5))
        exchange.leave()


async def sample(server: Server, seen: Seen) -> None:
    begin_ns = now_ns()
    while True:
        minute = (now_ns() - begin_ns) / 60e9
        pids = (server.process.pid, server.engine_pid)
        gateway, engine = (rss_kib(pid) for pid in pids)
        seen.samples.append((minute, gateway, engine))
        await asyncio.sleep(SAMPLE_S)


async def kinds_of(server: Server) -> dict[str, float]:
    """Weights of what is sent; without JSON schemas where the server does not take them."""
    weights = {"chat": 3.0, "completion": 3.0, "shared prefix": 3.0, "disconnect": 1.5}
    try:
        await ask(server.port, schema_body(random.Random(0)), CHAT)
    except NotSupported as missing:
        say(f"  without json_schema requests: {missing}")
        return weights
    return {**weights, "json_schema": 1.5}


async def run(options: Options) -> Report:
    minutes, seen = (0.5 if options.quick else options.minutes), Seen()
    async with Server(*FLAGS) as server:
        kinds = await kinds_of(server)
        end_ns = now_ns() + int(minutes * 60e9)
        sampler = asyncio.create_task(sample(server, seen))
        users = [User(server, seen, index, kinds).run(end_ns) for index in range(USERS)]

        def state() -> str:
            _, gateway, engine = seen.samples[-1]
            errors = sum(seen.errors.values())
            return f"{seen.requests} requests, {errors} errors, RSS {gateway} + {engine} KiB"

        async with ticking("soak", state):
            await asyncio.gather(*users)
        sampler.cancel()
        await asyncio.gather(sampler, return_exceptions=True)
        last = await server.until_empty()
    return report(seen, server, last, minutes)


def slope(points: list[tuple[float, float]]) -> Slope:
    """Least squares with an interval for correlated residuals."""
    count = len(points)
    if count < 5:
        return Slope()
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread_x = sum((x - mean_x) ** 2 for x, _ in points)
    found = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread_x
    residuals = [y - mean_y - found * (x - mean_x) for x, y in points]
    square = sum(value**2 for value in residuals)
    lag = sum(a * b for a, b in pairwise(residuals)) / square if square else 0.0
    lag = min(max(lag, 0.0), 0.99)
    worth = max(count * (1 - lag) / (1 + lag), 3.0)
    error = math.sqrt(square / ((worth - 2) * spread_x))
    return Slope(found, found - 1.96 * error, found + 1.96 * error)


def report(seen: Seen, server: Server, last: dict[str, Any], minutes: float) -> Report:
    kept = [one for one in seen.samples if one[0] >= WARM_UP * minutes]
    gateway = slope([(minute, float(rss)) for minute, rss, _ in kept])
    engine = slope([(minute, float(rss)) for minute, _, rss in kept])
    mean_bytes = sum(seen.record_bytes) / max(1, len(seen.record_bytes))
    records = seen.requests / minutes * mean_bytes / 1024
    other = None if gateway.per_min is None else gateway.per_min - records
    busy = last["running"] + last["waiting"] + last["blocks_used"]
    limit = SLOPE_LIMIT_KIB_PER_MIN
    figures: list[Figure] = [
        equal("errors", sum(seen.errors.values()), 0),
        equal("running, waiting and blocks used at the end", busy, 0),
        equal("engine restarts", last["engine_restarts"], 0),
        at_most("gateway RSS slope less its records, KiB/min", other, limit),
        at_most("engine RSS slope, KiB/min", engine.per_min, limit),
    ]
    rows: list[list[Any]] = [["process", "RSS first KiB", "last KiB", "KiB/min", "95 % interval"]]
    for index, (name, one) in enumerate((("gateway", gateway), ("engine", engine)), start=1):
        interval = "-" if one.low is None else f"{one.low:.1f} to {one.high:.1f}"
        rows.append([name, kept[0][index], kept[-1][index], one.per_min, interval])
    detail = {
        "minutes": minutes,
        "requests": dict(seen.kinds),
        "errors": dict(seen.errors),
        "slope_kib_per_min": {"gateway": vars(gateway), "engine": vars(engine)},
        "records_kib_per_min": records,
        "record_bytes_mean": mean_bytes,
        "rss_samples_min_gateway_engine": seen.samples,
    }
    return Report("soak", figures, {"server": server.flags}, detail, rows)
