"""A tenant that floods does not slow another down: weighted fair queueing against FCFS.

Two servers that differ in `--fairness` only run side by side, one of them loaded at a time, and
the phases alternate between them. The victim offers a quarter of the measured capacity, half of
what it may have; the flooder five times its share, which is half of the capacity. The victim's
arrivals are the same in every phase. Waiting work of the flooder is dropped between the phases.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.contract.client import Reply, ask, completion, open_loop, prompt_ids
from benchmarks.contract.common import (
    Options,
    Report,
    Server,
    above,
    at_most,
    equal,
    percentile,
    ratio,
    say,
    ticking,
)
from benchmarks.contract.lateness import sending, sent_in_time
from benchmarks.machine import spread

# three steps of prefill with the flooder's decodes in the batch and without them
PROMPT_TOKENS, OUTPUT_TOKENS = 176, 8
FLAGS = (
    "--kv-memory", "512MiB", "--max-num-seqs", "8", "--tenant-max-seqs", "4",
    "--max-batched-tokens", "64", "--queue-limit", "4000", "--queue-limit-tokens", "2000000",
)  # fmt: skip
VICTIM_OF_CAPACITY, FLOOD_OF_SHARE = 0.25, 5.0
SHARE = 0.5
CALIBRATION_USERS = 8


async def capacity(server: Server, seconds: float) -> float:
    """Requests/s of a closed loop with as many users as the batch has places."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    ends: list[float] = []

    async def user(index: int) -> None:
        turn = 0
        while loop.time() < begin_s + seconds:
            prompt = prompt_ids(f"calibration-{index}-{turn}", PROMPT_TOKENS)
            tenant = {"x-tenant": f"calibration-{index}"}
            await ask(server.port, completion(prompt, OUTPUT_TOKENS), headers=tenant)
            ends.append(loop.time())
            turn += 1

    async with ticking("calibrating", lambda: f"{len(ends)} requests"):
        await asyncio.gather(*(user(index) for index in range(CALIBRATION_USERS)))
    return len(ends) / (max(ends) - begin_s)


class Phase:
    """Seeded arrivals of the victim, and of the flooder when there is one."""

    def __init__(self, server: Server, name: str, seed: int, seconds: float) -> None:
        self._server, self._seed, self._seconds = server, seed, seconds
        self._salt = f"{name}-{seed}"
        self.lost = 0
        self.late_ms: list[float] = []
        self._flood: list[asyncio.Task[Reply]] = []

    async def run(self, victim_per_s: float, flood_per_s: float) -> list[float]:
        """The victim's times to first token, in ms."""
        flooding = asyncio.create_task(self._flooding(flood_per_s)) if flood_per_s else None
        if flooding:
            await asyncio.sleep(2)  # the queue is there before the victim
        start = self._starter("victim")
        tasks = await open_loop(victim_per_s, self._seconds, self._seed, start)
        replies = await asyncio.gather(*tasks, return_exceptions=True)
        if flooding:
            await _cancel([flooding, *self._flood])
        last = await self._server.until_empty(120)
        if last["running"] or last["waiting"]:
            say("  the engine did not become empty between two phases")
        whole = [reply for reply in replies if isinstance(reply, Reply) and reply.done]
        self.lost = len(replies) - len(whole)
        self.late_ms = [reply.late_ms for reply in whole]
        return [reply.ttft_ms for reply in whole]

    async def _flooding(self, rate_per_s: float) -> None:
        start = self._starter("flooder")

        def keep(index: int, due_ns: int) -> asyncio.Task[Reply]:
            self._flood.append(start(index, due_ns))
            return self._flood[-1]

        await open_loop(rate_per_s, 3600, self._seed + 1, keep)

    def _starter(self, tenant: str) -> Callable[[int, int], asyncio.Task[Reply]]:
        def start(index: int, due_ns: int) -> asyncio.Task[Reply]:
            prompt = prompt_ids(f"{tenant}-{self._salt}-{index}", PROMPT_TOKENS)  # none is cached
            body, headers = completion(prompt, OUTPUT_TOKENS), {"x-tenant": tenant}
            asking = ask(self._server.port, body, headers=headers, due_ns=due_ns)
            return asyncio.create_task(asking)

        return start


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)


async def run(options: Options) -> Report:
    rounds, seconds = (1, 20.0) if options.quick else (3, 50.0)
    found: dict[str, list[list[float]]] = {"alone": [], "vtc": [], "fcfs": []}
    lost, late_ms = 0, list[float]()
    async with (
        Server(*FLAGS, "--fairness", "vtc") as fair,
        Server(*FLAGS, "--fairness", "fcfs") as first_come,
    ):
        await ask(first_come.port, completion(prompt_ids(1, PROMPT_TOKENS), 4))
        full = await capacity(fair, max(8.0, seconds / 3))
        victim, flood = full * VICTIM_OF_CAPACITY, full * SHARE * FLOOD_OF_SHARE
        say(f"  capacity {full:.2f}/s, victim {victim:.2f}/s, flooder {flood:.2f}/s")
        phases: list[tuple[str, Server, float]] = [
            ("alone", fair, 0.0),
            ("vtc", fair, flood),
            ("fcfs", first_come, flood),
        ]
        for number in range(rounds):
            for name, server, rate in phases:
                phase = Phase(server, name, number + 1, seconds)
                title = f"round {number + 1}, {name}"
                found[name].append(await _phase(title, phase.run(victim, rate)))
                lost += phase.lost
                late_ms += phase.late_ms
        servers = {"vtc": fair.flags, "fcfs": first_come.flags}
    rates = {"capacity": full, "victim": victim, "flooder": flood}
    return report(found, lost, late_ms, rates, servers)


async def _phase(name: str, job: Awaitable[list[float]]) -> list[float]:
    async with ticking(name):
        ttft_ms = await job
    p50 = percentile(ttft_ms, 0.5)
    say(f"  {name}: TTFT p50 {'-' if p50 is None else round(p50)} ms of {len(ttft_ms)}")
    return ttft_ms


def report(
    found: dict[str, list[list[float]]],
    lost: int,
    late_ms: list[float],
    rates: dict[str, float],
    servers: dict[str, list[str]],
) -> Report:
    pooled = {name: [value for one in each for value in one] for name, each in found.items()}
    p95 = {name: percentile(values, 0.95) for name, values in pooled.items()}
    figures = [
        at_most("victim's TTFT p95, vtc/alone", ratio(p95["vtc"], p95["alone"]), 2),
        above("victim's TTFT p95, fcfs/alone", ratio(p95["fcfs"], p95["alone"]), 2),
        equal("victim's requests without an answer", lost, 0),
        sent_in_time(late_ms),
    ]
    rows: list[list[Any]] = [["phase", "requests", "TTFT p50 ms", "p95 ms", "p95 by round"]]
    detail: dict[str, Any] = {"requests_per_s": rates, "sent": sending(late_ms), "phases": {}}
    for name, values in pooled.items():
        each = (percentile(one, 0.95) for one in found[name])
        by_round = [one for one in each if one is not None]
        p50 = percentile(values, 0.5)
        rows.append([name, len(values), p50, p95[name], [round(one) for one in by_round]])
        detail["phases"][name] = {
            "requests": len(values),
            "ttft_p50_ms": p50,
            "ttft_p95_ms": p95[name],
            "ttft_p95_ms_by_round": spread(by_round),
        }
    return Report("fairness", figures, servers, detail, rows)
