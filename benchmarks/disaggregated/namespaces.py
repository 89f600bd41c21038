"""Prefill and decode apart in two network namespaces: do long prompts hold up those who are being
answered, and how much of a transfer is not hidden?

    python -m benchmarks.disaggregated.namespaces          # needs root: ip, tc

Each engine serves the default model with one thread on a core of its own, in a network namespace of
its own; a veth pair between them passes 1 Gbit/s in each direction (tc, TBF). The gateway and the
clients are beside the prefill engine, before which they have the processor: as if each engine had a
machine. Streams run on the decode engine in blocks, six times in the order without, with, with,
without. With: prompts of 1,500 tokens come meanwhile, one after the other, and each is computed by
the other engine. Gaps between tokens are what the clients see.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx

from benchmarks.machine import machine
from lab.load.processes import ended, free_port
from telemetry.numbers.quantiles import quantile
from tests.support.servers.server import eventually, spawn

RESULTS = Path(__file__).parents[1] / "results" / "disaggregated_namespaces.json"
SPACES = {"prefill": "phasescope-p", "decode": "phasescope-d"}
ADDRESSES = {"prefill": "10.77.0.1", "decode": "10.77.0.2"}
CORES = {"prefill": "0", "decode": "1"}
RATE = "1gbit"
STREAMS, STREAM_TOKENS, LONG_TOKENS = 4, 260, 1_500
ORDER = 6 * ("without", "with", "with", "without")
ITL_TIMES, EXPOSED_SHARE = 1.3, 0.15
INSIDE = "PHASESCOPE_INSIDE_NAMESPACE"
ENGINE = (
    "--threads",
    "1",
    "--executor",
    "native",
    "--max-model-len",
    "2048",
    "--max-num-seqs",
    "8",
)


# --- the two machines --------------------------------------------------------------------------


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def two_namespaces() -> Iterator[None]:
    """Joined by a link of `RATE`; gone again afterwards."""
    try:
        for role, space in SPACES.items():
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            if role == "prefill":
                continue
            ends = {one: f"ps-{one[:1]}" for one in SPACES}
            ip("link", "add", ends["prefill"], "type", "veth", "peer", "name", ends["decode"])
            for one, end in ends.items():
                ip("link", "set", end, "netns", SPACES[one])
                ip("-n", SPACES[one], "addr", "add", f"{ADDRESSES[one]}/24", "dev", end)
                ip("-n", SPACES[one], "link", "set", end, "up")
                limit = ("tbf", "rate", RATE, "burst", "256kb", "latency", "50ms")
                tc = ["tc", "-n", SPACES[one], "qdisc", "add", "dev", end, "root", *limit]
                subprocess.run(tc, check=True)
        yield
    finally:
        for space in SPACES.values():
            subprocess.run(["ip", "netns", "del", space], check=False)


def in_namespace(role: str) -> tuple[str, ...]:
    """On its core, too. What computes prompts gives way to the gateway and the clients there."""
    nice = ("nice", "-n", "10") if role == "prefill" else ()
    return ("ip", "netns", "exec", SPACES[role], "taskset", "-c", CORES[role], *nice)


# --- the fleet ---------------------------------------------------------------------------------


class Fleet:
    """Two nodes, and a gateway in the namespace that this process is in."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        key = folder / "fleet.key"
        key.write_text("0123456789abcdef0123456789abcdef\n")
        lines = [f'key_file = "{key.name}"']
        ready = []
        for role, address in ADDRESSES.items():
            port, http = free_port(), free_port()
            flags = ["--listen", f"{address}:{port}", "--key-file", str(key), "--role", role]
            flags += ["--host", address, "--port", str(http), *ENGINE, "--no-root-cause"]
            self._start(role, in_namespace(role), "engine", *flags)
            ready.append(f"http://{address}:{http}")
            lines += [f"[engines.{role}]", f'address = "{address}:{port}"']
        engines = folder / "engines.toml"
        engines.write_text("\n".join([*lines, ""]))
        for url in ready:
            eventually(lambda one=url: is_ready(one), f"{url} to be ready", 180, 0.5)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        flags = ["--engines", str(engines), "--port", str(port), "--prefill-split", "always"]
        self._start("gateway", ("taskset", "-c", CORES["prefill"]), "serve", *flags)
        eventually(lambda: is_ready(self.url), "a gateway that is ready", 120, 0.5)
        self.client = httpx.Client(base_url=self.url, timeout=300)
        eventually(self._both_ready, "both engines", 60, 0.5)

    def _start(self, name: str, launcher: tuple[str, ...], *words: str) -> None:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        own = {"launcher": launcher, "stdout": log, "stderr": log, "start_new_session": True}
        self._stack.callback(ended, spawn(*words, **own))

    def _both_ready(self) -> bool:
        found = self.client.get("/debug/engines").json()["engines"]
        return {one["state"] for one in found} == {"ready"} and len(found) == len(ADDRESSES)

    def parts_ms(self, request_id: str) -> dict[str, float]:
        """Where the time of a request went."""

        def ended() -> dict[str, Any] | None:
            answer = self.client.get(f"/debug/requests/{request_id}")
            body: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
            return body if body.get("outcome", "running") != "running" else None

        ledger = eventually(ended, f"the end of {request_id}")["ledger"]
        assert ledger["residue_ns"] == 0, ledger["residue_ns"]
        found: dict[str, float] = {}
        for entry in ledger["entries"]:
            found[entry["part"]] = found.get(entry["part"], 0.0) + entry["ns"] / 1e6
        return found


def is_ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    return False


# --- what is asked -----------------------------------------------------------------------------


def prompt_of(seed: str, tokens: int) -> list[int]:
    return Random(seed).choices(range(100, 40_000), k=tokens)


def stream(url: str, seed: str, gaps_ms: list[float]) -> None:
    """One stream; the gaps between its tokens."""
    body = {
        "prompt": prompt_of(seed, 16), "max_tokens": STREAM_TOKENS, "ignore_eos": True,
        "temperature": 0, "stream": True,
    }  # fmt: skip
    last_ns = None
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            now_ns = time.monotonic_ns()
            if last_ns is not None:
                gaps_ms.append((now_ns - last_ns) / 1e6)
            last_ns = now_ns


def block(fleet: Fleet, name: str, number: int, long_ids: list[str]) -> dict[str, Any]:
    """Streams until they end; long prompts one after the other meanwhile, where they belong."""
    gaps_ms: list[list[float]] = [[] for _ in range(STREAMS)]
    threads = [
        threading.Thread(target=stream, args=(fleet.url, f"{number}/{index}", gaps))
        for index, gaps in enumerate(gaps_ms)
    ]
    for thread in threads:
        thread.start()
    sent = 0
    while any(thread.is_alive() for thread in threads):
        if name == "with":
            request_id = f"long-{number}-{sent}"
            body = {"prompt": prompt_of(request_id, LONG_TOKENS), "max_tokens": 2}
            headers = {"x-request-id": request_id}
            fleet.client.post("/v1/completions", json=body, headers=headers).raise_for_status()
            long_ids.append(request_id)
            sent += 1
        else:
            time.sleep(0.2)
    for thread in threads:
        thread.join()
    found = sorted(gap for gaps in gaps_ms for gap in gaps[8:])  # not those while all begin
    return {
        "block": name,
        "gaps": len(found),
        "long_prompts": sent,
        "itl_ms": {f"p{q}": round(quantile(found, q / 100) or 0.0, 1) for q in (50, 90, 99)},
    }


def measure() -> int:
    """The exit code; in the namespace of the prefill engine."""
    out = Path(os.environ[INSIDE])
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="phasescope-two-")))
        fleet = Fleet(folder, stack)
        long_ids: list[str] = []
        block(fleet, "without", 99, [])  # warm
        blocks = []
        for number, name in enumerate(ORDER):
            blocks.append(block(fleet, name, number, long_ids))
            print(json.dumps(blocks[-1]), flush=True)
        parts = [fleet.parts_ms(one) for one in long_ids]
    found = summary(blocks, parts)
    print(json.dumps(found["figures"]), flush=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    return int(not all(one["holds"] for one in found["figures"].values()))


def summary(blocks: list[dict[str, Any]], parts: list[dict[str, float]]) -> dict[str, Any]:
    """What is committed."""
    p99 = {
        name: statistics.median(one["itl_ms"]["p99"] for one in blocks if one["block"] == name)
        for name in ("with", "without")
    }
    names = sorted({name for one in parts for name in one})
    exposed = statistics.median(one.get("kv.transfer", 0.0) / one["kv.prefill"] for one in parts)
    times = p99["with"] / p99["without"]
    return {
        "machine": machine(),
        "link": RATE,
        "streams": STREAMS,
        "long_prompt_tokens": LONG_TOKENS,
        "blocks": blocks,
        "long_prompts": len(parts),
        "median_parts_ms": {
            name: round(statistics.median(one.get(name, 0.0) for one in parts), 2) for name in names
        },
        "figures": {
            "ITL p99 beside long prompts, times that without": {
                "found": round(times, 3), "at_most": ITL_TIMES, "holds": times <= ITL_TIMES,
            },
            "exposed time of the transfer, of prefill": {
                "found": round(exposed, 4), "at_most": EXPOSED_SHARE,
                "holds": exposed <= EXPOSED_SHARE,
            },
        },
    }  # fmt: skip


def main() -> int:
    """The exit code: 1 if a figure does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    missing = [tool for tool in ("ip", "tc", "taskset", "nice") if shutil.which(tool) is None]
    if missing or os.geteuid():
        print(f"needs root, and {', '.join(missing) or 'nothing else'}", file=sys.stderr)
        return 2
    with two_namespaces():
        command = ["ip", "netns", "exec", SPACES["prefill"], "taskset", "-c", CORES["prefill"]]
        command += [sys.executable, "-m", "benchmarks.disaggregated.namespaces"]
        environment = {**os.environ, INSIDE: str(chosen.out.resolve())}
        return subprocess.run(command, check=False, env=environment).returncode


if __name__ == "__main__":
    sys.exit(measure() if INSIDE in os.environ else main())
