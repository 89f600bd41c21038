"""Gaps between tokens beside long prompts, of real processes: prompts computed by another engine,
by the same one, and no long prompts at all.

    unshare -rn python -m benchmarks.disaggregated.live

Two nodes with the default model, one thread and one core each, and a gateway. The prefill node is
in a network namespace of its own, behind a pair of virtual interfaces; `unshare` gives the rights
to make them, and nothing outside is touched. A few streams decode while prompts of 1,500 tokens
arrive one after the other. The gateway and the clients share the cores with both nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import machine
from telemetry.numbers.quantiles import quantile
from tests.support.servers.fleet import FleetFile, FleetGateway, Node
from tests.support.servers.server import eventually, free_port

RESULTS = Path(__file__).parents[1] / "results" / "disaggregated_live.json"
HERE, THERE, PREFIX = "10.199.36.1", "10.199.36.2", 30
STREAMS, STREAM_TOKENS, PROMPT_TOKENS = 3, 160, 1_500
ENGINE = ("--threads", "1", "--max-model-len", "2048", "--max-num-seqs", "16")
_SETUP = """
until ip link show kv1 >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up; ip addr add {there}/{prefix} dev kv1; ip link set kv1 up
exec taskset -c 1 "$@"
"""


class Elsewhere(Node):
    """The prefill node, in a namespace of its own."""

    launcher = (
        "unshare", "-n", "bash", "-c", _SETUP.format(there=THERE, prefix=PREFIX), "elsewhere",
    )  # fmt: skip

    def __init__(self, folder: Path, *args: str) -> None:
        super().__init__(folder, *args, "--host", THERE)
        own = self.address
        self.address = f"{THERE}:{self.wire_port}"
        self.args = tuple(self.address if word == own else word for word in self.args)
        self.url = f"http://{THERE}:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=120)


class Here(Node):
    launcher = ("taskset", "-c", "0")


def link_to(pid: int) -> None:
    """A pair of interfaces, one end of which is given to the namespace of a process."""
    for command in (
        "ip link set lo up",
        "ip link add kv0 type veth peer name kv1",
        f"ip link set kv1 netns {pid}",
        f"ip addr add {HERE}/{PREFIX} dev kv0",
        "ip link set kv0 up",
    ):
        subprocess.run(command.split(), check=True)


async def stream(client: httpx.AsyncClient, number: int, gaps_ms: list[float]) -> None:
    """Gaps between the tokens of one answer, from its second on."""
    body = {
        "prompt": f"{number}: tell a long story.", "max_tokens": STREAM_TOKENS, "stream": True,
        "ignore_eos": True, "seed": number, "temperature": 0.8,
    }  # fmt: skip
    last: float | None = None
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.monotonic()
            if last is not None:
                gaps_ms.append((now - last) * 1e3)
            last = now


async def prompts(client: httpx.AsyncClient, until: asyncio.Event, ttft_s: list[float]) -> None:
    """Long prompts, one after the other, none like another."""
    number = 0
    while not until.is_set():
        ids = [(31 * place + number * 977) % 40_000 + 100 for place in range(PROMPT_TOKENS)]
        body = {"prompt": ids, "max_tokens": 1, "seed": number, "cache_salt": str(number)}
        begun = time.monotonic()
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        ttft_s.append(time.monotonic() - begun)
        number += 1


async def one_arm(url: str, with_prompts: bool) -> dict[str, Any]:
    gaps_ms: list[float] = []
    ttft_s: list[float] = []
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        over = asyncio.Event()
        asking = asyncio.create_task(prompts(client, over, ttft_s)) if with_prompts else None
        if asking is not None:
            await asyncio.sleep(0.5)
        await asyncio.gather(*(stream(client, number, gaps_ms) for number in range(STREAMS)))
        over.set()
        if asking is not None:
            await asking
    return {
        "gaps": len(gaps_ms),
        "itl_ms": {
            "p50": round(quantile(gaps_ms, 0.5), 1),
            "p99": round(quantile(gaps_ms, 0.99), 1),
        },
        "prompts": len(ttft_s),
        "prompt_s": round(statistics.median(ttft_s), 2) if ttft_s else None,
    }


def kv_seconds(node: Node) -> dict[str, float]:
    """What sequences waited for, as the decode node counts it."""
    found: dict[str, float] = {}
    for line in node.client.get("/metrics").text.splitlines():
        if line.startswith("phasescope_kv_transfer_seconds_total{"):
            found[line.split('"')[1]] = float(line.split()[-1])
        elif line.startswith("phasescope_kv_transfer_hidden_seconds_total "):
            found["hidden"] = float(line.split()[-1])
    return found


@contextlib.contextmanager
def processes(folder: Path, split: str, nodes: list[Node]) -> Iterator[FleetGateway]:
    with FleetGateway(FleetFile(folder, nodes), "--prefill-split", split) as gateway:
        eventually(lambda: set(gateway.states().values()) == {"ready"}, "ready engines", 120)
        yield gateway


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "streams": STREAMS}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        kv = f"{THERE}:{free_port()}"
        there = Elsewhere(folder, *ENGINE, "--role", "prefill", "--kv-listen", kv)
        here = Here(folder, *ENGINE, "--role", "decode")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        stack.enter_context(started(there))
        stack.enter_context(here)
        for arm, split in (("alone", "never"), ("same_engine", "never"), ("apart", "always")):
            nodes = [here] if arm == "same_engine" else [there, here]
            with processes(folder, split, nodes) as gateway:
                found[arm] = asyncio.run(one_arm(gateway.url, arm != "alone"))
            print(json.dumps({arm: found[arm]}), flush=True)
        found["kv_seconds"] = parts = kv_seconds(here)
        assert parts["kv.prefill"] > 0, "no prompt was computed elsewhere"
    found["exposed_of_prefill"] = round(parts["kv.transfer"] / parts["kv.prefill"], 4)
    alone_ms = found["alone"]["itl_ms"]["p99"]
    found["p99_over_alone"] = {
        arm: round(found[arm]["itl_ms"]["p99"] / alone_ms, 2) for arm in ("same_engine", "apart")
    }
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["p99_over_alone"]))
    return 0


@contextlib.contextmanager
def started(node: Elsewhere) -> Iterator[Elsewhere]:
    """The node, with its interface: the link is made when its process has a namespace."""

    def give() -> None:
        eventually(lambda: getattr(node, "process", None) is not None, "the process")
        time.sleep(0.5)  # `unshare` is in its namespace
        link_to(node.process.pid)

    thread = threading.Thread(target=give)
    thread.start()
    with node:
        thread.join()
        yield node


if __name__ == "__main__":
    sys.exit(main())
