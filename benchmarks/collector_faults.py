"""What a bad span receiver costs the service, against tracing off, and whether books balance.

One server and one receiver. Blocks with tracing at 100 % and a receiver that is healthy, dead
(refused), a black hole, unavailable (503 with Retry-After), partial or slow alternate with
blocks with tracing off, as `benchmarks.paired` says; the control is off against off. Then, for
each fault, a small server of its own is told to stop while the receiver misbehaves.

    .venv/bin/python -m benchmarks.collector_faults [--pairs 10] [--protocol http]
        [-- FLAGS OF SERVE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contract.client import ask, call, completion, now_ns
from benchmarks.contract.common import Figure, Server, at_most, equal, say
from benchmarks.fault_receiver import FAULTS, HEALTHY, FaultReceiver
from benchmarks.machine import machine
from benchmarks.paired import (
    Block,
    Load,
    Pair,
    cost_figure,
    costs,
    require_put,
    run_block,
    run_quad,
    until_delivered,
)

RESULTS = Path(__file__).parent / "results" / "collector_faults.json"
OFF, CONTROL, ON = "off", "off again", "on"
SHUTDOWN_LIMIT_S, LIMIT_PERCENT = 3.0, 1.0
SERVE = ("--no-prefix-cache", "--queue-limit", "512")


@dataclass
class Run:
    """A server, its receiver, and what has been measured so far."""

    server: Server
    receiver: FaultReceiver
    load: Load
    blocks: list[dict[str, Any]] = field(default_factory=list)
    pairs: dict[str, list[Pair]] = field(default_factory=dict)
    books: dict[str, Any] = field(default_factory=dict)
    faults: dict[str, dict[str, int]] = field(default_factory=dict)

    async def block(self, state: str, fault: str) -> Block:
        """Load the server in one state, then let it deliver what it has; what happened to the
        spans of this block is booked under the fault."""
        on = state == ON
        before = self.books
        taken = self.receiver.set(fault if on else HEALTHY)["spans_taken"]
        await require_put(self.server.port, "/debug/tracing", {"mode": "full" if on else "off"})
        block = await run_block(self.server, self.load, state, f"{len(self.blocks)}")
        await self.server.until_empty()
        await asyncio.sleep(0.2)  # the last request is folded
        await require_put(self.server.port, "/debug/tracing", {"mode": "off"})
        if on:
            taken_during = self.receiver.set(HEALTHY)["spans_taken"] - taken
            self.books = await until_delivered(self.server)
            taken_after = self.receiver.set(HEALTHY)["spans_taken"] - taken
            self._book(fault, before, taken_during, taken_after)
        self.blocks.append(block.summary() | {"receiver": fault if on else None})
        return block

    def _book(self, fault: str, before: dict[str, Any], during: int, after: int) -> None:
        mine = self.faults.setdefault(fault, {})
        new = {
            "traces_kept": _change(before, self.books, "traces_kept"),
            "spans_exported": _change(before, self.books, "spans_exported"),
            "receiver_took": after,
            "receiver_took_during_fault": during,
            "still_queued": int(self.books["traces_queued"]),
        }
        for reason, count in self.books["spans_dropped"].items():
            new[f"dropped_{reason}"] = count - before.get("spans_dropped", {}).get(reason, 0)
        for name, count in new.items():
            mine[name] = mine.get(name, 0) + count


def _change(before: dict[str, Any], after: dict[str, Any], name: str) -> int:
    old, new = before.get(name, 0), after[name]
    if isinstance(new, dict):
        return sum(new.values()) - sum(old.values() if old else ())
    return int(new) - int(old)


async def shutdown_s(fault: str, protocol: str) -> float:
    """From SIGTERM to the end of both processes of a server that has spans for a receiver that
    misbehaves."""
    with FaultReceiver(protocol) as receiver:
        flags = ("--model", "dummy:tiny", "--drain-timeout", "0", *receiver.flags)
        async with Server(*flags) as server:
            receiver.set(fault)
            small = [[20 + i, 21 + i, 22 + i] for i in range(16)]
            await asyncio.gather(*(ask(server.port, completion(ids, 4)) for ids in small))
            await asyncio.sleep(0.2)
            begin_ns = now_ns()
            server.process.send_signal(signal.SIGTERM)
            await server.ended(30)
            return (now_ns() - begin_ns) / 1e9


async def measure(run: Run, kinds: list[str], pairs: int) -> None:
    for state in (OFF, ON):
        await run.block(state, HEALTHY)  # warm-up, not counted
    run.blocks.clear()
    run.faults.clear()
    for number in range((pairs + 1) // 2):
        for kind in ("control", *kinds):
            other = CONTROL if kind == "control" else ON
            say(f"quad {number + 1} of {(pairs + 1) // 2}, {kind}:")
            found = await run_quad(OFF, other, number, lambda state, k=kind: run.block(state, k))
            run.pairs.setdefault(kind, []).extend(found)


def figures(run: Run, stops: dict[str, float]) -> list[Figure]:
    """Costs within the limit where two equal states are, books exact, shutdown bounded."""
    control = costs(run.pairs["control"])
    found: list[Figure] = []
    for kind, pairs in run.pairs.items():
        if kind == "control":
            continue
        mine, books = costs(pairs), run.faults[kind]
        for name in ("throughput", "itl_p50", "itl_p99"):
            label = f"{kind}: {name} cost, upper end (%)"
            found.append(cost_figure(label, mine[name], control[name], LIMIT_PERCENT))
        excess = books["spans_exported"] - books["receiver_took"]
        found.append(equal(f"{kind}: spans exported, less those taken", excess, 0))
        lost = sum(count for name, count in books.items() if name.startswith("dropped_"))
        per_trace = _tree(run)
        sum_ = books["spans_exported"] + lost - books["traces_kept"] * per_trace
        found.append(equal(f"{kind}: spans off the books", sum_, 0))
    for fault, seconds in stops.items():
        found.append(at_most(f"{fault}: shutdown (s)", seconds, SHUTDOWN_LIMIT_S))
    return found


def _tree(run: Run) -> float:
    """Spans of one trace: all requests of the load are alike."""
    healthy = run.faults[HEALTHY]
    return healthy["receiver_took"] / max(1, healthy["traces_kept"])


def markdown(run: Run, stops: dict[str, float]) -> str:
    lines = [
        "Cost against tracing off in percent, with 95 % intervals (positive is worse), and what "
        "became of the spans:",
        "",
        "| receiver | throughput | ITL p50 | ITL p99 | exported | dropped | shutdown s |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, pairs in run.pairs.items():
        cost, books = costs(pairs), run.faults.get(kind, {})
        dropped = [
            f"{count} {name.removeprefix('dropped_')}"
            for name, count in books.items()
            if name.startswith("dropped_") and count
        ]
        name = "none: off against off" if kind == "control" else kind
        stop = stops["off" if kind == "control" else kind]
        cells = [str(cost[key]) for key in ("throughput", "itl_p50", "itl_p99")]
        cells += [str(books.get("spans_exported", "-")), ", ".join(dropped) or "0", f"{stop:.2f}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


async def faults(args: argparse.Namespace) -> int:
    kinds = [HEALTHY, *args.faults.split(",")]
    load = Load(args.streams, args.prompt, args.output)
    with FaultReceiver(args.protocol) as receiver, patient_classes() as slo:
        flags = (*SERVE, *receiver.flags, "--tracing", "off", *slo, *args.serve)
        async with Server(*flags) as server:
            run = Run(server, receiver, load)
            run.books = (await call(server.port, "GET", "/debug/tracing"))[1]
            about: dict[str, Any] = {
                "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
                "machine": machine(),
                "server": list(SERVE),
                "load": asdict(load),
                "protocol": args.protocol,
            }
            await measure(run, kinds, args.pairs)
    stops = {"off": await stop_without_tracing()}
    for kind in kinds:
        say(f"shutdown, {kind}")
        stops[kind] = await shutdown_s(kind, args.protocol)
    made = figures(run, stops)
    found = {k: {n: c.as_dict() for n, c in costs(p).items()} for k, p in run.pairs.items()}
    about |= {"costs": found, "books": run.faults, "shutdown_s": stops}
    about |= {"figures": [asdict(figure) for figure in made], "blocks": run.blocks}
    args.out.write_text(json.dumps(about, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(markdown(run, stops))
    say(markdown(run, stops))
    for figure in made:
        say(figure.line())
    return 0 if all(figure.holds for figure in made) else 1


@contextlib.contextmanager
def patient_classes() -> Iterator[tuple[str, str]]:
    """Flags for SLO classes that no token is too late for: with stalls, traces would not be all
    alike, and their spans could not be counted from outside."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        classes = {"chat": {"ttft_ms": 3_600_000, "itl_ms": 3_600_000}}
        json.dump({"default": "chat", "classes": classes}, file)
        file.flush()
        yield "--slo-file", file.name


async def stop_without_tracing() -> float:
    """What a server takes to end when it has nothing to export."""
    async with Server("--model", "dummy:tiny", "--drain-timeout", "0") as server:
        begin_ns = now_ns()
        server.process.send_signal(signal.SIGTERM)
        await server.ended(30)
        return (now_ns() - begin_ns) / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10, help="pairs of each kind")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--protocol", choices=["grpc", "http"], default="http")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument(
        "--prompt",
        type=int,
        default=48,
        help="tokens in; all fit one step",
    )
    parser.add_argument("--output", type=int, default=64, help="tokens out, of each stream")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("serve", nargs="*", help="further flags of serve, after --")
    return asyncio.run(faults(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
