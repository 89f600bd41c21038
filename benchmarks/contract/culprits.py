"""Fifty long prompts among steady decoders: do late tokens name the prompt that made them late?

The truth is the client's: its own stamps of each token, and the times at which it had a long
prompt outstanding, one at a time. A gap above twice the median counts; it is named rightly when
the server's account of that stream has a stall there whose culprit is the prompt outstanding.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contract.client import COMPLETIONS, Exchange, Reply, completion, now_ns, prompt_ids
from benchmarks.contract.common import Options, Report, Server, at_least, say, ticking

DECODERS, LONG_TOKENS, OUTPUT_TOKENS = 4, 700, 1500
PAUSE_S = 1.0
CLASS = "watched"


@dataclass
class Long:
    """One injected prompt, from sent to its first token."""

    request_id: str
    sent_ns: int
    token_ns: int


@dataclass
class Seen:
    replies: dict[str, Reply] = field(default_factory=dict)
    longs: list[Long] = field(default_factory=list)
    accounts: dict[str, dict[str, Any]] = field(default_factory=dict)
    stop: bool = False


async def stream(server: Server, request_id: str, body: dict[str, Any], reply: Reply) -> Reply:
    headers = {"x-request-id": request_id, "x-slo-class": CLASS}
    exchange = await Exchange.begin(server.port, "POST", COMPLETIONS, body, headers)
    reply.due_ns = exchange.sent_ns
    try:
        await exchange.head()
        async for event in exchange.events():
            reply.take(event)
    finally:
        exchange.leave()
    return reply


async def decoder(server: Server, seen: Seen, index: int) -> None:
    """One stream after another, as long as prompts are injected."""
    turn = 0
    while not seen.stop:
        request_id, turn = f"decoder-{index}-{turn}", turn + 1
        reply = seen.replies[request_id] = Reply()
        await stream(server, request_id, completion(prompt_ids(request_id, 32), 400), reply)
        seen.accounts[request_id] = await server.facts_of(request_id) or {}


async def inject(server: Server, seen: Seen, count: int) -> None:
    await asyncio.sleep(3)
    for number in range(count):
        request_id = f"long-{number}"
        body = completion(prompt_ids(request_id, LONG_TOKENS), 1)
        reply = await stream(server, request_id, body, Reply())
        seen.longs.append(Long(request_id, reply.due_ns, reply.token_ns[0]))
        await asyncio.sleep(PAUSE_S)
    seen.stop = True


def slo_file(folder: str, target_ms: float) -> str:
    path = Path(folder) / "slo.toml"
    path.write_text(f"[classes.{CLASS}]\nttft_ms = 60000\nitl_ms = {target_ms:.3f}\n")
    return str(path)


async def median_itl_ms(options: Options) -> float:
    """The median gap in ms of steady decoders alone: what the allowed gap is made of."""
    seen = Seen()
    async with Server("--max-num-seqs", "16") as server:
        tasks = [asyncio.create_task(decoder(server, seen, i)) for i in range(DECODERS)]
        await asyncio.sleep(8)
        seen.stop = True
        async with ticking("decoders alone"):
            await asyncio.gather(*tasks)
    return statistics.median(gap for reply in seen.replies.values() for gap in reply.gaps_ms)


async def run(options: Options) -> Report:
    count = 8 if options.quick else 50
    alone_ms = await median_itl_ms(options)
    say(f"  median ITL of {DECODERS} decoders alone: {alone_ms:.1f} ms")
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--max-num-seqs", "16", "--slo-file", slo_file(folder, 2 * alone_ms))
        injecting = ticking("injecting", lambda: f"{len(seen.longs)} long prompts")
        async with Server(*flags) as server, injecting:
            decoders = [decoder(server, seen, index) for index in range(DECODERS)]
            await asyncio.gather(*decoders, inject(server, seen, count))
    return report(seen, server, alone_ms)


def late_gaps(seen: Seen, limit_ms: float) -> list[tuple[str, int, int]]:
    """(stream, begin, end) of each gap above the limit that a long prompt was outstanding in."""
    return [
        (request_id, begin_ns, end_ns)
        for request_id, reply in seen.replies.items()
        for begin_ns, end_ns in zip(reply.token_ns, reply.token_ns[1:], strict=False)
        if end_ns - begin_ns > 1e6 * limit_ms
    ]


def outstanding(seen: Seen, begin_ns: int, end_ns: int) -> str | None:
    """The long prompt that was being served for most of the gap."""
    shared = {
        long.request_id: min(end_ns, long.token_ns) - max(begin_ns, long.sent_ns)
        for long in seen.longs
    }
    best = max(shared, key=lambda name: shared[name], default=None)
    return best if best is not None and shared[best] > 0 else None


def named(seen: Seen, request_id: str, begin_ns: int, end_ns: int) -> str | None:
    """Whom the server blames for that gap: the stall that shares most of it."""
    stalls = seen.accounts.get(request_id, {}).get("stalls", [])
    best, shared_ns = None, 0
    for stall in stalls:
        common_ns = min(end_ns, stall["end_ns"]) - max(begin_ns, stall["begin_ns"])
        if common_ns > shared_ns:
            best, shared_ns = stall, common_ns
    return None if best is None else best.get("culprit_request_id")


def stated(flags: list[str]) -> list[str]:
    """Flags as they are published: the file's folder is this machine's."""
    return [Path(flag).name if flag.endswith("slo.toml") else flag for flag in flags]


def report(seen: Seen, server: Server, alone_ms: float) -> Report:
    gaps = [gap for reply in seen.replies.values() for gap in reply.gaps_ms]
    median_ms = statistics.median(gaps)
    judged = right = blamed_without_truth = 0
    for request_id, begin_ns, end_ns in late_gaps(seen, 2 * median_ms):
        truth = outstanding(seen, begin_ns, end_ns)
        verdict = named(seen, request_id, begin_ns, end_ns)
        if truth is None:
            blamed_without_truth += verdict is not None
            continue
        judged += 1
        right += verdict == truth
    share = right / judged if judged else None
    figures = [
        at_least("share of late gaps that name the true culprit", share, 0.95),
        at_least("late gaps judged", judged, len(seen.longs)),
    ]
    rows: list[list[Any]] = [
        ["long prompts", "median ITL ms", "late gaps", "named rightly", "share"],
        [len(seen.longs), median_ms, judged, right, share],
    ]
    detail = {
        "median_itl_alone_ms": alone_ms,
        "median_itl_ms": median_ms,
        "late_gaps": judged,
        "named_rightly": right,
        "late_gaps_without_a_long_prompt_that_blame_somebody": blamed_without_truth,
        "elapsed_s": (now_ns() - seen.longs[0].sent_ns) / 1e9,
    }
    return Report("culprits", figures, {"server": stated(server.flags)}, detail, rows)
