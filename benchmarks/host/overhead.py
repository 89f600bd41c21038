"""What the host spends besides computing: engine time per step, gateway time per token.

The compute threads share the cores with both processes, so every microsecond of these is
taken from the model. Two measurements, at 1, 8 and 16 streams:

- `engine us/step`: the loop, its facts, encoding and the socket, in one process with an
  executor that answers at once; CPU time of the thread that steps.
- `gateway us/token`: CPU time of the gateway process of a real server on `dummy:tiny`, from
  the scheduler's own books (/proc/<pid>/task/*/schedstat, ns), over the tokens streamed. It
  includes HTTP, the fold thread and everything else that the process does.
- `server us/step`: the same of the engine process, tiny model included.

CPU times, not wall times, so a busy machine disturbs little; and with `--vs PATH` another
checkout is measured in turns with this one, which gives ratios.

    .venv/bin/python -m benchmarks.host.overhead [--rounds 5] [--vs ../other]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.starter import serving

HERE = Path(__file__).resolve().parents[2]
STREAMS = (1, 8, 16)
ENGINE_STEPS = 3000
TOKENS_A_STREAM = {1: 1800, 8: 600, 16: 400}
TINY = ("--model", "dummy:tiny", "--threads", "1")
MEASURES = ("engine us/step", "gateway us/token", "server us/step")


@dataclass
class Result:
    """One value of one checkout in one round."""

    checkout: str
    round: int
    streams: int
    measure: str
    value_us: float


# --- the engine's host work, run in a process of its own on the checkout's code ------------


def engine_part(streams: int) -> float:
    """CPU us per step of loop, host and link, without any computing."""
    from service.engine.admission import Limits
    from service.engine.executor import CountedAdapters
    from service.engine.inbox import Inbox, Submit
    from service.engine.loop import EngineLoop
    from service.engine.plan import Plan, Sample, SamplingParams, StepOutcome
    from service.engine.scheduler import Scheduler
    from service.process.engine_main import EngineServer
    from service.process.gateway_connection import GatewayConnection, GatewayGone
    from service.process.profiling import Profiles
    from telemetry.facts.clock import MonotonicClock
    from telemetry.facts.recorder import Lane

    clock = MonotonicClock()
    spent: list[int] = []

    class Instant(CountedAdapters):
        """Answers token 7 for every row, and ends the run after enough steps."""

        block_tokens, blocks_total = 16, 8192

        def __init__(self) -> None:
            super().__init__()
            self.outcomes, self.steps = list[StepOutcome](), 0

        def launch(self, plan: Plan) -> None:
            samples, now_ns = tuple((Sample(7),) for _ in plan.sampled_rows), clock.now_ns()
            self.outcomes.append(StepOutcome(samples, now_ns, now_ns))

        def collect(self) -> StepOutcome:
            self.steps += 1
            if self.steps in (300, 300 + ENGINE_STEPS):
                spent.append(time.thread_time_ns())
            if len(spent) == 2:
                raise GatewayGone
            return self.outcomes.pop(0)

    executor, inbox, lane = Instant(), Inbox(), Lane()
    limits = Limits(
        block_tokens=16, blocks_total=8192, max_model_tokens=8192, max_seqs=64, budget_tokens=512,
        chunked_prefill=True, queue_limit_requests=512, queue_limit_tokens=1 << 20,
    )  # fmt: skip
    loop = EngineLoop(Scheduler(limits), executor, inbox, lane, clock)
    ours, theirs = socket.socketpair()
    drain = subprocess.Popen(["cat"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
    sampling, max_tokens = SamplingParams(temperature=0.0), ENGINE_STEPS + 600
    for seq_id in range(streams):
        prompt = list(range(16))
        inbox.put(Submit(seq_id=seq_id, prompt=prompt, max_tokens=max_tokens, sampling=sampling))
    gateway, none = GatewayConnection(ours), cast(Any, None)  # no grammars, no profiles
    profiles = Profiles(loop, none, lane, clock, gateway.send)
    host = EngineServer(gateway, inbox, loop, lane, clock, none, profiles)
    with suppress(GatewayGone):
        host.serve()
    ours.close()
    theirs.close()
    drain.kill()
    drain.wait()
    return (spent[1] - spent[0]) / ENGINE_STEPS / 1000


# --- a real server ---------------------------------------------------------------------------


def _snapshot(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/debug/snapshot", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def cpu_ns(pid: int) -> int:
    """What all threads of a process have run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


async def _one_stream(port: int, tokens: int, seed: int) -> None:
    """One streamed completion, read and thrown away."""
    body = json.dumps(
        {
            "prompt": [(seed * 31 + place) % 250 for place in range(16)],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    writer.write(head + b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
    last = b""
    while part := await reader.read(1 << 16):
        last = (last + part)[-64:]
    writer.close()
    if b"[DONE]" not in last:
        raise SystemExit(f"a stream broke off: {last!r}")


async def _streams(port: int, streams: int, tokens: int) -> None:
    await asyncio.gather(*(_one_stream(port, tokens, seed) for seed in range(streams)))


def serve_part(checkout: Path, number: int, name: str) -> list[Result]:
    """Gateway time per token and engine time per step of one server, at each load."""
    results: list[Result] = []
    with serving(*TINY, checkout=checkout) as started:
        gateway, port = started.process, started.port
        engine_pid = int(_snapshot(port)["engine_pid"])
        asyncio.run(_streams(port, 4, 50))
        for streams in STREAMS:
            before, steps = (cpu_ns(gateway.pid), cpu_ns(engine_pid)), _snapshot(port)
            asyncio.run(_streams(port, streams, TOKENS_A_STREAM[streams]))
            after, done = (cpu_ns(gateway.pid), cpu_ns(engine_pid)), _snapshot(port)
            tokens = done["output_tokens_total"] - steps["output_tokens_total"]
            count = done["steps_total"] - steps["steps_total"]
            gateway_us = (after[0] - before[0]) / tokens / 1000
            engine_us = (after[1] - before[1]) / count / 1000
            results.append(Result(name, number, streams, "gateway us/token", gateway_us))
            results.append(Result(name, number, streams, "server us/step", engine_us))
    return results


# --- rounds ----------------------------------------------------------------------------------


def one_round(checkout: Path, number: int, name: str) -> list[Result]:
    results: list[Result] = []
    for streams in STREAMS:
        answer = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--engine-part", str(streams)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            check=True,
            capture_output=True,
        )
        results.append(Result(name, number, streams, "engine us/step", float(answer.stdout)))
    return results + serve_part(checkout, number, name)


def _values(results: list[Result], name: str, measure: str, streams: int) -> list[float]:
    return [
        result.value_us
        for result in results
        if (result.checkout, result.measure, result.streams) == (name, measure, streams)
    ]


def table(results: list[Result], names: list[str]) -> str:
    """Medians with their range; ratios are of the medians, the other checkout over this."""
    head = ["measure", "streams", *names, *(["ratio"] if len(names) > 1 else [])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for measure in MEASURES:
        for streams in STREAMS:
            cells: list[str] = []
            medians: list[float] = []
            for name in names:
                values = _values(results, name, measure, streams)
                medians.append(statistics.median(values))
                cells.append(f"{medians[-1]:.0f} ({min(values):.0f} to {max(values):.0f})")
            if len(names) > 1:
                cells.append(f"{medians[1] / medians[0]:.2f}")
            lines.append("| " + " | ".join([measure, str(streams), *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vs", type=Path, help="another checkout, measured in turns with this one")
    parser.add_argument("--out", type=Path, default=HERE / "benchmarks/results/host_overhead.json")
    parser.add_argument("--engine-part", type=int, metavar="STREAMS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine_part is not None:
        print(engine_part(args.engine_part))
        return
    checkouts = {"this": HERE}
    if args.vs is not None:
        checkouts["other"] = args.vs.resolve()
    results: list[Result] = []
    for number in range(1, args.rounds + 1):
        for name, checkout in checkouts.items():
            results += one_round(checkout, number, name)
            print(f"round {number} of {args.rounds}: {name} done", flush=True)
    about = {"cores": os.cpu_count(), "rounds": args.rounds, "python": sys.version.split()[0]}
    args.out.parent.mkdir(exist_ok=True)
    rows = [asdict(result) for result in results]
    args.out.write_text(json.dumps({**about, "results": rows}, indent=1) + "\n")
    print(table(results, list(checkouts)))


if __name__ == "__main__":
    main()
