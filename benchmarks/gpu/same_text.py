"""Whether a GPU computes the same tokens as a CPU: greedy texts of the same dummy weights on both,
for each format of weights and of the cache, and with adapters, with short and long prompts, chunks
and decodes in one batch. Where texts part, a tie of the two best tokens is not told from a fault by
the text alone, so the log-probabilities of what both chose are compared too.

    python -m benchmarks.gpu.same_text [--model small] [--device cuda] [--dtype D] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.gpu.budget import first_line
from benchmarks.gpu.counters import about
from benchmarks.gpu.engine import load
from benchmarks.gpu.hosted import limits_of
from benchmarks.lora.throughput import random_adapter
from service.config.settings import ConfigError
from service.device.loader import LoadedEngine
from service.engine.executor import StepFailed
from service.engine.inbox import OF_START, Inbox, LoadAdapter, Submit, WeightsRead
from service.engine.loop import EngineLoop
from service.engine.plan import SamplingParams
from service.engine.scheduler import Scheduler
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.recorder import Lane

RESULTS = Path(__file__).resolve().parents[1] / "results" / "gpu_same_text.json"
# of weights and of the cache
FORMATS = (
    ("float", "auto"), ("int8", "auto"), ("fp8", "auto"), ("float", "int8"), ("float", "fp8"),
    ("int8", "int8"), ("fp8", "fp8"),
)  # fmt: skip
WITH_ADAPTERS = (("float", "auto"), ("int8", "auto"))
ADAPTER_RANKS = (8, 16, 64)  # of sequences in turn; every fourth has no adapter
_LORA_BYTES = 64 << 20
THREADS = 4  # more of them are no faster with so small a model
PROMPT_TOKENS = (3, 17, 64, 65, 200, 333, 500, 700)
OUTPUT_TOKENS = 48
ROWS, BUDGET_TOKENS, MAX_TOKENS = 16, 128, 1024
CACHE_BYTES = 256 << 20
# of log-probabilities, up to where the texts part; products of fp8 weights come out in bfloat16
TOLERANCE = {"float32": 2e-3, "bfloat16": 0.15}

Scored = list[tuple[int, float]]  # tokens with their log-probabilities


class RandomAdapters:
    """Adapters of random weights, seeded by their numbers; nothing is read from files."""

    def __init__(self, loaded: LoadedEngine, inbox: Inbox) -> None:
        self._loaded, self._inbox = loaded, inbox

    def read(self, number: int, source: str) -> None:
        rank = int(source)
        self._inbox.put(WeightsRead(number=number, bytes=1, rank=rank, read_ns=0))

    def place(self, number: int) -> int:
        weights = random_adapter(self._loaded.spec, ADAPTER_RANKS[number - 1], number)
        return self._loaded.executor.place_adapter(number, weights)

    def drop(self, number: int) -> None:
        self._loaded.executor.drop_adapter(number)

    def forget(self, number: int) -> None:
        """Nothing was read."""


def outputs(
    loaded: LoadedEngine, prompts: Sequence[list[int]], depth: int, adapters: int
) -> list[Scored]:
    """Of all prompts at once, in their order, through the scheduler and its loop."""
    inbox, limits = Inbox(), limits_of(loaded, ROWS, BUDGET_TOKENS)
    if adapters:
        limits = replace(limits, adapter_bytes=_LORA_BYTES, max_adapters=adapters)
    loop = EngineLoop(
        Scheduler(limits), loaded.executor, inbox, Lane(), MonotonicClock(), depth=depth,
        adapters=RandomAdapters(loaded, inbox),
    )  # fmt: skip
    for rank in ADAPTER_RANKS[:adapters]:
        inbox.put(LoadAdapter(ticket=OF_START, name=f"rank-{rank}", source=str(rank)))
    for seq_id, prompt in enumerate(prompts):
        inbox.put(
            Submit(
                seq_id=seq_id, prompt=prompt, max_tokens=OUTPUT_TOKENS,
                sampling=SamplingParams(temperature=0.0, logprobs=0),
                adapter=seq_id % (adapters + 1),
            )
        )  # fmt: skip
    found: list[Scored] = [[] for _ in prompts]
    working = True
    while working:
        for emission in loop.step():
            if emission.sample is not None:
                logprob = emission.sample.logprob
                assert logprob is not None
                found[emission.seq_id].append((emission.sample.token_id, logprob))
        working = loop.has_work
    if any(len(one) < OUTPUT_TOKENS for one in found):
        raise RuntimeError("a text ended early: its step failed")
    return found


def compared(ours: Sequence[Scored], theirs: Sequence[Scored], tolerance: float) -> dict[str, Any]:
    """How many texts are equal, how far the others agree, and the largest difference of a
    log-probability up to there."""
    agree = [_common(one, other) for one, other in zip(ours, theirs, strict=True)]
    apart = [
        abs(one[place][1] - other[place][1])
        for one, other, common in zip(ours, theirs, agree, strict=True)
        for place in range(min(common + 1, OUTPUT_TOKENS))
    ]
    return {
        "texts": len(ours),
        "equal_texts": sum(common == OUTPUT_TOKENS for common in agree),
        "equal_tokens_at_least": min(agree),
        "logprob_off_at_most": max(apart),
        "holds": max(apart) <= tolerance,
        "tolerance": tolerance,
    }


def _common(one: Scored, other: Scored) -> int:
    pairs = zip(one, other, strict=True)
    return sum(1 for _ in takewhile(lambda both: both[0][0] == both[1][0], pairs))


def compare(
    args: argparse.Namespace, weights: str, kv_format: str, adapters: int
) -> dict[str, Any]:
    """One combination. Raises ConfigError where there is no kernel for it."""
    found: list[list[Scored]] = []  # of the CPU, and of the device
    names: dict[str, str] = {}
    for device in ("cpu", args.device):
        loaded = load(
            args.model, lambda text: None, device=device, dtype=args.dtype,
            weights_format=weights, kv_dtype=kv_format, kv_bytes=CACHE_BYTES,
            max_seqs=ROWS, max_model_tokens=MAX_TOKENS, max_batched_tokens=BUDGET_TOKENS,
            threads=THREADS, lora_bytes=_LORA_BYTES if adapters else None,
        )  # fmt: skip
        vocab = loaded.spec.vocab
        prompts = [
            [(7 * place + 13 * count) % (vocab - 10) + 5 for place in range(count)]
            for count in PROMPT_TOKENS
        ]
        depth = 2 if device == "cuda" else 1
        found.append(outputs(loaded, prompts, depth, adapters))
        names[device] = loaded.backend.name
        loaded.executor.close()
    tolerance = TOLERANCE["bfloat16" if weights == "fp8" else args.dtype]
    return {
        "weights": weights,
        "kv": kv_format,
        "adapters": adapters,
        "backends": names,
        **compared(found[1], found[0], tolerance),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="small", help="a dummy shape")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32", choices=tuple(TOLERANCE))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    combinations = [(*formats, 0) for formats in FORMATS]
    combinations += [(*formats, len(ADAPTER_RANKS)) for formats in WITH_ADAPTERS]
    for weights, kv_format, adapters in combinations:
        combination = {"weights": weights, "kv": kv_format, "adapters": adapters}
        try:
            rows.append(compare(args, weights, kv_format, adapters))
        except ConfigError as error:
            rows.append({**combination, "not_here": str(error)})
        except (RuntimeError, StepFailed) as error:
            rows.append({**combination, "error": first_line(error), "holds": False})
        print(json.dumps(rows[-1]), flush=True)
    found = {**about(args.device), "model": args.model, "dtype": args.dtype}
    args.out.write_text(json.dumps({**found, "combinations": rows}, indent=1) + "\n")
    return 0 if all(row.get("holds", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
