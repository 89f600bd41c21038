"""What a step of a real engine takes, by what it computes, and how well the fit says so.

    python -m benchmarks.disaggregated.step_costs
    python -m benchmarks.disaggregated.step_costs --device cuda --model dummy:llama-1b --out FILE

A *round* is one engine with one budget of a step, whose requests come at numbered steps, so that
what is computed does not depend on how fast the machine is: a prompt alone, then up to sixteen
short ones at once, then long ones beside those who decode. So there are steps of each kind:

- prompts only, in chunks of up to the budget, after up to 900 tokens;
- decodes only, of 1 to 18 rows, with up to 1,300 tokens before each;
- both.

For each budget there is a round to fit to (`telemetry.costs.step_cost`, the terms that the budget
of a step goes by) and one with other requests that is held out. Of these the result says by kind
how far a prediction is from what the step took (`median_error`), and how far the sum
of all predictions is from the sum of all times (`bias`, above 0: predicted too long).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from benchmarks.gpu.counters import about
from lab.fleet.disaggregated.pair import Device, RealEngine
from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.cache.block_bytes import CacheBlocks
from service.device.loader import LoadedEngine, load_executor
from service.engine.admission import Limits
from service.engine.inbox import SetStepCost, Submit
from service.engine.plan import SamplingParams
from service.engine.planning.budget import predicted_ns
from service.engine.warm_up import warm_up
from service.model_files.model_store import ensure_default_model
from telemetry.costs.step_cost import fit, measured
from telemetry.costs.step_load import StepLoad, load_of_step
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.records import Fact

RESULTS = Path(__file__).parents[1] / "results" / "disaggregated_step_cost.json"
FORMATS: dict[str, dict[str, Any]] = {"bf16": {}, "int8": {"kv_dtype": "int8"}}
BUDGETS = (64, 128, 256, 512)
BUDGETS_OF = {"bf16": BUDGETS, "int8": (128, 512)}
FITTED, HELD_OUT = 0, 1  # seeds of a round
KINDS = ("decodes only", "prompts only", "both")
VOCABULARY = 40_000  # that prompts are drawn from
CONTEXT = 2_048
MAX_SEQS = 24
CLOCK = MonotonicClock()


def load(model: ModelRef, settings: dict[str, Any]) -> LoadedEngine:
    settings = {"kv_bytes": 256 << 20} | settings
    config = EngineConfig(model=model, max_model_tokens=CONTEXT, **settings)
    return load_executor(config, CLOCK, lambda stage: None)


def model_of(name: str | None) -> ModelRef:
    """A dummy of a shape, or the default model."""
    if name is not None:
        return ModelRef(kind=ModelKind.DUMMY, path=name.removeprefix("dummy:"), name=name)
    path = ensure_default_model(lambda line: None)
    return ModelRef(kind=ModelKind.GGUF, path=str(path), name="default")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes before step number `step`, or when the engine is idle before that."""

    step: int
    prompt: tuple[int, ...]
    outputs: int


class Step(NamedTuple):
    """What a step computed, how long it took, and how much of that was no forward pass."""

    load: StepLoad
    took_ns: int
    around_ns: int

    @property
    def kind(self) -> str:
        if not self.load.prompt_tokens:
            return KINDS[0]
        return KINDS[2] if self.load.decode_rows else KINDS[1]


def arrivals_of(budget: int, seed: int, vocabulary: int = VOCABULARY) -> list[Arrival]:
    """The requests of a round."""
    random = Random(f"{budget} {seed}")

    def arrival(step: int, tokens: tuple[int, int], outputs: tuple[int, int]) -> Arrival:
        prompt = tuple(random.randrange(vocabulary) for _ in range(random.randint(*tokens)))
        return Arrival(step, prompt, random.randint(*outputs))

    alone = arrival(0, (300, 900), (1, 1))
    begin = -(-len(alone.prompt) // budget)
    found = [alone]
    found += [arrival(begin, (20, 120), (30, 60)) for _ in range(random.randint(4, 16))]
    found += [arrival(begin + 15 * n, (400, 1200), (30, 90)) for n in range(1, 3)]
    return found


def limits_of(device: Device, budget: int) -> Limits:
    return Limits(
        block_tokens=device.executor.block_tokens, blocks_total=device.executor.blocks_total,
        max_model_tokens=CONTEXT, max_seqs=MAX_SEQS, budget_tokens=budget, chunked_prefill=True,
        queue_limit_requests=100, queue_limit_tokens=1_000_000, prefix_cache=False,
    )  # fmt: skip


def round_of(device: Device, budget: int, arrivals: Iterable[Arrival]) -> list[Step]:
    """The steps of one engine that serves these requests."""
    engine = RealEngine(device, limits_of(device, budget), CLOCK)
    waiting, number = list(arrivals), 0
    while waiting or engine.is_busy:
        while waiting and (waiting[0].step <= number or not engine.is_busy):
            came = waiting.pop(0)
            sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=len(waiting))
            submit = Submit(
                seq_id=len(waiting), prompt=list(came.prompt), max_tokens=came.outputs,
                sampling=sampling,
            )  # fmt: skip
            engine.inbox.put(submit)
        engine.step()
        number += 1
    return steps_of(engine.facts)


def steps_of(facts: Sequence[Fact]) -> list[Step]:
    """A step begins where the one before was committed, if that was later than its own begin."""
    found, last_ns = list[Step](), 0
    for fact in facts:
        if not isinstance(fact, StepRecorded):
            continue
        took_ns = fact.committed_ns - max(fact.begin_ns, last_ns)
        last_ns = fact.committed_ns
        found.append(
            Step(load_of_step(fact), took_ns, took_ns - (fact.sample_ns - fact.forward_ns))
        )
    return found


def cost_of(steps: Sequence[Step]) -> SetStepCost:
    """The fit, and how far steps of both kinds went beyond it."""
    all_of_them = [measured(*step) for step in steps]
    cost = fit(all_of_them, all_of_them)
    return SetStepCost(**{name: getattr(cost, name) for name in cost.__struct_fields__})


def errors_of(cost: SetStepCost, steps: Sequence[Step]) -> dict[str, dict[str, float]]:
    """The errors of the cost by kind of step, and of all."""
    found: dict[str, dict[str, float]] = {}
    for kind in (*KINDS, "all"):
        pairs = [
            (predicted_ns(cost, step.load), step.took_ns)
            for step in steps
            if kind in (step.kind, "all")
        ]
        if not pairs:
            continue
        off = [abs(says - took) / took for says, took in pairs]
        total = sum(took for _, took in pairs)
        found[kind] = {
            "steps": len(pairs),
            "median_ms": round(statistics.median(took for _, took in pairs) / 1e6, 2),
            "median_error": round(statistics.median(off), 3),
            "bias": round(sum(says for says, _ in pairs) / total - 1, 3),
        }
    return found


def measure(
    device: Device, budgets: Sequence[int] = BUDGETS, vocabulary: int = VOCABULARY
) -> dict[str, Any]:
    """The cost that was fitted, and its errors on what was held out; rounds take turns."""
    seen: dict[int, list[Step]] = {FITTED: [], HELD_OUT: []}
    for budget in budgets:
        for seed, steps in seen.items():
            steps += round_of(device, budget, arrivals_of(budget, seed, vocabulary))
    cost = cost_of(seen[FITTED])
    return {
        "step_cost": {name: getattr(cost, name) for name in cost.__struct_fields__},
        "budgets": list(budgets),
        "fitted_steps": len(seen[FITTED]),
        "held_out": errors_of(cost, seen[HELD_OUT]),
    }


def one_format(model: ModelRef, settings: dict[str, Any], budgets: Sequence[int]) -> dict[str, Any]:
    engine = load(model, settings)
    device = Device(engine.executor, CacheBlocks(engine.cache))
    warm_up(engine.executor, limits_of(device, BUDGETS[-1]), CLOCK)
    backend = {"backend": engine.backend.name, "dtype": engine.backend.dtype}
    return {**backend, **measure(device, budgets)}


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--model", help="a dummy, as in dummy:llama-1b (default: the default model)"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    model = model_of(chosen.model)
    found: dict[str, Any] = {**about(chosen.device), "model": model.name, "load_1m": []}
    for name in chosen.formats:
        found["load_1m"].append(round(os.getloadavg()[0], 2))
        found[name] = one_format(
            model, {**FORMATS[name], "device": chosen.device}, BUDGETS_OF[name]
        )
        print(json.dumps({name: found[name]}), flush=True)
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
