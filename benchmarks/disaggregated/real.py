"""Two engines of one model in one process, over loopback TCP: texts, and the time it takes.

    python -m benchmarks.disaggregated.real
    python -m benchmarks.disaggregated.real --device cuda --model dummy:llama-1b --runs 7 --out FILE

For each KV format: texts of prompts of several lengths, drawn with a seed, are compared token for
token with those of one engine; then prompts of 1,500 tokens are measured. The prefill side has the
machine while the decode side waits, as if each had one; the threads of the transport share it. What
a step costs is measured as `step_costs` does. On a GPU both engines are on the same one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.disaggregated import step_costs
from benchmarks.disaggregated.step_costs import (
    CLOCK,
    CONTEXT,
    FORMATS,
    VOCABULARY,
    load,
    model_of,
)
from benchmarks.gpu.counters import about
from lab.fleet.disaggregated.pair import Device, Pair
from service.config.settings import ModelRef
from service.device.cache.block_bytes import CacheBlocks
from service.device.loader import LoadedEngine
from service.engine.admission import Limits
from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.fleet.transfer.digests import block_digest
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.fleet.kv_transfer_records import KvAdmitted
from telemetry.requests.kv_accounts import KvAccount, KvAccounts, KvPart

RESULTS = Path(__file__).parents[1] / "results" / "disaggregated_real.json"
LENGTHS = (15, 16, 17, 100, 333, 700)
MEASURED_TOKENS = 1_500


def limits_of(engine: LoadedEngine) -> Limits:
    return Limits(
        block_tokens=engine.executor.block_tokens,
        blocks_total=engine.executor.blocks_total,
        max_model_tokens=CONTEXT,
        max_seqs=16,
        budget_tokens=256,
        chunked_prefill=True,
        queue_limit_requests=100,
        queue_limit_tokens=1_000_000,
        cache_identity="default",
    )


def ask(seq_id: int, tokens: int, count: int) -> Submit:
    """A prompt of its own; the first third is that of all others."""
    prompt = [
        (7 * place if place < tokens // 3 else 31 * place + seq_id * 97) % VOCABULARY + 100
        for place in range(tokens)
    ]
    sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=seq_id)
    return Submit(seq_id=seq_id, prompt=prompt, max_tokens=count, sampling=sampling)


def accounts_of(pair: Pair) -> list[KvAccount]:
    fold = KvAccounts()
    facts = sorted(pair.decode.facts, key=lambda fact: getattr(fact, "at_ns", 0))
    return [account for fact in facts if (account := fold.take(fact)) is not None]


def texts(pair: Pair, remote: bool) -> dict[int, list[int]]:
    for seq_id, tokens in enumerate(LENGTHS):
        pair.submit(ask(seq_id, tokens, 32), remote)
        pair.run()
    return dict(pair.outputs)


def measured(pair: Pair, runs: int) -> dict[str, Any]:
    """Medians of prompts of which nothing is cached."""
    before = len(accounts_of(pair))
    for number in range(runs):
        submit = ask(1000 + number, MEASURED_TOKENS, 2)
        pair.submit(
            Submit(
                **{name: getattr(submit, name) for name in submit.__struct_fields__}
                | {"cache_salt": str(number)}
            )
        )
        pair.run()
    found = accounts_of(pair)[before:]
    assert len(found) == runs, found
    assert all(account.fault is None for account in found), found

    def median_ms(part: KvPart) -> float:
        return round(statistics.median(one.parts.get(part, 0) for one in found) / 1e6, 2)

    exposed = [one.parts[KvPart.TRANSFER] / one.parts[KvPart.PREFILL] for one in found]
    return {
        "prompt_tokens": MEASURED_TOKENS,
        "runs": runs,
        "bytes": found[0].bytes,
        "ms": {part.value: median_ms(part) for part in KvPart if part is not KvPart.LOST},
        "hidden_ms": round(statistics.median(one.hidden_ns for one in found) / 1e6, 2),
        "exposed_of_prefill": round(statistics.median(exposed), 4),
        "sums_are_exact": all(sum(one.parts.values()) == one.elapsed_ns for one in found),
    }


def block_ms(memory: CacheBlocks) -> dict[str, float]:
    """What a block costs: medians of as many as the prompt that is measured has."""
    found: dict[str, list[float]] = {"read": [], "digest": [], "write": []}
    for block in range(min(memory.blocks, 24)):
        stamps = [time.perf_counter()]
        data = memory.read(block)
        stamps.append(time.perf_counter())
        block_digest(block, data)
        stamps.append(time.perf_counter())
        memory.write(block, data)
        memory.read(block)  # on a GPU a write is done when what follows it is
        stamps.append(time.perf_counter())
        parts = [later - earlier for earlier, later in itertools.pairwise(stamps)]
        for name, took_s in zip(found, [*parts[:2], parts[2] - parts[0]], strict=True):
            found[name].append(1e3 * took_s)
    return {name: round(statistics.median(each), 3) for name, each in found.items()}


def one_format(model: ModelRef, settings: dict[str, Any], runs: int) -> dict[str, Any]:
    engines = [load(model, settings) for _ in range(2)]
    devices = [Device(one.executor, CacheBlocks(one.cache)) for one in engines]
    limits = limits_of(engines[0])
    with Pair(devices[0], devices[1], limits, CLOCK) as pair:
        apart = texts(pair, remote=True)
        admitted = sum(isinstance(fact, KvAdmitted) for fact in pair.decode.facts)
        prefills = sum(
            row.is_prefill
            for fact in pair.decode.facts
            if isinstance(fact, StepRecorded)
            for row in fact.rows
        )
        figures = measured(pair, runs)
    with Pair(devices[0], devices[1], limits, CLOCK, "in_process") as pair:
        together = texts(pair, remote=False)
    return {
        "backend": engines[0].backend.name,
        "dtype": engines[0].backend.dtype,
        "texts": len(LENGTHS),
        "texts_equal": sum(apart[seq_id] == together[seq_id] for seq_id in apart),
        "admitted": admitted,
        "prompt_rows_on_the_decode_side": prefills,
        "measured": figures,
        "block_bytes": devices[0].memory.block_bytes,
        "block_ms": block_ms(CacheBlocks(engines[0].cache)),
        "step_cost": step_costs.measure(devices[1])["step_cost"],
    }


def main() -> int:
    """The exit code: 1 when a text differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--model", help="a dummy, as in dummy:llama-1b (default: the default model)"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    model = model_of(chosen.model)
    found: dict[str, Any] = {**about(chosen.device), "model": model.name}
    equal = True
    for name, settings in FORMATS.items():
        settings = {**settings, "device": chosen.device}
        one = found[name] = one_format(model, settings, chosen.runs)
        equal = equal and one["texts_equal"] == one["texts"]
        print(json.dumps({name: one}), flush=True)
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
