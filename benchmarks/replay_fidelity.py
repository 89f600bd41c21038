"""How well a replay predicts traffic that its cost model was not fitted to.

One server for each load. Blocks of two mixes of lengths, to which the cost of steps is fitted,
alternate with blocks of a third mix, at 0.6, 0.8 and 0.95 of the measured capacity for that mix.

They alternate because a shared machine drifts by more than the error that is measured. The fitted
mixes differ in their mean context, since only then the costs of rows and of context can be told
apart. Every block of the tested mix is repeated with other texts some minutes later: near
saturation the longest waits are those of one burst, and depend on the machine at that moment. Loads
may have different numbers of blocks: 1 % of cost is 3 % of E2E at 0.8, and less below. The whole
journal is replayed exactly (mode A), and with the fitted cost and drawn noise, but with stolen time
as recorded (mode B). Predicted quantiles of the tested mix, each the median over some seeds of the
noise, are compared with the recorded ones.

    .venv/bin/python -m benchmarks.replay_fidelity [--blocks N | N,N,N] [--schedules 4]
        [--seconds 20] [--weights int8] [--keep FOLDER] [--out FILE]
    .venv/bin/python -m benchmarks.replay_fidelity --again FILE --keep FOLDER --out FILE
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.contract.client import ask, completion, now_ns, open_loop, prompt_ids
from benchmarks.contract.common import Figure, Server, at_least, at_most, equal, say, ticking
from benchmarks.contract.lateness import LATE_SHARE, sending
from benchmarks.machine import machine
from dashboards.source import download
from diagnosis.root_cause.outcomes import Outcomes, outcomes_of
from diagnosis.root_cause.whatif import identities_of
from lab.replay.iteration_cost import fit_iterations
from lab.replay.noise import Disturbance
from lab.replay.recorded import read_runs
from lab.replay.replay_modelled import Change, replay_modelled
from lab.replay.stolen import StolenNoise, stolen_from
from telemetry.journal.journal_reader import open_journal

RESULTS = Path(__file__).parent / "results" / "replay_fidelity.json"
FLAGS = ("--max-num-seqs", "16", "--max-batched-tokens", "256", "--queue-limit", "2048",
         "--journal-memory", "256MiB")  # fmt: skip
NOISE_SEEDS = 9
CAPACITY_USERS, CAPACITY_S = 24, 60.0
LEARNT, TESTED = "batch", "chat"  # SLO classes tell the mixes apart
LEAST_LEARNT_LOAD = 0.7  # else the tested one: batches as large are learnt from
# measure: largest error of p50 and p99 up to a load of 0.8
LIMITS = {"tpot": (0.02, 0.05), "e2e": (0.03, 0.07), "ttft": (0.05, 0.10)}
HIGH_LOAD, HIGH_TTFT = 0.95, 0.15
LOADS = (0.6, 0.8, HIGH_LOAD)
LEAST_SPEED = 200.0

Mix = Callable[[random.Random], tuple[int, int]]


def short_mix(draw: random.Random) -> tuple[int, int]:
    """Prompt and output tokens, evenly."""
    return draw.randint(8, 100), draw.randint(16, 64)


def long_mix(draw: random.Random) -> tuple[int, int]:
    return draw.randint(200, 320), draw.randint(4, 32)


LEARNT_MIXES = (short_mix, long_mix)


def tested_mix(draw: random.Random) -> tuple[int, int]:
    """Mostly short prompts with longer outputs; one in eight is a document with a short answer."""
    if draw.random() < 0.125:
        return draw.randint(350, 600), draw.randint(8, 24)
    return min(300, 12 + int(draw.expovariate(1 / 50))), draw.randint(16, 80)


async def capacity_per_s(mix: Mix, seconds: float, flags: Sequence[str]) -> float:
    """Requests a second when there are always more than fit."""
    draw, done = random.Random(11), 0
    async with Server(*flags) as server:
        half_ns = now_ns() + int(seconds * 0.25e9)
        end_ns = now_ns() + int(seconds * 1e9)

        async def user() -> None:
            nonlocal done
            while now_ns() < end_ns:
                prompt, output = mix(draw)
                await ask(server.port, completion(prompt_ids(draw.random().hex(), prompt), output))
                done += half_ns < now_ns() < end_ns

        async with ticking("capacity", lambda: f"{done} requests"):
            await asyncio.gather(*(user() for _ in range(CAPACITY_USERS)))
    return done / (0.75 * seconds)


@dataclass(frozen=True)
class Plan:
    """The plan of a load: how many blocks of the learnt and of the tested mix, of which so many
    differ in arrivals and lengths."""

    flags: tuple[str, ...]
    blocks: int
    schedules: int
    seconds: float


@dataclass(frozen=True)
class Recorded:
    """A journal, when steps belong to the learnt mix, and how late each request was sent."""

    path: Path
    learning: list[tuple[int, int]]
    late_ms: list[float]

    def is_learning(self, at_ns: int) -> bool:
        return any(begin_ns <= at_ns < end_ns for begin_ns, end_ns in self.learning)


async def recorded(
    learnt_per_s: Sequence[float], tested_per_s: float, plan: Plan, path: Path
) -> Recorded:
    """One server under Poisson arrivals of the mixes in turn, each served to its end."""
    learning, late_ms = list[tuple[int, int]](), list[float]()
    async with Server(*plan.flags) as server:

        async def block(name: str, mix: Mix, rate_per_s: float, seed: int, slo_class: str) -> None:
            draw = random.Random(f"{mix.__name__}-{seed}")

            def start(number: int, due_ns: int) -> asyncio.Task[Any]:
                prompt, output = mix(draw)
                body = completion(prompt_ids(f"{name}-{number}", prompt), output)
                headers = {"x-slo-class": slo_class}
                return asyncio.create_task(ask(server.port, body, headers=headers, due_ns=due_ns))

            async with ticking(f"{slo_class}, {rate_per_s:.2f} requests/s"):
                tasks = await open_loop(rate_per_s, plan.seconds, seed, start)
                late_ms.extend(reply.late_ms for reply in await asyncio.gather(*tasks))
            await server.until_empty()

        for number in range(plan.blocks):
            begin_ns = now_ns()
            turn = number % len(LEARNT_MIXES)
            name = f"block {number} of {LEARNT}"
            await block(name, LEARNT_MIXES[turn], learnt_per_s[turn], 2 * number, LEARNT)
            learning.append((begin_ns, now_ns()))
            seed = 2 * (number % plan.schedules) + 1
            await block(f"block {number}", tested_mix, tested_per_s, seed, TESTED)
        await asyncio.sleep(1.0)  # the last facts are folded
        await asyncio.to_thread(download, f"http://127.0.0.1:{server.port}", path)
    return Recorded(path, learning, late_ms)


def predicted(found: Recorded, seeds: int) -> dict[str, Any]:
    """Identity, speed, and each recorded quantile beside the median of the predicted ones."""
    journal = open_journal(found.path)
    identities = identities_of(journal)
    (run,) = read_runs(journal.facts())
    cost = fit_iterations([run], found.is_learning)
    was = outcomes_of(journal.facts())
    stolen = stolen_from([run])
    gc.disable()  # as `phasescope replay` does
    replayed, speeds = list[Outcomes](), list[float]()
    for seed in range(seeds):
        say(f"  replaying {found.path.stem}, noise {seed + 1} of {seeds}")
        begin_ns = now_ns()
        noise = StolenNoise(cost.disturbances, stolen, stolen, seed)
        facts = replay_modelled(run, cost, Change(noise=noise))
        taken_ns = now_ns() - begin_ns
        replayed.append(outcomes_of(facts))
        speeds.append(replayed[-1].span_s * 1e9 / taken_ns)
    gc.enable()
    rows: dict[str, Any] = {}
    for measure in LIMITS:
        for quantile in ("p50_ms", "p99_ms"):
            true, *each = (
                float(getattr(one.classes[TESTED].latency[measure], quantile))
                for one in (was, *replayed)
            )
            rows[f"{measure} {quantile}"] = {
                "recorded": true,
                "replayed": statistics.median(each),
                "error": statistics.median(each) / true - 1,
                "spread": [min(each), max(each)],
            }
    return {
        "requests": was.classes[TESTED].requests,
        "learnt_turns": cost.iterations,
        "fit_mean_error": cost.mean_error,
        "stolen": stolen.mean_share,
        "slowed_by_stolen": noise.slowed,
        "blocks_differ": _blocks_differ(cost.disturbances, found),
        "blocks_differ_but_for_stolen": _blocks_differ(noise.rest, found),
        "decisions": sum(one.decisions for one in identities),
        "differences": sum(not one.holds for one in identities),
        "speed": statistics.median(speeds),
        "quantiles": rows,
    }


def _blocks_differ(disturbances: Sequence[Disturbance], found: Recorded) -> float:
    """The standard deviation of how slow the learnt blocks were beside the fit."""
    slow: list[float] = []
    for begin_ns, end_ns in found.learning:
        within = [one for one in disturbances if begin_ns <= one.begin_ns < end_ns]
        took_ns = sum(one.span_ns(one.cost_ns) for one in within)
        slow.append(took_ns / sum(one.cost_ns for one in within))
    return statistics.pstdev(slow)


def figures(loads: dict[float, dict[str, Any]]) -> list[Figure]:
    found: list[Figure] = []
    for load, one in loads.items():
        rows = one["quantiles"]
        for measure, limits in LIMITS.items():
            for quantile, limit in zip(("p50_ms", "p99_ms"), limits, strict=True):
                if load == HIGH_LOAD:
                    if measure != "ttft":
                        continue
                    limit = HIGH_TTFT
                error = abs(rows[f"{measure} {quantile}"]["error"])
                name = f"load {load}: {measure} {quantile.removesuffix('_ms')} error"
                found.append(at_most(name, error, limit))
        found.append(equal(f"load {load}: decisions not as recorded", one["differences"], 0))
        found.append(at_least(f"load {load}: times real time", one["speed"], LEAST_SPEED))
        if "sent" in one:  # records of before have it not
            name = f"load {load}: share of requests sent late"
            found.append(at_most(name, one["sent"]["late_share"], LATE_SHARE))
    return found


def markdown(loads: dict[float, dict[str, Any]]) -> str:
    lines = [
        "| load | requests | decisions | " + " | ".join(
            f"{measure.upper()} {q}" for measure in LIMITS for q in ("p50", "p99")
        ) + " | x real time |",
        "|---" * (4 + 2 * len(LIMITS)) + "|",
    ]  # fmt: skip
    for load, one in loads.items():
        cells = [
            f"{row['recorded']:.1f} / {row['replayed']:.1f} ({100 * row['error']:+.1f} %)"
            for row in one["quantiles"].values()
        ]
        lines.append(
            f"| {load} | {one['requests']} | {one['decisions']} | "
            + " | ".join(cells)
            + f" | {one['speed']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def flags_of(args: argparse.Namespace) -> tuple[str, ...]:
    return (*FLAGS, "--weights", args.weights) if args.weights else FLAGS


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    flags = flags_of(args)
    learnt_per_s = [await capacity_per_s(mix, CAPACITY_S, flags) for mix in LEARNT_MIXES]
    say(f"the learnt mixes: at most {', '.join(f'{one:.2f}' for one in learnt_per_s)} requests/s")
    tested_per_s = await capacity_per_s(tested_mix, CAPACITY_S, flags)
    say(f"the tested mix: at most {tested_per_s:.2f} requests/s")
    loads: dict[float, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if args.keep is None else args.keep
        folder.mkdir(parents=True, exist_ok=True)
        for load, blocks in zip(LOADS, args.blocks, strict=True):
            plan = Plan(flags, blocks, args.schedules, args.seconds)
            path = folder / f"load-{load}.journal"
            learnt = [max(load, LEAST_LEARNT_LOAD) * one for one in learnt_per_s]
            tested = load * tested_per_s
            found = await recorded(learnt, tested, plan, path)
            loads[load] = {
                "rates_per_s": [*learnt, tested],
                "learning": found.learning,
                "sent": sending(found.late_ms),
                **predicted(found, args.noise_seeds),
            }
            say(markdown(loads))
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "machine": machine(),
        "server": list(flags),
        "blocks": args.blocks,
        "schedules": args.schedules,
        "seconds": args.seconds,
        "at_most_per_s": [*learnt_per_s, tested_per_s],
        "loads": loads,
    }


def asked_again(args: argparse.Namespace) -> dict[str, Any]:
    """Predictions of this version for a run whose journals were kept."""
    about: dict[str, Any] = json.loads(args.again.read_text())
    for load, one in about["loads"].items():
        learning = [(begin_ns, end_ns) for begin_ns, end_ns in one["learning"]]
        found = Recorded(args.keep / f"load-{load}.journal", learning, [])
        one.update(predicted(found, args.noise_seeds))
    about["loads"] = {float(load): one for load, one in about["loads"].items()}
    return about | {"asked_again": time.strftime("%Y-%m-%d %H:%M:%S %z")}


def blocks_of(text: str) -> list[int]:
    """One number for all loads, or one for each, with commas between."""
    found = [int(part) for part in text.split(",")]
    if len(found) not in (1, len(LOADS)) or min(found) < len(LEARNT_MIXES):
        raise argparse.ArgumentTypeError(
            f"one number, or {len(LOADS)} with commas between; at least {len(LEARNT_MIXES)} blocks"
        )
    return found * (len(LOADS) // len(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--blocks", type=blocks_of, default="12", metavar="N[,N,N]",
        help="of learnt mixes, and of the tested one, at each load (default 12)",
    )  # fmt: skip
    parser.add_argument("--schedules", type=int, default=4, help="blocks, then they come again (4)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each block")
    parser.add_argument("--weights", help="as of `phasescope serve`")
    parser.add_argument("--noise-seeds", type=int, default=NOISE_SEEDS)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the journals here")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="ask the kept journals of these results"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.again is not None and args.keep is None:
        parser.error("--again needs --keep: the folder with the journals")
    about = asked_again(args) if args.again is not None else asyncio.run(measure(args))
    loads = about["loads"]
    made = figures(loads)
    about["figures"] = [asdict(figure) for figure in made]
    args.out.write_text(json.dumps(about, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(markdown(loads))
    say(markdown(loads))
    for figure in made:
        say(figure.line())
    return 0 if all(figure.holds for figure in made) else 1


if __name__ == "__main__":
    sys.exit(main())
