"""Readers of 5 tokens/s do not slow the others down, and do not fill the gateway's memory.

Ten streams run at once. In the slow half of a repetition one of them is read at 5 tokens/s
through a tiny receive buffer; in the other half all ten are read at once. The inter-token gaps
of the same nine streams are compared; the halves alternate, and which comes first does too. The
tenth stream is longer than the nine, so that it is there until they are done.

Weights are int8, so that streams are well faster than the slow reader on a small machine too.

On the loopback device a kernel would keep 2 MB for a reader that does not read, which is the
whole stream, and the server would see nothing of it. The slow reader therefore asks for segments
as small as Ethernet's, which leaves some 70 KB, and the tenth stream has 20 logprobs a token, more
than 1 KB. The facts must say that the server noticed: it paused or ended the slow sequence.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contract.client import (
    COMPLETIONS,
    HOST,
    Body,
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
    percentile,
    say,
    ticking,
)
from benchmarks.machine import rss_kib, spread

OTHERS = 9
PROMPT_TOKENS, OTHERS_TOKENS, TENTH_TOKENS = 32, 600, 1500
SLOW_TOKENS_PER_S = 5.0
RECEIVE_BUFFER_BYTES, SEGMENT_BYTES = 2048, 1448
TENTH_LOGPROBS = 20
RSS_LIMIT_KIB = 8 * 1024
FLAGS = (
    "--kv-memory", "2GiB", "--max-num-seqs", "16", "--slow-client", "pause",
    "--slow-client-timeout", "600", "--weights", "int8", "--stream-buffer", "128",
)  # fmt: skip


@dataclass
class Half:
    """One run of ten streams."""

    slow: bool
    gaps_ms: list[float] = field(default_factory=list)
    rss_kib: list[int] = field(default_factory=list)
    unfinished: int = 0
    tenth_tokens: int = 0
    tenth_facts: dict[str, Any] = field(default_factory=dict)

    @property
    def held_back(self) -> bool:
        """The server paused the tenth sequence, or ended it before its client left."""
        waits = [one["wait_ns"] for one in self.tenth_facts.get("sequences", [])]
        paused = any(wait.get("client_pause", 0) > 0 for wait in waits)
        return paused or self.tenth_facts.get("reason") not in (None, "disconnect", "max_tokens")

    @property
    def itl_p99_ms(self) -> float:
        p99_ms = percentile(self.gaps_ms, 0.99)
        if p99_ms is None:
            raise NotSupported(f"{len(self.gaps_ms)} gaps are too few for a p99")
        return p99_ms


async def read_slowly(port: int, body: Body, request_id: str, half: Half) -> None:
    """Take bytes only as fast as 5 tokens/s allows, from a socket that keeps few of them."""
    loop = asyncio.get_running_loop()
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    raw.setblocking(False)
    payload = json.dumps(body).encode()
    lines = [f"POST {COMPLETIONS} HTTP/1.1", f"host: {HOST}", f"x-request-id: {request_id}"]
    lines += ["content-type: application/json", f"content-length: {len(payload)}", "", ""]
    with raw:
        await loop.sock_connect(raw, (HOST, port))
        await loop.sock_sendall(raw, "\r\n".join(lines).encode() + payload)
        begin_ns, tail = now_ns(), b""
        while data := await loop.sock_recv(raw, 256):
            seen = tail + data
            half.tenth_tokens += seen.count(b"data: {")
            # what begins an event and is not whole yet is counted with the next bytes
            tail = seen[max(seen.rfind(b"data: {") + 7, len(seen) - 6) :]
            ahead_s = half.tenth_tokens / SLOW_TOKENS_PER_S - (now_ns() - begin_ns) / 1e9
            await asyncio.sleep(max(0.0, ahead_s))


async def read_at_once(port: int, body: Body, request_id: str, half: Half) -> None:
    await ask(port, body, headers={"x-request-id": request_id})


async def one_half(server: Server, number: int, slow: bool, tokens: int) -> Half:
    half = Half(slow)

    def body(index: int, count: int, **more: Any) -> Body:
        return completion(prompt_ids(f"{number}-{slow}-{index}", PROMPT_TOKENS), count, **more)

    async def sample() -> None:
        while True:
            half.rss_kib.append(rss_kib(server.process.pid))
            await asyncio.sleep(0.5)

    read = read_slowly if slow else read_at_once
    long_body = body(OTHERS, tokens * TENTH_TOKENS // OTHERS_TOKENS, logprobs=TENTH_LOGPROBS)
    request_id = f"tenth-{number + 1}-{'slow' if slow else 'control'}"
    tenth = asyncio.create_task(read(server.port, long_body, request_id, half))
    sampler = asyncio.create_task(sample())
    others = (ask(server.port, body(index, tokens)) for index in range(OTHERS))
    name = f"repetition {number + 1}, {'slow reader' if slow else 'control'}"
    async with ticking(name, lambda: f"gateway {half.rss_kib[-1]} KiB"):
        replies = await asyncio.gather(*others)
    for task in (tenth, sampler):
        task.cancel()
    await asyncio.gather(tenth, sampler, return_exceptions=True)
    half.gaps_ms = [gap for reply in replies for gap in reply.gaps_ms]
    half.unfinished = sum(not reply.done or len(reply.token_ns) != tokens for reply in replies)
    say(f"  {name}: ITL p99 of the others {half.itl_p99_ms:.1f} ms")
    await server.until_empty()
    half.tenth_facts = await server.facts_of(request_id) or {}
    return half


async def run(options: Options) -> Report:
    repetitions, tokens = (1, 160) if options.quick else (7, OTHERS_TOKENS)
    halves: list[Half] = []
    async with Server(*FLAGS) as server:
        await one_half(server, -1, False, 20)  # warm-up
        for number in range(repetitions):
            order = (True, False) if number % 2 else (False, True)
            halves += [await one_half(server, number, slow, tokens) for slow in order]
        last = await server.until_empty()
    return report(halves, server, last["blocks_used"])


def report(halves: list[Half], server: Server, blocks_used: int) -> Report:
    slow = [half for half in halves if half.slow]
    control = [half for half in halves if not half.slow]
    ratios = [a.itl_p99_ms / b.itl_p99_ms for a, b in zip(slow, control, strict=True)]
    peak = {True: max(max(h.rss_kib) for h in slow), False: max(max(h.rss_kib) for h in control)}
    growth = [half.rss_kib[-1] - half.rss_kib[0] for half in slow]
    figures: list[Figure] = [
        at_most("others' ITL p99, slow/control, median", statistics.median(ratios), 1.05),
        at_most("gateway RSS in slow runs, growth KiB, median", _median(growth), RSS_LIMIT_KIB),
        at_most(
            "gateway RSS peak, slow less control, KiB", peak[True] - peak[False], RSS_LIMIT_KIB
        ),
        equal("slow readers not held back", sum(not half.held_back for half in slow), 0),
        equal("others' streams not whole", sum(half.unfinished for half in halves), 0),
        equal("blocks used at the end", blocks_used, 0),
    ]
    rows: list[list[Any]] = [
        ["run", "ITL p50 ms", "p99 median", "p99 min", "p99 max", "tenth generated, read"]
    ]
    detail: dict[str, Any] = {"ratio": spread(ratios), "rss_peak_kib": peak[True], "runs": {}}
    for name, mine in (("slow reader", slow), ("control", control)):
        gaps = [gap for half in mine for gap in half.gaps_ms]
        p99 = spread(half.itl_p99_ms for half in mine)
        tenth = [(half.tenth_facts.get("output_tokens"), half.tenth_tokens) for half in mine]
        p50 = percentile(gaps, 0.5)
        rows.append([name, p50, p99["median"], p99["min"], p99["max"], tenth])
        detail["runs"][name] = {
            "itl_p50_ms": p50,
            "itl_p99_ms": p99,
            "tenth_generated_and_read": tenth,
            "rss_kib": [[half.rss_kib[0], max(half.rss_kib)] for half in mine],
        }
    return Report("slow_readers", figures, {"server": server.flags}, detail, rows)


def _median(values: list[int]) -> float:
    return float(statistics.median(values))
