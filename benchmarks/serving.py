"""phasescope's executors against each other over HTTP, in turns.

Starts one real server an executor on the default model; the one whose turn it is has the
machine, the others are idle. Loads are closed loops of N clients with 64 tokens in and 64 out
(`cN`) and a prompt of 1,500 tokens alone (`pf`); each round begins with another executor.
Beside other servers: `benchmarks.peers`.

    .venv/bin/python -m benchmarks.serving [--rounds 5] [--only native,torch]
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx

from benchmarks.machine import machine, spread
from benchmarks.starter import serving
from lab.load.result import BenchResult, ClassResult
from lab.load.run import run_bench
from lab.load.spec import BenchSpec, ClassSpec, Fixed, Users

RESULTS = Path(__file__).parent / "results" / "serving.json"
SHORT, LONG = Fixed(64, 64), Fixed(1500, 4)
LOADS = {"c1": (1, SHORT), "c4": (4, SHORT), "c8": (8, SHORT), "c16": (16, SHORT), "pf": (1, LONG)}
TURNS = 2  # requests of each client that count, after one that does not
SERVERS = {
    "native": ("--executor", "native"),
    "native int8": ("--executor", "native", "--weights", "int8"),
    "openvino": ("--executor", "openvino"),
    "torch": ("--executor", "torch"),
}
COMMON = ("--no-prefix-cache", "--kv-memory", "1GiB")


def measure(url: str, name: str) -> dict[str, Any]:
    """One load on one server."""
    users, lengths = LOADS[name]
    spec = BenchSpec(
        url=url,
        classes=(ClassSpec(lengths=lengths, arrivals=Users(users)),),
        requests=TURNS * users,
        warmup_requests=users,
        extra_body={"logprobs": 0},  # so that each token has a chunk, whatever its text
    )
    return figures(run_whole(spec, name).total)


def run_whole(spec: BenchSpec, name: str) -> BenchResult:
    """The result of a run. SystemExit, with the load's name, when a request failed."""
    result = run_bench(spec)
    if result.total.ok < result.total.counted:
        raise SystemExit(f"{name}: {result.total.counted - result.total.ok} requests failed")
    return result


def figures(found: ClassResult) -> dict[str, float]:
    """The figures of one class, or of all together."""
    assert found.ttft is not None
    assert found.itl is not None
    return {
        "tokens_per_s": found.throughput.output_tokens_per_s,
        "ttft_p50_ms": found.ttft.p50_ms,
        "itl_p50_ms": found.itl.p50_ms,
        "itl_p99_ms": found.itl.p99_ms,
    }


def table(cells: list[dict[str, Any]]) -> str:
    """Medians over the rounds, with the range of tokens/s."""
    lines = ["| load | executor | tokens/s (min to max) | TTFT p50 ms | ITL p50 ms | ITL p99 ms |"]
    lines.append("|---|---|---|---|---|---|")
    for load, name in dict.fromkeys((cell["load"], cell["server"]) for cell in cells):
        mine = [cell for cell in cells if (cell["load"], cell["server"]) == (load, name)]
        rate = spread(cell["tokens_per_s"] for cell in mine)
        others = [
            f"{spread(cell[key] for cell in mine)['median']:.0f}"
            for key in ("ttft_p50_ms", "itl_p50_ms", "itl_p99_ms")
        ]
        rates = f"{rate['median']:.1f} ({rate['min']:.1f} to {rate['max']:.1f})"
        lines.append(f"| {load} | {name} | {rates} | {' | '.join(others)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(SERVERS), help="executors, comma-separated")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    names = [name.strip() for name in args.only.split(",")]
    if unknown := set(names) - set(SERVERS):
        parser.error(f"no executor {', '.join(unknown)}: choose from {', '.join(SERVERS)}")
    cells: list[dict[str, Any]] = []
    with contextlib.ExitStack() as running:
        urls = {name: running.enter_context(serving(*COMMON, *SERVERS[name])).url for name in names}
        served = {name: httpx.get(f"{url}/v1/models").json() for name, url in urls.items()}
        for number in range(args.rounds):
            turn = number % len(names)
            for load in LOADS:
                for name in names[turn:] + names[:turn]:
                    cell = {"load": load, "server": name, "round": number + 1}
                    cells.append(cell | measure(urls[name], load))
                    print(f"{number + 1} {load} {name}: {cells[-1]['tokens_per_s']:.1f} tokens/s",
                          flush=True)  # fmt: skip
    cells.sort(key=lambda cell: (list(LOADS).index(cell["load"]), names.index(cell["server"])))
    about = {"machine": machine(), "rounds": args.rounds, "served": served}
    args.out.write_text(json.dumps({**about, "results": cells}, indent=1) + "\n")
    print(table(cells))


if __name__ == "__main__":
    main()
