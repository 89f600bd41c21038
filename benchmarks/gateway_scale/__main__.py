"""The gateway at a steady rate: 256 streams at 50 tokens/s, an executor that computes nothing.

A real server over real sockets: `phasescope serve` on the tiny dummy model, its engine's executor
replaced from outside (`hook/`) by one that answers every row once a period. Everything of
telemetry is on: spans go to a receiver in a process of its own, /metrics and /debug/snapshot are
read as Prometheus and `phasescope top` read them. Stated are

- CPU time a token of gateway and engine, by thread, from /proc/<pid>/task/*/schedstat, and of the
  pump by fold, from the server's own books (wall time);
- the loop's lag: how late a timer of 10 ms fires on the gateway's event loop;
- memory of both over time, and its growth a minute after the warm-up, by least squares;
- tokens/s that the clients got. They share the machine with the server.

`--tree PATH` measures another checkout with the same hook and the same clients.

What is bounded by bytes or time (the record, timelines, windows) grows until it is full, so the
first minutes are not counted; smaller bounds are full sooner.

    .venv/bin/python -m benchmarks.gateway_scale -- --journal-memory 8MiB --timeline-memory 8MiB
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contract.common import say
from benchmarks.fault_receiver import FaultReceiver
from benchmarks.gateway_scale.figures import Sample, Watched, figures, result_of
from benchmarks.gateway_scale.processes import engine_pid, fold_seconds, rss_mib, thread_cpu_ns
from benchmarks.machine import machine
from benchmarks.samples import NotMeasured
from benchmarks.starter import Started, serving
from lab.load.processes import ended

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results" / "gateway_scale.json"
BLOCK_TOKENS_LEAST = 8
SAMPLE_S = 5.0
SNAPSHOT_S = 0.5
CLIENT_ENDS_WITHIN_S = 30.0


def flags_of(args: argparse.Namespace) -> list[str]:
    return [
        "--model", "dummy:tiny", "--executor", "torch", "--threads", "1", "--no-prefix-cache",
        "--max-model-len", str(args.output + 64), "--max-num-seqs", str(args.streams),
        "--max-batched-tokens", str(2 * args.streams + 512), "--kv-memory", "64MiB",
        "--queue-limit", "1024", "--tracing", args.tracing, *args.flags,
    ]  # fmt: skip


@contextlib.contextmanager
def stub_server(args: argparse.Namespace, folder: Path) -> Iterator[Started]:
    """A server whose processes have the hook."""
    tree = args.tree.resolve()
    blocks = args.streams * (args.output // BLOCK_TOKENS_LEAST + 16)
    environment = {
        "PYTHONPATH": f"{HERE / 'hook'}{os.pathsep}{tree}",
        "GATEWAY_SCALE_FOLDER": str(folder),
        "GATEWAY_SCALE_PERIOD_S": str(1 / args.rate),
        "GATEWAY_SCALE_BLOCKS": str(blocks),
    }
    flags = flags_of(args)
    with contextlib.ExitStack() as stack:
        if not args.no_receiver:
            flags += stack.enter_context(FaultReceiver("http")).flags
        yield stack.enter_context(serving(*flags, checkout=tree, environment=environment))


def read_pages(port: int, stop: threading.Event) -> None:
    """What looks at a server in service: /debug/snapshot every half second, /metrics every 5 s."""
    turn = 0
    while not stop.wait(SNAPSHOT_S):
        turn += 1
        pages = ["debug/snapshot"] + (["metrics"] if turn % 10 == 0 else [])
        for page in pages:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10) as answer,
            ):
                answer.read()


def watch(args: argparse.Namespace, server: Started) -> Watched:
    """Load the server and sample it until the clients are through."""
    watched = Watched(args.streams, args.rate, args.warm_up)
    engine = engine_pid(server.process.pid)
    client = subprocess.Popen(
        [
            sys.executable, "-m", "benchmarks.gateway_scale.client", str(server.port),
            "--streams", str(args.streams), "--output", str(args.output),
            "--seconds", str(args.warm_up + args.seconds),
        ],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        sample(client, server, engine, watched)
        status = client.wait(CLIENT_ENDS_WITHIN_S)  # it says nothing more
        if status:
            watched.errors.append(f"the clients ended with {status}")
    finally:
        ended(client)
    return watched


def sample(client: subprocess.Popen[str], server: Started, engine: int, watched: Watched) -> None:
    """Until the clients say nothing more."""
    assert client.stdout is not None
    next_s = 0.0
    for text in client.stdout:
        line = json.loads(text)
        if isinstance(line, str):
            watched.errors.append(line)
            continue
        at_s, tokens, requests, _ = line
        if at_s >= next_s:
            next_s = at_s + SAMPLE_S - 0.5
            watched.samples.append(
                Sample(
                    at_s, tokens, requests, thread_cpu_ns(server.process.pid),
                    thread_cpu_ns(engine), fold_seconds(server.port),
                    rss_mib(server.process.pid), rss_mib(engine),
                )
            )  # fmt: skip
            say(f"  {at_s:.0f} s: {tokens / at_s:.0f} tokens/s, {requests} requests")


def run(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with stub_server(args, folder) as server:
            stop = threading.Event()
            reader = threading.Thread(target=read_pages, args=(server.port, stop))
            reader.start()
            try:
                watched = watch(args, server)
            finally:
                stop.set()
                reader.join()
        found = result_of(watched, folder / "lag")
    held = figures(found)
    for figure in held:
        say(figure.line())
    return {
        "machine": machine(),
        "measured_at": time.strftime("%Y-%m-%d", time.gmtime()),
        "tracing": args.tracing,
        "receiver": not args.no_receiver,
        "figures": {f.name: {"value": f.value, "limit": f.limit, "holds": f.holds} for f in held},
        **found,
    }


def main() -> int:
    """The exit code: 1 when a figure does not hold, or was not measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rate", type=float, default=50.0, help="tokens/s of a stream")
    parser.add_argument("--seconds", type=float, default=600.0, help="after the warm-up")
    parser.add_argument(
        "--warm-up", type=float, default=330.0, metavar="SECONDS",
        help="load that is not counted, until what is bounded is full",
    )  # fmt: skip
    parser.add_argument("--output", type=int, default=512, help="tokens of an answer")
    parser.add_argument("--tracing", choices=["off", "sampled", "full"], default="full")
    parser.add_argument("--no-receiver", action="store_true", help="export no spans")
    parser.add_argument("--tree", type=Path, default=REPOSITORY, help="the checkout to measure")
    parser.add_argument("--label", help="the name of this run in the file, beside others")
    parser.add_argument("-o", "--out", type=Path, default=RESULTS)
    parser.add_argument("flags", nargs="*", help="more flags of serve, after --")
    args = parser.parse_args()
    args.out = args.out.resolve()
    try:
        found = run(args)
    except NotMeasured as error:
        say(f"not measured: {error}")
        return 1
    holds = all(one["holds"] for one in found["figures"].values())
    if args.label:
        before = json.loads(args.out.read_text()) if args.out.exists() else {}
        found = before | {args.label: found}
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
