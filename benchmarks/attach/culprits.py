"""Fifty long prompts among steady streams of an attached vLLM: do late tokens name the right one?

The truth is the client's: its own stamps of each token, and when it had a long prompt outstanding,
one at a time. A gap above twice the median counts. It is named rightly when the sidecar's account
of that stream has a stall there whose culprit is the prompt that was outstanding. Gaps of a client
that read late say nothing and do not count.

    .venv/bin/python -m benchmarks.attach.culprits [--quick] [--eager] [--prompts 50]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attach.arguments import finish, parser_of, vllm_flags
from benchmarks.attach.client import Stream, ask, tokens_of
from benchmarks.attach.sidecar import Sidecar
from benchmarks.attach.vllm_server import Vllm
from benchmarks.contract.client import NotSupported, now_ns, prompt_ids
from benchmarks.contract.common import Report, at_least, at_most, say, ticking
from benchmarks.contract.lateness import Lateness
from benchmarks.machine import CORES
from lab.drills.outcome.conditions import FOREIGN_LIMIT, Reading, between, read
from lab.load.processes import tree_of
from telemetry.facts.clock import MonotonicClock

DECODERS, LONG_TOKENS, OUTPUT_TOKENS = 4, 700, 300
LONG, DECODER = "long", "decoder"
LEAD_S, PAUSE_S = 4.0, 1.2
FACTOR = 2
CLIENT_LATE_MS, NEAR_NS = 10.0, 2_000_000
LIMIT = 0.95
TARGET_MS = 40.0  # an inter-token target of the sidecar, about the ITL: it keeps stalls above it
Gap = tuple[str, int, int]  # request, begin, end


@dataclass
class Seen:
    """Streams by request id, and their accounts."""

    streams: dict[str, Stream] = field(default_factory=dict)
    accounts: dict[str, dict[str, Any]] = field(default_factory=dict)
    lateness: Lateness = field(default_factory=Lateness)
    stop: bool = False

    @property
    def longs(self) -> list[Stream]:
        found = (one for name, one in self.streams.items() if name.startswith(LONG))
        return [one for one in found if one.token_ns]

    @property
    def steady(self) -> dict[str, Stream]:
        return {name: one for name, one in self.streams.items() if name.startswith(DECODER)}


# --- judging ---------------------------------------------------------------------------------


def median_gap_ns(streams: Mapping[str, Stream]) -> float:
    """The median of all gaps of the steady streams, in ns."""
    gaps = [end - begin for one in streams.values() for begin, end in one.gaps_ns]
    if not gaps:
        raise NotSupported("the steady streams had no gaps: nothing was served")
    return statistics.median(gaps)


def late_gaps(streams: Mapping[str, Stream], limit_ns: float) -> list[Gap]:
    """The gaps above the limit."""
    return [
        (name, begin, end)
        for name, one in streams.items()
        for begin, end in one.gaps_ns
        if end - begin > limit_ns
    ]


def outstanding(longs: Sequence[Stream], begin_ns: int, end_ns: int) -> str | None:
    """The long prompt that was being served for most of the gap; None: none was in it."""
    shared = {
        one.request_id: min(end_ns, one.token_ns[0]) - max(begin_ns, one.sent_ns) for one in longs
    }
    best = max(shared, key=lambda name: shared[name], default=None)
    return best if best is not None and shared[best] > 0 else None


def named(account: Mapping[str, Any], begin_ns: int, end_ns: int) -> str | None:
    """Whom the sidecar blames for that gap: the culprit of the stall that shares most of it."""
    best, shared_ns = None, 0
    for stall in account.get("stalls", ()):
        common_ns = min(end_ns, stall["end_ns"]) - max(begin_ns, stall["begin_ns"])
        if common_ns > shared_ns:
            best, shared_ns = stall, common_ns
    return None if best is None else best.get("culprit_request_id")


# --- running ---------------------------------------------------------------------------------


def slo_file(folder: str) -> Path:
    path = Path(folder) / "slo.toml"
    path.write_text(
        f'default = "watched"\n[classes.watched]\nttft_ms = 60000\nitl_ms = {TARGET_MS:.1f}\n'
    )
    return path


async def decoder(port: int, sidecar: Sidecar, seen: Seen, index: int) -> None:
    """One stream after another, as long as prompts are injected."""
    turn = 0
    while not seen.stop:
        name, turn = f"{DECODER}-{index}-{turn}", turn + 1
        stream = seen.streams[name] = Stream(name)
        await ask(port, tokens_of(prompt_ids(name, 32), OUTPUT_TOKENS), name, into=stream)
        seen.accounts[name] = await sidecar.facts_of(name) or {}


async def inject(port: int, seen: Seen, count: int) -> None:
    await asyncio.sleep(LEAD_S)
    for number in range(count):
        name = f"{LONG}-{number}"
        stream = seen.streams[name] = Stream(name)
        await ask(port, tokens_of(prompt_ids(name, LONG_TOKENS), 1), name, into=stream)
        await asyncio.sleep(PAUSE_S)
    seen.stop = True


async def check(args: argparse.Namespace) -> Report:
    count, seen = (6 if args.quick else args.prompts), Seen()
    with tempfile.TemporaryDirectory() as folder:
        async with (
            Sidecar("--slo-file", str(slo_file(folder))) as sidecar,
            Vllm(*vllm_flags(args), attach_to=sidecar.socket) as server,
        ):
            await sidecar.until_attached()
            warm = await ask(server.port, tokens_of(prompt_ids("warm", LONG_TOKENS), 4), "warm")
            if not warm.is_whole:
                raise NotSupported(f"vLLM did not serve the warm-up: {warm.error}")
            first = reading(server, sidecar)
            with seen.lateness.watching():
                async with ticking("injecting", lambda: f"{len(seen.longs)} long prompts"):
                    decoders = [
                        decoder(server.port, sidecar, seen, index) for index in range(DECODERS)
                    ]
                    await asyncio.gather(*decoders, inject(server.port, seen, count))
            foreign = between(first, reading(server, sidecar), []).foreign
    return report(seen, server.flags, foreign)


def reading(server: Vllm, sidecar: Sidecar) -> Reading:
    """The machine's counters, and those of all that belongs to this."""
    pids = [*server.pids, *tree_of(sidecar.pid)]
    return read(MonotonicClock(), pids, range(CORES))


def report(seen: Seen, flags: tuple[str, ...], foreign: float | None) -> Report:
    steady, longs = seen.steady, seen.longs
    median_ns = median_gap_ns(steady)
    judged = right = starved = blamed = 0
    wrong: list[dict[str, Any]] = []
    for name, begin_ns, end_ns in late_gaps(steady, FACTOR * median_ns):
        truth = outstanding(longs, begin_ns, end_ns)
        verdict = named(seen.accounts.get(name, {}), begin_ns, end_ns)
        if truth is None:
            blamed += verdict is not None
        elif max(seen.lateness.near(at, NEAR_NS) for at in (begin_ns, end_ns)) > CLIENT_LATE_MS:
            starved += 1
        else:
            judged += 1
            right += verdict == truth
            if verdict != truth:
                gap_ms = round((end_ns - begin_ns) / 1e6, 1)
                wrong.append({"stream": name, "ms": gap_ms, "true": truth, "named": verdict})
    share = right / judged if judged else None
    broken = sum(not one.is_whole for one in seen.streams.values())
    figures = [
        at_least("share of late gaps that name the true culprit", share, LIMIT),
        at_least("late gaps judged", judged, len(longs)),
        at_most("streams that are not whole", broken, 0),
        # somebody else's work makes tokens late too, of which the client knows nothing
        at_most("CPU of other processes, in cores", foreign, FOREIGN_LIMIT),
    ]
    rows: list[list[Any]] = [
        ["long prompts", "median gap ms", "late gaps", "named rightly", "share"],
        [len(longs), median_ns / 1e6, judged, right, share],
    ]
    if blamed:
        say(f"  {blamed} late gaps without a long prompt blame a request")
    detail = {
        "long_tokens": LONG_TOKENS,
        "median_gap_ms": median_ns / 1e6,
        "late_gaps": judged,
        "named_rightly": right,
        "wrong": wrong[:20],
        "late_gaps_of_a_late_client": starved,
        "late_gaps_without_a_long_prompt_that_blame_somebody": blamed,
        "elapsed_s": (now_ns() - longs[0].sent_ns) / 1e9 if longs else None,
    }
    return Report("culprits", figures, {"vllm": list(flags)}, detail, rows)


def main() -> int:
    parser = parser_of("culprits", __doc__ or "")
    parser.add_argument("--prompts", type=int, default=50, help="long prompts (default 50)")
    args = parser.parse_args()
    return finish(args, lambda: check(args))


if __name__ == "__main__":
    sys.exit(main())
