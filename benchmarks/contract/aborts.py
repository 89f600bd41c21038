"""A thousand requests that end early leave nothing behind, and leave it soon.

Clients disconnect at random moments (in the queue, in prefill, in decode), set a deadline, or
delete their request; the last of them are cut or refused by a drain after SIGTERM. Every request
must have one terminal fact and one span tree, and no block may stay in use.

The length of a step is taken from the facts: the spans of prefill chunks are those of the steps
that carried them, and most steps of this load carry one. Its p99 is that of distinct steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contract.client import COMPLETIONS, Exchange, call, completion, prompt_ids
from benchmarks.contract.common import (
    Figure,
    Options,
    Report,
    Server,
    at_most,
    equal,
    percentile,
    say,
    ticking,
)
from benchmarks.contract.drain import Drained, drain_check
from benchmarks.contract.spans import Receiver, start_receiver, tree_counts

FLAGS = (
    "--kv-memory", "1GiB", "--max-num-seqs", "8", "--max-batched-tokens", "128",
    "--queue-limit", "1000", "--drain-timeout", "6",
)  # fmt: skip
USERS = 24  # three times the batch: most aborts meet a queue
OUTPUT_TOKENS = 400
LONGEST_S = 3.0
MARGIN_MS = 10.0
REASONS = {"disconnect": "disconnect", "deadline": "deadline", "delete": "deleted"}


@dataclass
class Abort:
    """One request that is to end early. `aborted_ns`: when it was asked to."""

    request_id: str
    kind: str
    after_s: float
    prompt_tokens: int
    aborted_ns: int = 0
    delete_status: int = 0
    facts: dict[str, Any] | None = None

    @property
    def freed_ns(self) -> int | None:
        found: int | None = ((self.facts or {}).get("cancellation") or {}).get("freed_ns")
        return found

    @property
    def phase(self) -> str:
        """The phase that the end cut short."""
        phases = (self.facts or {}).get("phases") or [{"name": "none"}]
        return str(phases[-1]["name"])


@dataclass
class Outcome:
    """All that was seen while the server ran."""

    aborts: list[Abort] = field(default_factory=list)
    step_ns: dict[int, int] = field(default_factory=dict)
    counted: int = 0  # requests that the server's own counters saw end
    delete_missing: bool = False
    blocks_left: int = -1


def schedule(count: int) -> list[Abort]:
    draw = random.Random(11)
    kinds = draw.choices(list(REASONS), weights=[50, 25, 25], k=count)
    return [
        Abort(
            request_id=f"abort-{index}",
            kind=kind,
            # at least 20 ms: a connection that is gone before its request was read made none
            after_s=draw.uniform(0.02, LONGEST_S),
            prompt_tokens=draw.choice((16, 64, 200, 400)),
        )
        for index, kind in enumerate(kinds)
    ]


async def one(server: Server, abort: Abort) -> None:
    """Send it, end it early, and look its facts up while the server still has them."""
    more = {"timeout": round(abort.after_s, 3)} if abort.kind == "deadline" else {}
    body = completion(prompt_ids(abort.request_id, abort.prompt_tokens), OUTPUT_TOKENS, **more)
    headers = {"x-request-id": abort.request_id, "x-tenant": abort.request_id[-1]}
    exchange = await Exchange.begin(server.port, "POST", COMPLETIONS, body, headers)
    reading = asyncio.create_task(_read(exchange))
    abort.aborted_ns = exchange.sent_ns + int(abort.after_s * 1e9)
    try:
        await asyncio.wait({reading}, timeout=abort.after_s)
        if abort.kind == "disconnect":
            abort.aborted_ns = exchange.leave()
        elif abort.kind == "delete":
            begun = await Exchange.begin(server.port, "DELETE", f"/v1/requests/{abort.request_id}")
            abort.aborted_ns = begun.sent_ns
            abort.delete_status = await begun.head()
            begun.leave()
        await asyncio.wait({reading}, timeout=0.0 if abort.delete_status == 404 else 20.0)
    finally:
        exchange.leave()
        reading.cancel()
    abort.facts = await server.facts_of(abort.request_id)


async def _read(exchange: Exchange) -> None:
    with contextlib.suppress(OSError, EOFError):
        await exchange.head()
        async for _ in exchange.events():
            pass


async def storm(server: Server, count: int) -> Outcome:
    outcome = Outcome(aborts=schedule(count))
    before = sum((await server.snapshot())["requests_total"].values())
    todo = list(reversed(outcome.aborts))
    ended: Counter[str] = Counter()

    async def user() -> None:
        while todo:
            abort = todo.pop()
            await one(server, abort)
            ended[(abort.facts or {}).get("reason", "no facts")] += 1
            _note_steps(outcome, abort)

    async with ticking("aborts", lambda: f"{sum(ended.values())} ended"):
        await asyncio.gather(*(user() for _ in range(USERS)))
    last = await server.until_empty()
    outcome.counted = sum(last["requests_total"].values()) - before
    outcome.blocks_left = last["blocks_used"]
    outcome.delete_missing = any(a.delete_status in (404, 405) for a in outcome.aborts)
    return outcome


def _note_steps(outcome: Outcome, abort: Abort) -> None:
    for sequence in (abort.facts or {}).get("sequences", []):
        for chunk in sequence["chunks"]:
            outcome.step_ns[chunk["step_id"]] = chunk["end_ns"] - chunk["start_ns"]


async def run(options: Options) -> Report:
    count, drained = (60, 12) if options.quick else (900, 100)
    with start_receiver() as receiver:
        async with Server(*FLAGS, "--otlp-endpoint", receiver.endpoint) as server:
            await call(server.port, "GET", "/ready")
            outcome = await storm(server, count)
            say(f"  draining with {drained} requests")
            drain = await drain_check(server, drained, timeout_s=6)
        trees = await tree_counts(receiver, {a.request_id for a in outcome.aborts if a.facts})
        drain_trees = await tree_counts(receiver, drain.ids)
        flaws = tree_flaws(receiver)
    return report(server, outcome, drain, trees, drain_trees, flaws)


def tree_flaws(receiver: Receiver) -> str:
    """Why the receiver finds a tree unsound; empty if it finds none."""
    try:
        receiver.check_all()
    except AssertionError as flaw:
        return str(flaw) or "a tree is not sound"
    return ""


def delays_ms(aborts: list[Abort], kind: str) -> list[float]:
    """From the moment of the abort to the blocks being free."""
    return [
        (abort.freed_ns - abort.aborted_ns) / 1e6
        for abort in aborts
        if abort.kind == kind and abort.freed_ns is not None
    ]


def stages_ms(aborts: list[Abort]) -> dict[str, dict[str, float | None]]:
    """The way out of disconnected requests, p50 and p99: the client closed, the gateway noticed,
    the last step with the request was committed (after that, if it had begun), blocks free."""
    stages: dict[str, list[float]] = {
        "closed to detected": [],
        "detected to last step": [],
        "last step to freed": [],
    }
    for abort in aborts:
        found = (abort.facts or {}).get("cancellation")
        if abort.kind != "disconnect" or not found or found["freed_ns"] is None:
            continue
        detected_ns, last_ns = found["detected_ns"], found["last_step_ns"]
        stages["closed to detected"].append((detected_ns - abort.aborted_ns) / 1e6)
        if last_ns is not None:
            stages["detected to last step"].append(max(0, last_ns - detected_ns) / 1e6)
            begin_ns = max(last_ns, detected_ns)
            stages["last step to freed"].append((found["freed_ns"] - begin_ns) / 1e6)
    return {
        name: {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99)}
        for name, values in stages.items()
    }


def report(
    server: Server,
    outcome: Outcome,
    drain: Drained,
    trees: Counter[str],
    drain_trees: Counter[str],
    flaws: str,
) -> Report:
    found = [abort for abort in outcome.aborts if abort.facts]
    wrong = [
        f"{a.request_id} ({a.kind}): {(a.facts or {})['reason']}"
        for a in found
        if (a.facts or {})["reason"] != REASONS[a.kind]
    ]
    if outcome.delete_missing:
        say("  the server does not know DELETE /v1/requests/{id}")
    if not any("cancellation" in (a.facts or {}) for a in found):
        say("  /debug/requests/{id} has no cancellation")
    step_ms = {q: percentile(outcome.step_ns.values(), q) for q in (0.5, 0.99)}
    step_p99_ms = None if step_ms[0.99] is None else step_ms[0.99] / 1e6
    p99_ms = {kind: percentile(delays_ms(found, kind), 0.99) for kind in REASONS}
    figures: list[Figure] = [
        equal("blocks still used", outcome.blocks_left, 0),
        equal("aborts without facts", len(outcome.aborts) - len(found), 0),
        equal("ends counted less facts found", outcome.counted - len(found), 0),
        equal("ends for another reason", len(wrong), 0),
        equal("requests without exactly one tree", _not_one(trees), 0),
        equal("unsound trees", 1 if flaws else 0, 0),
        _freed_in_time(p99_ms["disconnect"], step_p99_ms),
        equal("drained requests without exactly one tree", _not_one(drain_trees), 0),
        *drain.figures(),
    ]
    rows: list[list[Any]] = [["abort", "count", "cut in", "to freed p50 ms", "p99 ms"]]
    for kind in REASONS:
        mine = [abort for abort in found if abort.kind == kind]
        cut = dict(Counter(abort.phase for abort in mine))
        rows.append([kind, len(mine), cut, percentile(delays_ms(mine, kind), 0.5), p99_ms[kind]])
    for name, stage in stages_ms(found).items():
        rows.append([f"disconnect: {name}", "", "", stage["p50"], stage["p99"]])
    detail = {
        "aborts": len(outcome.aborts),
        "step_ms": {"p50": (step_ms[0.5] or 0.0) / 1e6, "p99": step_p99_ms},
        "steps_measured": len(outcome.step_ns),
        "to_freed_p99_ms": p99_ms,
        "disconnect_stages_ms": stages_ms(found),
        "reasons": dict(Counter((a.facts or {})["reason"] for a in found)),
        "cut_in": {row[0]: row[2] for row in rows[1:] if row[2]},
        "wrong_ends": wrong[:20],
        "tree_flaw": flaws,
        "trees_not_one": {i: n for i, n in {**trees, **drain_trees}.items() if n != 1},
        "drain": drain.detail(),
    }
    return Report("aborts", figures, {"server": server.flags}, detail, rows)


def _freed_in_time(p99_ms: float | None, step_p99_ms: float | None) -> Figure:
    """Not measured where steps or aborts were too few."""
    known = None if step_p99_ms is None else p99_ms
    return at_most("disconnect to freed, p99 ms", known, 2 * (step_p99_ms or 0.0) + MARGIN_MS)


def _not_one(counts: Counter[str]) -> int:
    return sum(count != 1 for count in counts.values())
