"""Whether a GPU computes the same tokens as a CPU: greedy texts of the same random weights on both,
for each format of weights and of the cache, with adapters, and from checkpoints in each quantised
format; with short and long prompts, chunks and decodes in one batch. Where texts part, a tie of the
two best tokens is not told from a fault by the text alone, so the log-probabilities of what both
chose are compared too.

    python -m benchmarks.gpu.same_text [--formats all|dummy|checkpoints] [--model small]
        [--device cuda] [--dtype D] [--out FILE]

A part that is run alone replaces its own rows of FILE; the others stay, with their date and GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.gpu.budget import first_line
from benchmarks.gpu.counters import about
from benchmarks.gpu.hosted import limits_of
from benchmarks.lora.throughput import random_adapter
from benchmarks.quantised.random_weights import RANDOM_CHECKPOINTS
from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device.loader import LoadedEngine, load_executor
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
# both dequantise to the same numbers, of which only the sums differ
CHECKPOINT_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.15}

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
    """The scores of all prompts at once, in their order, through the scheduler and its loop."""
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


@dataclass(frozen=True, slots=True)
class Combination:
    """`weights` names a format that a dummy's are rounded to, or a checkpoint, which `write` puts
    into a folder in a dummy's shape; its weights are multiplied as they are stored."""

    weights: str
    kv: str = "auto"
    adapters: int = 0
    write: Callable[[Path, str], ModelRef] | None = None

    @property
    def described(self) -> dict[str, Any]:
        return {"weights": self.weights, "kv": self.kv, "adapters": self.adapters}

    def tolerance(self, dtype: str) -> float:
        if self.write is not None:
            return CHECKPOINT_TOLERANCE[dtype]
        return TOLERANCE["bfloat16" if self.weights == "fp8" else dtype]

    def model(self, folder: Path, shape: str) -> ModelRef:
        if self.write is not None:
            return self.write(folder, shape)
        return ModelRef(kind=ModelKind.DUMMY, path=shape, name=f"dummy:{shape}")


DUMMY, CHECKPOINTS, ALL = "dummy", "checkpoints", "all"
COMBINATIONS = {
    DUMMY: [
        *(Combination(*formats) for formats in FORMATS),
        *(Combination(*formats, adapters=len(ADAPTER_RANKS)) for formats in WITH_ADAPTERS),
    ],
    CHECKPOINTS: [Combination(one.name, write=one.write) for one in RANDOM_CHECKPOINTS],
}


def compare(args: argparse.Namespace, combination: Combination) -> dict[str, Any]:
    """One combination. Raises ConfigError where there is no kernel for it."""
    found: list[list[Scored]] = []  # of the CPU, and of the device
    names: dict[str, str] = {}
    numbers: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = combination.model(Path(folder), args.model)
        for device in ("cpu", args.device):
            loaded = _load(model, combination, device, args.dtype)
            vocab = loaded.spec.vocab
            prompts = [
                [(7 * place + 13 * count) % (vocab - 10) + 5 for place in range(count)]
                for count in PROMPT_TOKENS
            ]
            depth = 2 if device == "cuda" else 1
            found.append(outputs(loaded, prompts, depth, combination.adapters))
            names[device], numbers[device] = loaded.backend.name, loaded.backend.dtype
            loaded.executor.close()
    return {
        **combination.described,
        "backends": names,
        "numbers": numbers,
        **compared(found[1], found[0], combination.tolerance(args.dtype)),
    }


def _load(model: ModelRef, combination: Combination, device: str, dtype: str) -> LoadedEngine:
    config = EngineConfig(
        model=model, executor="torch", device=device, dtype=dtype,
        weights_format="auto" if combination.write is not None else combination.weights,
        kv_dtype=combination.kv, kv_bytes=CACHE_BYTES, max_seqs=ROWS, max_model_tokens=MAX_TOKENS,
        max_batched_tokens=BUDGET_TOKENS, threads=THREADS,
        lora_bytes=_LORA_BYTES if combination.adapters else None,
    )  # fmt: skip
    return load_executor(config, MonotonicClock(), lambda text: None)


def row_of(args: argparse.Namespace, combination: Combination) -> dict[str, Any]:
    """What came of it, whatever it is."""
    try:
        return compare(args, combination)
    except ConfigError as error:
        return {**combination.described, "not_here": str(error)}
    except (RuntimeError, StepFailed) as error:
        return {**combination.described, "error": first_line(error), "holds": False}


def merged(before: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an earlier result, those that were run again replaced, and then the new ones. A
    row that stays says when and on what it was measured."""
    again = {_key(row): row for row in rows}
    head = {key: before[key] for key in ("date", "gpu") if key in before}
    found = [
        again.pop(_key(row), None) or {**head, **row} for row in before.get("combinations", [])
    ]
    return [*found, *again.values()]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["weights"], row["kv"], row["adapters"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--formats", default=ALL, choices=(ALL, *COMBINATIONS))
    parser.add_argument("--model", default="small", help="a dummy shape")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32", choices=tuple(TOLERANCE))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    head = {"model": args.model, "dtype": args.dtype}
    before: dict[str, Any] = {}
    if args.formats != ALL and args.out.exists():
        before = json.loads(args.out.read_text())
        if any(before[key] != value for key, value in head.items()):
            parser.error(f"{args.out} is of another --model or --dtype: name another --out")
    asked = COMBINATIONS if args.formats == ALL else [args.formats]
    rows: list[dict[str, Any]] = []
    for combination in (one for part in asked for one in COMBINATIONS[part]):
        rows.append(row_of(args, combination))
        print(json.dumps(rows[-1]), flush=True)
    found = {**about(args.device), **head, "combinations": merged(before, rows)}
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(row.get("holds", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
