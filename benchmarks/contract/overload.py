"""Three times the capacity: every request is answered, goodput stays, and it is over at once.

Capacity is measured first by a closed loop. Then requests come by a seeded Poisson process at
capacity and at three times capacity. Goodput is the rate of whole answers within the SLO, which
is stated in terms of the calibration: TTFT within twice what a full queue takes to drain plus
three times the calibration's TTFT p95, mean gap between tokens within twice the calibration's p95.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.contract.client import (
    NotSupported,
    Reply,
    ask,
    completion,
    now_ns,
    open_loop,
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
    ratio,
    say,
    ticking,
)
from benchmarks.contract.lateness import sending, sent_in_time

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16
SEQS, QUEUE = 8, 8
FLAGS = (
    "--kv-memory", "512MiB", "--max-num-seqs", str(SEQS), "--max-batched-tokens", "128",
    "--queue-limit", str(QUEUE),
)  # fmt: skip
OVERLOAD = 3.0
BACK_TO_NORMAL_S, NORMAL = 10.0, 1.5
PROBES_IN_A_ROW = 3


@dataclass(frozen=True)
class Slo:
    """What a good answer is; also what was measured to state it."""

    capacity_per_s: float
    ttft_ms: float
    gap_ms: float

    def met(self, reply: Reply) -> bool:
        gaps = reply.gaps_ms
        return reply.done and reply.ttft_ms <= self.ttft_ms and sum(gaps) / len(gaps) <= self.gap_ms


@dataclass
class Phase:
    """A minute of arrivals at one rate."""

    name: str
    rate_per_s: float
    seconds: float
    replies: list[Reply] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    waiting_max: int = 0
    end_ns: int = 0

    def kinds(self) -> Counter[str]:
        return Counter(_kind(reply) for reply in self.replies) + self.lost

    def goodput_per_s(self, slo: Slo) -> float:
        """Good answers within the phase: what is left of the queue after it counts for none."""
        good = [reply for reply in self.replies if slo.met(reply)]
        return sum(reply.token_ns[-1] <= self.end_ns for reply in good) / self.seconds


def _kind(reply: Reply) -> str:
    if reply.done:
        return "whole"
    if reply.status == 429:
        return "429" if reply.retry_after else "429 without Retry-After"
    return f"{reply.status} broken off" if reply.status == 200 else str(reply.status)


def _ask(server: Server, name: str, due_ns: int | None = None) -> asyncio.Task[Reply]:
    body = completion(prompt_ids(name, PROMPT_TOKENS), OUTPUT_TOKENS)
    return asyncio.create_task(ask(server.port, body, due_ns=due_ns))


async def calibrate(server: Server, seconds: float) -> Slo:
    """A closed loop with as many users as the batch has places, each to its last answer."""
    begin_ns = now_ns()
    end_ns = begin_ns + int(seconds * 1e9)
    replies: list[Reply] = []

    async def user(index: int) -> None:
        while now_ns() < end_ns:
            replies.append(await _ask(server, f"calibration-{index}-{len(replies)}"))

    async with ticking("calibrating", lambda: f"{len(replies)} requests"):
        await asyncio.gather(*(user(index) for index in range(SEQS)))
    last_ns = max(reply.token_ns[-1] for reply in replies)
    capacity = len(replies) / ((last_ns - begin_ns) / 1e9)
    ttft_ms = percentile((reply.ttft_ms for reply in replies), 0.95)
    gap_ms = percentile((statistics.fmean(reply.gaps_ms) for reply in replies), 0.95)
    if ttft_ms is None or gap_ms is None:
        raise NotSupported(f"{len(replies)} replies are too few to state what a good one is")
    return Slo(capacity, 2000 * QUEUE / capacity + 3 * ttft_ms, 2 * gap_ms)


async def load(server: Server, phase: Phase, seed: int) -> None:
    """Fill the phase in; returns when its last request is answered."""

    async def watch() -> None:
        while True:
            seen = await server.snapshot()
            phase.waiting_max = max(phase.waiting_max, seen["waiting"])
            await asyncio.sleep(0.25)

    watcher = asyncio.create_task(watch())
    started = 0

    def start(index: int, due_ns: int) -> asyncio.Task[Reply]:
        nonlocal started
        started = index + 1
        return _ask(server, f"{phase.name}-{index}", due_ns)

    async with ticking(f"load {phase.name}", lambda: f"{started} sent"):
        tasks = await open_loop(phase.rate_per_s, phase.seconds, seed, start)
    phase.end_ns = now_ns()
    _, silent = await asyncio.wait(tasks, timeout=120)
    for task in silent:
        task.cancel()
    for task in tasks:
        if task in silent or task.exception() is not None:
            error = None if task in silent else task.exception()
            phase.lost[f"lost: {type(error).__name__ if error else 'no answer'}"] += 1
        else:
            phase.replies.append(task.result())
    watcher.cancel()
    say(f"  load {phase.name}: {dict(phase.kinds())}, {_seconds(phase.end_ns):.1f} s to the last")


async def idle_ttft_ms(server: Server, name: str, count: int) -> float:
    found = [(await _ask(server, f"{name}-{index}")).ttft_ms for index in range(count)]
    return statistics.median(found)


async def back_to_normal_s(server: Server, limit_ms: float, begin_ns: int) -> float | None:
    """From the last arrival until the first of three probes in a row that are as when idle."""
    good_since_s: float | None = None
    good = 0
    for index in range(60):
        sent_s = _seconds(begin_ns)
        reply = await _ask(server, f"probe-{index}")
        if reply.status == 200 and reply.ttft_ms <= limit_ms:
            good_since_s = sent_s if good == 0 else good_since_s
            good += 1
        else:
            good = 0
        if good == PROBES_IN_A_ROW:
            return good_since_s
        await asyncio.sleep(0.2)
    return None


def _seconds(since_ns: int) -> float:
    return (now_ns() - since_ns) / 1e9


async def run(options: Options) -> Report:
    seconds = 8.0 if options.quick else 60.0
    async with Server(*FLAGS) as server:
        await idle_ttft_ms(server, "warm-up", 3)
        idle_ms = await idle_ttft_ms(server, "idle", 5 if options.quick else 15)
        slo = await calibrate(server, max(8.0, seconds / 2))
        say(f"  capacity {slo.capacity_per_s:.2f}/s; SLO: TTFT {slo.ttft_ms:.0f} ms,")
        say(f"  mean gap {slo.gap_ms:.0f} ms; idle TTFT {idle_ms:.0f} ms")
        at_capacity = Phase("1x", slo.capacity_per_s, seconds)
        overload = Phase("3x", OVERLOAD * slo.capacity_per_s, seconds)
        await load(server, at_capacity, 1)
        await server.until_empty()
        loading = asyncio.create_task(load(server, overload, 2))
        await asyncio.sleep(seconds)
        begin_ns = now_ns()  # the backlog of accepted requests counts as part of the recovery
        normal_s = await back_to_normal_s(server, NORMAL * idle_ms, begin_ns)
        await loading
        last = await server.until_empty()
        alive = server.process.poll() is None and last["engine_restarts"] == 0
    detail = {
        "slo": asdict(slo),
        "idle_ttft_ms": idle_ms,
        "back_to_normal_s": normal_s,
        "alive": alive,
        "blocks_used": last["blocks_used"],
    }
    return report([at_capacity, overload], slo, server, detail)


def report(phases: list[Phase], slo: Slo, server: Server, detail: dict[str, Any]) -> Report:
    unanswered = sum(
        count
        for phase in phases
        for kind, count in phase.kinds().items()
        if kind not in ("whole", "429")
    )
    at_capacity, overload = (phase.goodput_per_s(slo) for phase in phases)
    late_ms = [reply.late_ms for phase in phases for reply in phase.replies]
    figures: list[Figure] = [
        equal("gateway and engine alive", float(detail["alive"]), 1),
        equal("requests without a proper answer", unanswered, 0),
        at_least("goodput 3x/1x", ratio(overload, at_capacity), 0.9),
        at_most("waiting requests, most", max(phase.waiting_max for phase in phases), QUEUE),
        at_most("back to normal, s", detail["back_to_normal_s"], BACK_TO_NORMAL_S),
        equal("blocks used at the end", detail["blocks_used"], 0),
        sent_in_time(late_ms),
    ]
    detail["sent"] = sending(late_ms)
    rows: list[list[Any]] = [
        ["load", "offered/s", "answers", "goodput/s", "TTFT p50 ms", "p99 ms", "ITL p99 ms"]
    ]
    for phase in phases:
        whole = [reply for reply in phase.replies if reply.done]
        ttft_ms = [reply.ttft_ms for reply in whole]
        gaps_ms = [gap for reply in whole for gap in reply.gaps_ms]
        row = [phase.name, phase.rate_per_s, dict(phase.kinds()), phase.goodput_per_s(slo)]
        row += [percentile(ttft_ms, 0.5), percentile(ttft_ms, 0.99), percentile(gaps_ms, 0.99)]
        rows.append(row)
        detail[phase.name] = dict(zip(rows[0][1:], row[1:], strict=True))
    return Report("overload", figures, {"server": server.flags}, detail, rows)
