"""How much engines apart are worth, by how tight the target between tokens is.

    python -m benchmarks.disaggregated.tightness run --costs h200   # again until all is done
    python -m benchmarks.disaggregated.tightness run --costs cpu
    python -m benchmarks.disaggregated.tightness write

As DistServe scales its targets: the long prompts of `goodput`, with a target of k idle decode steps
between tokens, for each k of TIMES. Engines that do both (together) are tried

- `whole`: prompts in one piece, as vLLM computed them when DistServe was compared with it. Here
  those who decode have a row in the same step; in that vLLM they waited for another one.
- `fixed`: chunks that fill a step of 512 tokens. `tuned`: the best of the budgets of a step.
- `paced`: chunks that follow the target. In virtual time a step takes what is predicted, so they
  may fill it; `cautious` leaves the margin that the noise of the measured machine asks for.

and apart: `apart` and `by_rule`, each with the best ratio, never with prompts in one piece. The
seeds draw different requests. A gain is over the best way of being together.

What to expect. An engine that does both and keeps a target of k idle decode steps has (k - 1) / k
of its time for prompts. Of four engines apart n_p compute prompts all the time, as long as the rest
can decode for them: n_p / 4. With n_p = 3 apart is better while (k - 1) / k < 3 / 4, so while
k < 4; the less time is left, the more. A larger k is of use to engines that do both only: those
that compute prompts wait for no decode. A k near 1 is hard for those that decode too, since a step
of many rows takes longer than one of an idle engine: then the best n_p is smaller.

A *point* is a cost, a k and a seed. `run` computes those that are not in `build/tightness` yet.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from benchmarks.disaggregated.goodput import (
    BLOCK_NS,
    BLOCK_TOKENS,
    ENGINES,
    FOLDER,
    GOOD,
    LINK,
    MIXES,
    REQUESTS,
    Layout,
    Mix,
    Setting,
    cost_of,
    goodput,
    shares,
    targets_of,
)
from lab.fleet.disaggregated.scenario import MS
from service.engine.inbox import SetStepCost
from service.fleet.transfer.split import LinkCost
from telemetry.costs.step_cost import fit, measured
from telemetry.costs.step_load import StepLoad, attention_pairs

OUT = FOLDER / "disaggregated_tightness.json"
PIECES = Path("build/tightness")
TIMES = (1.25, 1.5, 2.0, 3.0, 6.0, 12.0)
SEEDS = (7, 8)
BUDGETS = (64, 128, 256, 512)
LAYOUTS = ("whole", "fixed", "tuned", "paced", "cautious", "apart", "by_rule")
TOGETHER = ("whole", "fixed", "tuned", "paced", "cautious")
RATIOS = (3, 2, 1)  # engines for prompts; the likely best of long prompts first
GPU_LINK = LinkCost(
    token_bytes=131_072,
    bytes_per_ns=25.0,
    delay_ns=300_000,
    digest_byte_ns=3 * MS / (800 * 131_072),
)
"""An assumption, no measurement: blocks of a model with 8 billion parameters go by RDMA with
200 Gbit/s, and the digests of a middle prompt are compared in the 3 ms that a simulated engine
takes for any."""
GPU_SHAPE = "llama-8b"


@dataclass(frozen=True, slots=True)
class Machines:
    """Whose step costs these are, and the link between them."""

    costs: Path
    link: LinkCost
    block_ns: int

    def setting(self, times: float, seed: int, requests: int = REQUESTS) -> Setting:
        cost = cost_in(self.costs)
        mix = replace(MIXES[0], name="long prompts", tpot_times=times)
        return Setting(mix, cost, self.block_ns, self.link, seed, requests)


def cost_in(path: Path) -> SetStepCost:
    """What `step_costs` has fitted, or what fits the decodes and prefills of `benchmarks.gpu.run`
    best: there no step has both, and to have both costs nothing more here."""
    engines = json.loads(path.read_text()).get("engine")
    return cost_of(path) if engines is None else fitted(engines[GPU_SHAPE])


def steps_of(engine: dict[str, Any]) -> list[tuple[StepLoad, int]]:
    """Loads of steps, and their ns."""
    found = []
    for one in engine["decode"]:
        rows, context = one["batch"], one["batch"] * one["context"]
        found.append((StepLoad(0, 0.0, rows, rows, context, rows), round(one["step_ms"] * MS)))
    for one in engine["prefill"]:
        tokens = one["tokens"]
        load = StepLoad(tokens, attention_pairs(tokens, 0), 0, 0, 0, 1)
        found.append((load, round(one["ms"] * MS)))
    return found


def fitted(engine: dict[str, Any]) -> SetStepCost:
    cost = fit([measured(load, span_ns) for load, span_ns in steps_of(engine)])
    return SetStepCost(**{name: getattr(cost, name) for name in cost.__struct_fields__})


def _block_ns(link: LinkCost) -> int:
    return round(BLOCK_TOKENS * link.token_bytes / link.bytes_per_ns)


MACHINES = {
    "h200": Machines(FOLDER / "gpu_h200.json", GPU_LINK, _block_ns(GPU_LINK)),
    "cpu": Machines(FOLDER / "disaggregated_step_cost.json", LINK, BLOCK_NS),
}


def best_of(setting: Setting, layouts: Iterable[Layout]) -> tuple[float, Layout | None]:
    """The highest goodput, and whose it is; the others are only shown not to reach it."""
    rate, best = 0.0, None
    for layout in layouts:
        found = goodput(setting, layout, above=rate)
        if found > rate:
            rate, best = found, layout
    return rate, best


def point(setting: Setting) -> dict[str, Any]:
    """What each layout serves."""
    begin_s = time.process_time()
    cautious = goodput(setting, Layout(paced=True))
    setting = replace(setting, cost=structs.replace(setting.cost, spread=1.0))
    fixed, paced = goodput(setting, Layout()), goodput(setting, Layout(paced=True))
    smaller = [Layout(budget_tokens=n) for n in reversed(BUDGETS) if n != Layout().budget_tokens]
    tuned, budget = fixed, Layout()
    for layout in smaller:
        rate = goodput(setting, layout, above=tuned)
        if rate > tuned:
            tuned, budget = rate, layout
    apart, ratio = best_of(setting, [Layout(n) for n in RATIOS])
    ruled, ruled_ratio = best_of(setting, [Layout(n, paced=True, by_rule=True) for n in RATIOS])
    rates = {
        "whole": goodput(setting, Layout(chunked=False)),
        "fixed": fixed,
        "tuned": tuned,
        "paced": paced,
        "cautious": cautious,
        "apart": apart,
        "by_rule": ruled,
    }
    away = shares(setting, ruled, ruled_ratio)[1] if ruled_ratio is not None else None
    return {
        "requests_per_s": {name: _digits(rate) for name, rate in rates.items()},
        "tuned_budget_tokens": budget.budget_tokens if tuned else None,
        "ratios": {"apart": _ratio(ratio), "by_rule": _ratio(ruled_ratio)},
        "sent_away_by_rule": None if away is None else round(away, 3),
        "cpu_s": round(time.process_time() - begin_s),
    }


def _digits(rate: float) -> float:
    return float(f"{rate:.4g}")


def _ratio(layout: Layout | None) -> str | None:
    return None if layout is None else f"{layout.prefills}+{ENGINES - layout.prefills}"


def path_of(name: str, times: float, seed: int) -> Path:
    return PIECES / f"{name}-{times:g}-{seed}.json"


def asked_of(setting: Setting) -> dict[str, Any]:
    """What a point depends on: with other costs it is another point."""
    cost = {name: getattr(setting.cost, name) for name in setting.cost.__struct_fields__}
    return {"step_cost": cost, "block_ns": setting.block_ns, "requests": setting.requests}


def known(name: str, times: float, seed: int) -> dict[str, Any] | None:
    """A point that was computed, with the costs and the layouts that are there now."""
    path = path_of(name, times, seed)
    if not path.exists():
        return None
    piece: dict[str, Any] = json.loads(path.read_text())
    is_whole = set(piece["requests_per_s"]) == set(LAYOUTS)
    is_of_these = piece["of"] == asked_of(MACHINES[name].setting(times, seed))
    return piece if is_whole and is_of_these else None


def run(names: Sequence[str], times: Sequence[float]) -> None:
    """The points that are missing, all of one seed first."""
    PIECES.mkdir(parents=True, exist_ok=True)
    gc.set_threshold(100_000)  # worlds make many objects that live as long as they do
    for name in names:
        for seed in SEEDS:
            for one in times:
                if known(name, one, seed) is not None:
                    continue
                setting = MACHINES[name].setting(one, seed)
                piece = {"of": asked_of(setting), **point(setting)}
                path_of(name, one, seed).write_text(json.dumps(piece) + "\n")
                print(name, one, seed, json.dumps(piece), flush=True)


def gains(pieces: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """How many times the goodput of engines that do both, for each seed; None where they serve
    nothing in time. `over_together`: the best of all ways that were tried."""
    bases = {"over_together": TOGETHER, "over_whole": ("whole",)}
    rates = [one["requests_per_s"] for one in pieces]
    return {
        name: {
            way: [
                round(each[way] / base, 2) if (base := max(each[one] for one in of)) else None
                for each in rates
            ]
            for way in ("apart", "by_rule")
        }
        for name, of in bases.items()
    }


def row_of(name: str, times: float, pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One k: each figure has a value for each seed."""
    ttft_ns, tpot_ns = targets_of(*_mix_and_cost(name, times))
    first = pieces[0]
    return {
        "tpot_times": times,
        "targets_ms": [round(ttft_ns / MS, 1), round(tpot_ns / MS, 2)],
        "requests_per_s": {
            way: [one["requests_per_s"][way] for one in pieces] for way in first["requests_per_s"]
        },
        "tuned_budget_tokens": [one["tuned_budget_tokens"] for one in pieces],
        "ratios": {way: [one["ratios"][way] for one in pieces] for way in first["ratios"]},
        "sent_away_by_rule": [one["sent_away_by_rule"] for one in pieces],
        **gains(pieces),
    }


def _mix_and_cost(name: str, times: float) -> tuple[Mix, SetStepCost]:
    setting = MACHINES[name].setting(times, SEEDS[0])
    return setting.mix, setting.cost


def write(out: Path) -> bool:
    """All points that are there; whether that is all of them."""
    is_all, found = True, {}
    for name, machines in MACHINES.items():
        if not machines.costs.exists():
            is_all = False
            continue
        rows = []
        for times in TIMES:
            pieces = [one for seed in SEEDS if (one := known(name, times, seed)) is not None]
            is_all = is_all and len(pieces) == len(SEEDS)
            if pieces:
                rows.append(row_of(name, times, pieces))
        if rows:
            of = asked_of(machines.setting(TIMES[0], SEEDS[0]))
            found[name] = {"costs": machines.costs.name, **of, "points": rows}
    head = {"good_share": GOOD, "engines": ENGINES, "seeds": SEEDS}
    out.write_text(json.dumps({**head, "machines": found}) + "\n")
    return is_all


def main() -> int:
    """The exit code: 1 if points are missing in what was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("run", "write"))
    parser.add_argument("--costs", nargs="+", choices=list(MACHINES), default=list(MACHINES))
    parser.add_argument("--times", nargs="+", type=float, default=TIMES)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    if chosen.action == "run":
        run(chosen.costs, chosen.times)
        return 0
    return int(not write(chosen.out))


if __name__ == "__main__":
    sys.exit(main())
