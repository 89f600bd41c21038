"""A real server on a GPU, on dummy weights, over HTTP: every request's ledger adds up and every
decision replays under mixed traffic with preemptions (the contract's check, short), NVML's
quantities arrive, and a process that takes the memory's bandwidth is named while it does.

    python -m benchmarks.gpu.servers.served [--model dummy:llama-1b] [--device cuda]
        [--journal FILE] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import select
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contract import ledger
from benchmarks.contract.client import (
    COMPLETIONS,
    HOST,
    Exchange,
    completion,
    now_ns,
    prompt_ids,
)
from benchmarks.contract.common import Options, Server, call, percentile
from benchmarks.gpu.counters import about
from diagnosis.symptoms import Symptom

RESULTS = Path(__file__).resolve().parents[2] / "results" / "gpu_served.json"
LEDGER_MODEL = "dummy:smollm2-135m"  # the check's prompts are in its vocabulary
STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 8, 256, 400
WARM_UP_S, REFERENCE_S, NEIGHBOUR_S, RECOVERY_S = 5.0, 25.0, 15.0, 10.0
POLL_S = 0.25
NEIGHBOUR_READY_S = 60.0
WANTED = Symptom.MEMORY_BANDWIDTH


class Streams:
    """Closed-loop clients; `gaps` holds when each gap between tokens ended, and its length."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.gaps: list[tuple[int, int]] = []
        self.failed = 0

    async def run(self, index: int) -> None:
        turn = 0
        while True:
            turn += 1
            body = completion(prompt_ids(f"{index}-{turn}", PROMPT_TOKENS), OUTPUT_TOKENS)
            body.pop("logprobs")
            try:
                await self._one(body)
            except (OSError, EOFError, ValueError):
                self.failed += 1
                await asyncio.sleep(0.1)

    async def _one(self, body: dict[str, Any]) -> None:
        exchange = await Exchange.begin(self._port, "POST", COMPLETIONS, body)
        try:
            if await exchange.head() != 200:
                raise ValueError(exchange.status)
            last_ns = 0
            async for _ in exchange.events():
                at_ns = now_ns()
                if last_ns:
                    self.gaps.append((at_ns, at_ns - last_ns))
                last_ns = at_ns
        finally:
            exchange.leave()

    def between(self, begin_ns: int, end_ns: int) -> dict[str, Any]:
        gaps = [gap / 1e6 for at, gap in self.gaps if begin_ns <= at < end_ns]
        return {
            "tokens_per_s": len(gaps) / (end_ns - begin_ns) * 1e9,
            "itl_p50_ms": percentile(gaps, 0.5),
            "itl_p99_ms": percentile(gaps, 0.99),
        }


class Answers:
    """What `/debug/diagnosis` says, again and again: when, the verdict and its findings."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.said: list[dict[str, Any]] = []

    async def run(self) -> None:
        while True:
            status, found = await call(self._port, "GET", "/debug/diagnosis")
            if status == 200:
                findings = found.get("findings") or []
                named = [(one["symptom"], round(one["confidence"], 2)) for one in findings[:3]]
                claim = findings[0].get("claim") if findings else None
                self.said.append({"at_ns": now_ns(), "named": named, "claim": claim})
            await asyncio.sleep(POLL_S)

    def first_s(self, begin_ns: int, end_ns: int) -> float | None:
        """How long after the begin it was named first of all findings."""
        for one in self.said:
            if begin_ns <= one["at_ns"] < end_ns and _top(one) == WANTED:
                return float((one["at_ns"] - begin_ns) / 1e9)
        return None

    def share(self, symptom: str | None, begin_ns: int, end_ns: int) -> float | None:
        """The share of the answers in which a symptom is named first; None stands for no
        finding."""
        tops = [_top(one) for one in self.said if begin_ns <= one["at_ns"] < end_ns]
        return sum(top == symptom for top in tops) / len(tops) if tops else None

    def changes(self, begin_ns: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for one in self.said:
            if not found or found[-1]["named"] != one["named"]:
                at_s = round((one["at_ns"] - begin_ns) / 1e9, 2)
                found.append({"at_s": at_s, "named": one["named"], "claim": one["claim"]})
        return found


def _top(one: dict[str, Any]) -> str | None:
    return one["named"][0][0] if one["named"] else None


@contextlib.contextmanager
def neighbour(device: str) -> Iterator[None]:
    """Runs from the moment at which it copies."""
    command = [sys.executable, "-m", "benchmarks.gpu.servers.neighbour", "--device", device]
    command += [] if device == "cuda" else ["--mib", "256"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], NEIGHBOUR_READY_S)
        if not ready or process.stdout.readline().strip() != b"copying":
            raise RuntimeError("the neighbour did not start: is there memory for it?")
        yield
    finally:
        process.kill()
        process.wait()


def save_journal(port: int, path: Path) -> None:
    with urllib.request.urlopen(f"http://{HOST}:{port}/debug/journal", timeout=30) as answer:
        path.write_bytes(answer.read())


async def watched(model: str, device: str, journal: Path | None) -> dict[str, Any]:
    memory = "2GiB" if device == "cuda" else "64MiB"
    flags = ["--model", model, "--device", device, "--kv-memory", memory]
    async with Server(*flags, "--max-model-len", "1024") as server:
        streams, answers = Streams(server.port), Answers(server.port)
        tasks = [asyncio.create_task(streams.run(index)) for index in range(STREAMS)]
        tasks.append(asyncio.create_task(answers.run()))
        await asyncio.sleep(WARM_UP_S)
        reference_ns = now_ns()
        await asyncio.sleep(REFERENCE_S)
        steady = await server.snapshot()
        before_ns = now_ns()
        with contextlib.ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, neighbour(device))
            begin_ns = now_ns()
            await asyncio.sleep(NEIGHBOUR_S)
            beside = await server.snapshot()
        end_ns = now_ns()
        await asyncio.sleep(RECOVERY_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        last_ns = now_ns()
        host = (await call(server.port, "GET", "/debug/host"))[1]
        if journal is not None:
            await asyncio.to_thread(save_journal, server.port, journal)
        flagged = list(server.flags)
    return {
        "flags": flagged,
        "model": model,
        "streams": STREAMS,
        "failed_requests": streams.failed,
        "steady": streams.between(reference_ns, before_ns),
        "beside": streams.between(begin_ns, end_ns),
        "after": streams.between(end_ns, last_ns),
        "named_after_s": answers.first_s(begin_ns, end_ns),
        "named_share": answers.share(WANTED, begin_ns, end_ns),
        "silent_share_before": answers.share(None, reference_ns, before_ns),
        "changes": answers.changes(begin_ns),
        "pauses": host["totals"],
        "snapshot_steady": _of_device(steady),
        "snapshot_beside": _of_device(beside),
    }


def _of_device(snapshot: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in snapshot.items() if "gpu" in name or "device" in name}


async def run(args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        options = Options(quick=True, minutes=0.0, out=Path(folder))
        more = ["--model", LEDGER_MODEL, "--device", args.device]
        report = await ledger.run(options, more)
        report.finish(options)
        found["ledger"] = [
            {"name": one.name, "value": one.value, "limit": one.limit, "holds": one.holds}
            for one in report.figures
        ]
        found["ledger_flags"] = report.servers
    found["neighbour"] = await watched(args.model, args.device, args.journal)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="dummy:llama-1b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--journal", type=Path, help="save the server's journal there")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    found = asyncio.run(run(args))
    args.out.write_text(json.dumps({**about(args.device), **found}, indent=1) + "\n")
    one = found["neighbour"]
    print(json.dumps(one, indent=1))
    right = all(figure["holds"] for figure in found["ledger"])
    return 0 if right and one["named_after_s"] is not None else 1


if __name__ == "__main__":
    sys.exit(main())
