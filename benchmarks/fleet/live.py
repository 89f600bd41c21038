"""Goodput of each routing policy with two real engines on this machine.

    python -m benchmarks.fleet.live run --minutes 7      # again until all is there
    python -m benchmarks.fleet.live --out FILE run --seeds 501 --rates shared_prefix=20
    python -m benchmarks.fleet.live table

Two `phasescope engine` with one thread each, whose caches hold a part of the tenants' system
prompts, and for each run a `phasescope serve --engines` with the policy. All policies of one trace
and seed have the same sessions; token ids differ, so no run finds what another one left in the
caches. Runs are kept in `benchmarks/results/fleet_policies.json`. Rates were chosen on seed 501.

Engines, gateway and client share the machine's cores, so the speed is not that of a fleet; what is
compared is the order of the policies. The model is one of random weights, so small that a prompt of
1,500 tokens takes a tenth of a second. The promise of class `chat` is a first token within
`TTFT_MS` and gaps within `ITL_MS`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

import httpx
import msgspec

from benchmarks.contract.lateness import LATE_SHARE, late_share
from benchmarks.machine import machine
from benchmarks.samples import known_quantile
from telemetry.facts.fleet.routing_records import RoutingPolicy
from telemetry.requests.slo_policy import SloClass
from telemetry.stats.slo import judge_latencies
from telemetry.stats.slo_report import Verdict
from tests.support.servers.fleet import FleetFile, FleetGateway, Node

RESULT = Path("benchmarks/results/fleet_policies.json")
MODEL = "dummy:small"
TTFT_MS, ITL_MS = 400, 250
TARGET = SloClass(name="chat", ttft_ns=TTFT_MS * 1_000_000, itl_ns=ITL_MS * 1_000_000)
RATES = {"shared_prefix": 6.0, "unshared": 5.0}
"""Requests a second, of both engines together."""
SPAN_S, SKIPPED_S = 40.0, 8.0
SEEDS = (511, 512)
KV_MEMORY = "27MiB"
"""9,216 tokens of this model: of twelve prefixes of 1,450 tokens each engine can hold six."""
REFUSED = (429, 503)
TENANTS, IDS = 12, range(3, 500)


class Ask(msgspec.Struct, frozen=True):
    """One request: it comes `at_s`, below the prefix of a tenant if `tenant` is not None."""

    at_s: float
    tenant: int | None
    own_tokens: int
    output_tokens: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run, of the requests that came after the first `SKIPPED_S`."""

    trace: str
    seed: int
    policy: str
    rate: float
    requests: int
    good: int
    good_per_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    cached_share: float
    late_share: float | None = None
    """The share of the requests that the client sent more than LATE_MS after they were due."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed."""

    machine: dict[str, object]
    model: str
    ttft_ms: int
    itl_ms: int
    runs: list[Run]


class Answer(msgspec.Struct):
    """One reply, as the client saw it, from when the request was due. `late_ms` is how much later
    the client began to send it."""

    at_s: float
    late_ms: float = 0.0
    ttft_ns: int | None = None
    gaps: int = 0
    late: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class Choice:
    """What the command line chose. `rates` are requests a second, by trace."""

    model: str
    seeds: tuple[int, ...]
    rates: dict[str, float]
    out: Path


def asks(trace: str, seed: int, rate: float) -> list[Ask]:
    """Poisson arrivals; tenants by Zipf's law."""
    random, at_s, found = Random(f"{trace}/{seed}"), 0.0, list[Ask]()
    weights = [1 / (rank + 2) for rank in range(TENANTS)]
    while (at_s := at_s + random.expovariate(rate)) < SPAN_S:
        if trace == "shared_prefix":
            tenant = random.choices(range(TENANTS), weights)[0]
            found.append(Ask(at_s, tenant, random.randint(8, 40), random.randint(4, 16)))
        else:
            found.append(Ask(at_s, None, random.randint(200, 1200), random.randint(4, 16)))
    return found


def prefix_of(seed: int, policy: str, tenant: int) -> list[int]:
    """The token ids of a prefix, as long in each run; the same text in one run only."""
    tokens = Random(f"{seed}/{tenant}").randint(1200, 1700)
    return Random(f"{seed}/{policy}/{tenant}").choices(IDS, k=tokens)


async def ask_one(client: httpx.AsyncClient, ask: Ask, prompt: list[int], begin_s: float) -> Answer:
    due_ns = round((begin_s + ask.at_s) * 1e9)
    await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
    body = {
        "prompt": prompt, "max_tokens": ask.output_tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True}, "user": f"t{ask.tenant}",
    }  # fmt: skip
    answer, last_ns = Answer(ask.at_s, (time.monotonic_ns() - due_ns) / 1e6), 0
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        if reply.status_code in REFUSED:
            return answer  # no first token: not good
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk, now_ns = json.loads(line[6:]), time.monotonic_ns()
            usage = chunk.get("usage")
            if usage:
                answer.prompt_tokens = usage["prompt_tokens"]
                answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get(
                    "cached_tokens", 0
                )
            if not chunk.get("choices"):
                continue
            if answer.ttft_ns is None:
                answer.ttft_ns = now_ns - due_ns
            else:
                answer.gaps += 1
                answer.late += now_ns - last_ns > TARGET.itl_ns
            last_ns = now_ns
    return answer


async def drive(url: str, trace: str, seed: int, policy: str, rate: float) -> list[Answer]:
    begin_s, own = time.monotonic() + 0.5, Random(f"{seed}/{policy}/own")
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        jobs: list[Coroutine[None, None, Answer]] = []
        for ask in asks(trace, seed, rate):
            prefix = [] if ask.tenant is None else prefix_of(seed, policy, ask.tenant)
            prompt = [*prefix, *own.choices(IDS, k=ask.own_tokens)]
            jobs.append(ask_one(client, ask, prompt, begin_s))
        return await asyncio.gather(*jobs)


def run_of(trace: str, seed: int, policy: str, rate: float, answers: list[Answer]) -> Run:
    counted = [one for one in answers if one.at_s >= SKIPPED_S]
    ttfts = sorted(one.ttft_ns / 1e6 for one in counted if one.ttft_ns is not None)
    good = sum(
        one.ttft_ns is not None
        and judge_latencies(one.ttft_ns, one.gaps, one.late, TARGET) is Verdict.GOOD
        for one in counted
    )
    prompt = sum(one.prompt_tokens for one in counted)
    return Run(
        trace=trace,
        seed=seed,
        policy=policy,
        rate=rate,
        requests=len(counted),
        good=good,
        good_per_s=round(good / (SPAN_S - SKIPPED_S), 3),
        ttft_p50_ms=known_quantile(ttfts, 0.5),
        ttft_p99_ms=known_quantile(ttfts, 0.99),
        cached_share=round(sum(one.cached_tokens for one in counted) / max(1, prompt), 3),
        late_share=late_share(one.late_ms for one in counted),
    )


@contextlib.contextmanager
def nodes(folder: Path, model: str) -> Iterator[list[Node]]:
    slo = folder / "slo.json"
    slo.write_text(json.dumps({"classes": {"chat": {"ttft_ms": TTFT_MS, "itl_ms": ITL_MS}}}))
    settings = (
        "--model", model, "--threads", "1", "--max-model-len", "2048",
        "--kv-memory", KV_MEMORY, "--slo-file", str(slo),
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Node(folder, *settings)) for _ in range(2)]


def run(minutes: float, choice: Choice) -> None:
    end_s = time.monotonic() + minutes * 60
    done = result(choice.out).runs if choice.out.exists() else []
    there = {(one.trace, one.seed, one.policy, one.rate) for one in done}
    wanted = [
        (trace, seed, policy.value)
        for seed, trace, policy in product(choice.seeds, choice.rates, RoutingPolicy)
        if (trace, seed, policy.value, choice.rates[trace]) not in there
    ]
    late = 0
    with tempfile.TemporaryDirectory(prefix="phasescope-live-") as name:
        folder = Path(name)
        with nodes(folder, choice.model) as engines:
            for trace, seed, policy in wanted:
                if time.monotonic() + SPAN_S + 30 > end_s:
                    print("more is to be done: run it again")
                    return
                found = one_run(folder, engines, choice, trace, seed, policy)
                print(msgspec.json.encode(found).decode(), flush=True)
                if found.late_share is None or found.late_share > LATE_SHARE:
                    print("the client was late: this run is not kept")
                    late += 1
                    continue
                done.append(found)
                keep(choice, done)
    print(f"{late} runs are not there: run it again" if late else "all runs are there")


def one_run(
    folder: Path, engines: list[Node], choice: Choice, trace: str, seed: int, policy: str
) -> Run:
    """Run one load on a gateway of its own."""
    file, rate = FleetFile(folder, engines), choice.rates[trace]
    slo = ("--slo-file", str(folder / "slo.json"))
    with FleetGateway(file, "--model", choice.model, "--routing", policy, *slo) as gateway:
        answers = asyncio.run(drive(gateway.url, trace, seed, policy, rate))
    return run_of(trace, seed, policy, rate, answers)


def result(path: Path) -> Result:
    return msgspec.json.decode(path.read_bytes(), type=Result)


def keep(choice: Choice, runs: list[Run]) -> None:
    found = Result(
        machine=machine(), model=Path(choice.model).name, ttft_ms=TTFT_MS, itl_ms=ITL_MS, runs=runs
    )
    choice.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def table(found: Result) -> str:
    """Goodput, by trace and policy, the mean of the seeds."""
    lines = ["| trace | requests/s | policy | goodput | of all | first token p50, ms | cached |"]
    lines.append("|---|---|---|---|---|---|---|")
    for trace, policy in product(RATES, RoutingPolicy):
        mine = [one for one in found.runs if (one.trace, one.policy) == (trace, policy.value)]
        if not mine:
            continue
        good, asked = sum(one.good for one in mine), sum(one.requests for one in mine)
        mean = sum(one.good_per_s for one in mine) / len(mine)
        p50 = sum(one.ttft_p50_ms or 0.0 for one in mine) / len(mine)
        cached = sum(one.cached_share for one in mine) / len(mine)
        lines.append(
            f"| {trace} | {mine[0].rate} | {policy.value} | {mean:.2f} | {good / asked:.2f} "
            f"| {p50:.0f} | {cached:.2f} |"
        )
    return "\n".join(lines)


def rates_of(text: str) -> dict[str, float]:
    """The rates of a text like shared_prefix=20,unshared=16."""
    found = {name: float(rate) for name, _, rate in (one.partition("=") for one in text.split(","))}
    if not found.keys() <= RATES.keys():
        raise argparse.ArgumentTypeError(f"traces are {', '.join(RATES)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULT)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--minutes", type=float, default=7.0)
    runner.add_argument("--model", default=MODEL)
    runner.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    runner.add_argument(
        "--rates", type=rates_of, default=RATES, help="shared_prefix=20,unshared=16"
    )
    commands.add_parser("table")
    given = parser.parse_args()
    if given.command == "run":
        seeds = tuple(map(int, given.seeds.split(",")))
        run(given.minutes, Choice(given.model, seeds, given.rates, given.out))
    else:
        print(table(result(given.out)))


if __name__ == "__main__":
    main()
