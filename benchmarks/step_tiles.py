"""Does a step with a part of a kernel's tile take as long as one with all of the tile?

    python -m benchmarks.step_tiles [--rounds 3] [--out FILE]

The default model on this CPU, through the production scheduler with a fixed budget of N tokens a
step: six sequences decode beside a prompt of 1,500 tokens, so nearly each step has N rows. Sizes
take turns in another order each round. Kept are the medians of the steps with N rows, and of steps
of six decodes alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from benchmarks.disaggregated.step_costs import (
    CLOCK,
    VOCABULARY,
    Step,
    limits_of,
    load,
    model_of,
    steps_of,
)
from benchmarks.machine import machine
from lab.fleet.disaggregated.pair import Device, RealEngine
from service.device.cache.block_bytes import CacheBlocks
from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.engine.warm_up import warm_up
from telemetry.numbers.quantiles import median

RESULT = Path(__file__).parent / "results" / "step_tiles.json"
SIZES = (60, 64, 68, 80, 96, 100, 112, 124, 128, 132, 144, 160, 176, 192, 208, 224)
STREAMS, PROMPT_TOKENS, SHORT_TOKENS = 6, 1500, 64


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds, in the median: of steps with `rows` rows, and of six decodes alone."""

    rows: int
    steps: int
    step_ms: float
    decodes_ms: float
    us_per_prompt_token: float


def round_of(device: Device, rows: int, random: Random) -> tuple[list[Step], list[Step]]:
    """The steps of six decodes alone, and those of `rows` rows."""
    engine = RealEngine(device, limits_of(device, rows), CLOCK)
    chunks = -(-PROMPT_TOKENS // (rows - STREAMS))

    def submit(seq_id: int, tokens: int, outputs: int) -> None:
        prompt = [random.randrange(VOCABULARY) for _ in range(tokens)]
        greedy = SamplingParams(temperature=0.0)
        engine.inbox.put(Submit(seq_id=seq_id, prompt=prompt, max_tokens=outputs, sampling=greedy))

    for seq_id in range(STREAMS):
        submit(seq_id, SHORT_TOKENS, chunks + 30)
    for _ in range(STREAMS * SHORT_TOKENS // rows + 10):
        engine.step()
    submit(STREAMS, PROMPT_TOKENS, 2)
    while engine.is_busy:
        engine.step()
    steps = [one for one in steps_of(engine.facts) if one.load.decode_rows == STREAMS]
    return (
        [one for one in steps if not one.load.prompt_tokens],
        [one for one in steps if one.load.prompt_tokens == rows - STREAMS],
    )


def measure(rounds: int) -> list[Size]:
    engine = load(model_of(None), {})
    device = Device(engine.executor, CacheBlocks(engine.cache))
    warm_up(engine.executor, limits_of(device, max(SIZES)), CLOCK)
    alone: dict[int, list[Step]] = {rows: [] for rows in SIZES}
    mixed: dict[int, list[Step]] = {rows: [] for rows in SIZES}
    random = Random(1)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        for rows in random.sample(SIZES, len(SIZES)):
            decodes, both = round_of(device, rows, random)
            alone[rows] += decodes
            mixed[rows] += both
    return [_size(rows, alone[rows], mixed[rows]) for rows in SIZES]


def _size(rows: int, alone: list[Step], mixed: list[Step]) -> Size:
    step_ms, decodes_ms = _middle_ms(mixed), _middle_ms(alone)
    return Size(
        rows=rows,
        steps=len(mixed),
        step_ms=round(step_ms, 2),
        decodes_ms=round(decodes_ms, 2),
        us_per_prompt_token=round(1e3 * (step_ms - decodes_ms) / (rows - STREAMS), 1),
    )


def _middle_ms(steps: list[Step]) -> float:
    found = median([one.took_ns / 1e6 for one in steps])
    assert found is not None, "each size has steps"
    return found


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    sizes = measure(given.rounds)
    for one in sizes:
        print(
            f"{one.rows:4} rows: {one.step_ms:6.1f} ms, decodes alone {one.decodes_ms:5.1f} ms, "
            f"{one.us_per_prompt_token:6.1f} us a prompt token, {one.steps} steps"
        )
    found: dict[str, Any] = {"machine": machine(), "sizes": sizes}
    given.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
