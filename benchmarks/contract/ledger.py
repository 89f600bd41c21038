"""Ten minutes of mixed traffic: the ledger of every request adds up, and names what it holds;
and the journal replays every decision of the scheduler.

Preemptions (a cache too small for the users), disconnects, deadlines, deletes, refusals, slow
readers, grammars, and one engine that is killed half way. Every request's account is read from
the server after its end. The server's TTFT is compared with the client's own, on one clock, for
requests around whose sending and first token the client's event loop was not late.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contract.client import (
    CHAT,
    COMPLETIONS,
    Body,
    Exchange,
    Reply,
    completion,
    now_ns,
    prompt_ids,
)
from benchmarks.contract.common import (
    Figure,
    Options,
    Report,
    Server,
    at_least,
    at_most,
    equal,
    percentile,
    ticking,
)
from benchmarks.contract.lateness import Lateness
from benchmarks.contract.soak import TENANTS, chat_body, schema_body
from dashboards.source import journal_of
from diagnosis.root_cause.whatif import identities_of
from telemetry.facts.engine_records import SequenceAdmitted

FLAGS = ("--kv-memory", "32MiB", "--max-num-seqs", "8", "--max-batched-tokens", "128",
         "--max-model-len", "1024", "--stream-buffer", "64", "--fairness", "vtc",
         "--journal-memory", "256MiB")  # fmt: skip
USERS = 10
KINDS = {
    "chat": 3.0,
    "completion": 3.0,
    "long output": 2.0,
    "json_schema": 1.0,
    "choices": 1.0,
    "disconnect": 1.0,
    "deadline": 0.7,
    "delete": 0.7,
    "refused": 0.5,
    "slow reader": 0.4,
}
STARVED_MS = 0.5
NEAR_NS = 5_000_000


@dataclass
class Seen:
    """One row for each request that has an account; `first` holds when a stream was asked for
    and when its first token came."""

    asked: Counter[str] = field(default_factory=Counter)
    accounts: list[dict[str, Any]] = field(default_factory=list)
    missing: Counter[str] = field(default_factory=Counter)
    lateness: Lateness = field(default_factory=Lateness)
    first: dict[str, tuple[int, int]] = field(default_factory=dict)
    ttft_off_ms: list[float] = field(default_factory=list)
    starved: int = 0


class User:
    """One closed-loop client; all that it does follows from its seed."""

    def __init__(self, server: Server, seen: Seen, index: int) -> None:
        self._server, self._seen, self._index = server, seen, index
        self._draw = random.Random(1000 + index)
        self._turns = 0

    async def run(self, end_ns: int) -> None:
        while now_ns() < end_ns:
            kind = self._draw.choices(list(KINDS), list(KINDS.values()))[0]
            self._turns += 1
            request_id = f"u{self._index}-{self._turns}"
            self._seen.asked[kind] += 1
            with contextlib.suppress(OSError, EOFError, ValueError):
                await self._turn(kind, request_id)
            await self._read_account(kind, request_id)
            await asyncio.sleep(self._draw.expovariate(6))

    async def _turn(self, kind: str, request_id: str) -> None:
        draw = self._draw
        prompt = prompt_ids(draw.random().hex(), draw.choice((8, 64, 200, 400)))
        match kind:
            case "chat":
                await self._stream(chat_body(draw), request_id, CHAT)
            case "json_schema":
                await self._stream(schema_body(draw), request_id, CHAT)
            case "completion":
                await self._stream(completion(prompt, draw.choice((1, 16, 48))), request_id)
            case "long output":
                await self._stream(completion(prompt[:64], 250), request_id)
            case "choices":
                await self._stream(completion(prompt[:64], 24, n=3), request_id)
            case "refused":
                await self._stream({**completion(prompt, 8), "max_tokens": -1}, request_id)
            case "deadline":
                timeout = round(draw.uniform(0.2, 3), 2)
                await self._stream(completion(prompt, 200, timeout=timeout), request_id)
            case "slow reader":
                await self._stream(completion(prompt[:16], 200), request_id, pause_s=0.05)
            case "disconnect":
                exchange = await self._begin(completion(prompt, 200), request_id, COMPLETIONS)
                await asyncio.sleep(draw.uniform(0.01, 2))
                exchange.leave()
            case "delete":
                reading = asyncio.create_task(self._stream(completion(prompt, 200), request_id))
                await asyncio.sleep(draw.uniform(0.1, 2))
                gone = await Exchange.begin(
                    self._server.port, "DELETE", f"/v1/requests/{request_id}"
                )
                await gone.head()
                gone.leave()
                await asyncio.wait({reading}, timeout=20)
                reading.cancel()

    async def _begin(self, body: Body, request_id: str, path: str) -> Exchange:
        tenant = TENANTS[self._index % len(TENANTS)]
        headers = {"x-request-id": request_id, "x-tenant": tenant}
        return await Exchange.begin(self._server.port, "POST", path, body, headers)

    async def _stream(
        self, body: Body, request_id: str, path: str = COMPLETIONS, pause_s: float = 0.0
    ) -> None:
        exchange = await self._begin(body, request_id, path)
        reply = Reply(due_ns=exchange.sent_ns)
        try:
            if await exchange.head() == 200:
                async for event in exchange.events():
                    reply.take(event)
                    if pause_s:
                        await asyncio.sleep(pause_s)
        finally:
            exchange.leave()
        if reply.token_ns:
            self._seen.first[request_id] = (reply.due_ns, reply.token_ns[0])

    async def _read_account(self, kind: str, request_id: str) -> None:
        facts = None
        with contextlib.suppress(OSError, EOFError, ValueError):
            facts = await self._server.facts_of(request_id)
        if facts is None or "ledger" not in facts:
            self._seen.missing[kind] += 1
            return
        ledger = facts["ledger"]
        parts: Counter[str] = Counter()
        states: Counter[str] = Counter()
        for entry in ledger["entries"]:
            parts[entry["part"]] += entry["ns"]
            states[entry["state"]] += entry["ns"]
        self._seen.accounts.append(
            {
                "kind": kind,
                "outcome": facts["outcome"],
                "e2e_ns": facts["e2e_ns"],
                "recounted_ns": parts.total() - (facts["ended_ns"] - facts["accepted_ns"]),
                "least_ns": min((e["ns"] for e in ledger["entries"]), default=0),
                "unattributed_ns": ledger["unattributed_ns"],
                "parts": dict(parts),
                "states": dict(states),
                "preempted": sum(len(s["preempted"]) for s in facts["sequences"]),
            }
        )
        self._compare_ttft(kind, request_id, facts)

    def _compare_ttft(self, kind: str, request_id: str, facts: dict[str, Any]) -> None:
        stamps = self._seen.first.pop(request_id, None)
        if stamps is None or facts["ttft_ns"] is None or kind in ("slow reader", "choices"):
            return
        if max(self._seen.lateness.near(at, NEAR_NS) for at in stamps) > STARVED_MS:
            self._seen.starved += 1
            return
        sent_ns, token_ns = stamps
        off_ns = token_ns - sent_ns - facts["ttft_ns"]
        self._seen.ttft_off_ms.append(off_ns / 1e6)


async def kill_engine(server: Server, after_s: float) -> None:
    await asyncio.sleep(after_s)
    os.kill(server.engine_pid, signal.SIGKILL)


async def run(options: Options, more_flags: Sequence[str] = ()) -> Report:
    """Run the check, with `more_flags` of the server behind those of the check."""
    minutes, seen = (0.6 if options.quick else 10.0), Seen()
    async with Server(*FLAGS, *more_flags) as server:
        end_ns = now_ns() + int(minutes * 60e9)
        users = [User(server, seen, index).run(end_ns) for index in range(USERS)]
        with seen.lateness.watching():
            async with ticking("ledger", lambda: f"{len(seen.accounts)} accounts"):
                await asyncio.gather(*users, kill_engine(server, minutes * 30))
        last = await server.until_empty()
        await asyncio.sleep(1.0)  # the last facts are folded
        replayed = await asyncio.to_thread(replay, server.port)
    return report(seen, server, last, minutes, replayed)


def replay(port: int) -> dict[str, Any]:
    """Exact replay of both engine runs, and the number of decisions."""
    with journal_of(f"http://127.0.0.1:{port}") as journal:
        identities = identities_of(journal)
        admitted = [fact for fact in journal.facts() if isinstance(fact, SequenceAdmitted)]
    differences = [str(one.difference) for one in identities if not one.holds]
    return {
        "engines": len(identities),
        "decisions": sum(one.decisions for one in identities),
        "steps": sum(one.steps for one in identities),
        "admissions": len(admitted),
        "admissions_with_reused_prefix": sum(fact.hit_tokens > 0 for fact in admitted),
        "preemptions": sum(one.preempted for one in identities),
        "differences": differences,
    }


def report(
    seen: Seen, server: Server, last: dict[str, Any], minutes: float, replayed: dict[str, Any]
) -> Report:
    accounts = seen.accounts
    shares = [one["unattributed_ns"] / max(1, one["e2e_ns"]) for one in accounts]
    off = [abs(value) for value in seen.ttft_off_ms]
    outcomes = Counter(one["outcome"] for one in accounts)
    figures: list[Figure] = [
        equal("largest |sum of parts - E2E|, ns",
              max((abs(one["recounted_ns"]) for one in accounts), default=None), 0),
        at_least("smallest part, ns", min((one["least_ns"] for one in accounts), default=None), 0),
        equal("requests without an account", seen.missing.total(), 0),
        at_most("unattributed share of E2E, p50", percentile(shares, 0.5), 0.01),
        at_most("unattributed share of E2E, p99", percentile(shares, 0.99), 0.02),
        at_most("server TTFT beside the client's, p99 ms", percentile(off, 0.99), 1.0),
        at_least("kinds of ends seen", len(outcomes), 4),
        at_least("preemptions", sum(one["preempted"] for one in accounts), 1),
        at_least("engine restarts", last["engine_restarts"], 1),
        equal("engines whose replay decided otherwise", len(replayed["differences"]), 0),
        at_least("reused prefixes in the replay", replayed["admissions_with_reused_prefix"], 1),
    ]  # fmt: skip
    total = sum(one["e2e_ns"] for one in accounts)
    parts: Counter[str] = Counter()
    states: Counter[str] = Counter()
    for one in accounts:
        parts.update(one["parts"])
        states.update(one["states"])
    rows: list[list[Any]] = [["part", "seconds", "% of all time"]]
    rows += [[name, ns / 1e9, 100 * ns / max(1, total)] for name, ns in parts.most_common()]
    detail = {
        "minutes": minutes,
        "asked": dict(seen.asked),
        "missing": dict(seen.missing),
        "outcomes": dict(outcomes),
        "accounts": len(accounts),
        "parts_s": {name: ns / 1e9 for name, ns in parts.most_common()},
        "states_s": {name: ns / 1e9 for name, ns in states.most_common()},
        "unattributed_share": {q: percentile(shares, q) for q in (0.5, 0.9, 0.99, 1.0)},
        "ttft_off_ms": {q: percentile(off, q) for q in (0.5, 0.9, 0.99, 1.0)},
        "replayed": replayed,
        "ttft_compared": len(off),
        "ttft_not_compared_client_late": seen.starved,
    }
    return Report("ledger", figures, {"server": server.flags}, detail, rows)
