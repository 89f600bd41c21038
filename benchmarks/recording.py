"""What recording adds to one turn of the engine loop, by rows in the batch.

The loop, the scheduler and the record are the real ones, with an executor that answers at
once. Timed is the method that builds the record and puts it into the lane, on the arguments of a
real step with so many decode rows, less the same method with recording switched off: CPU time,
the least of many runs, because another process on the core can only add, and the median.
Encoding the record into the frame that carries the tokens is stated beside it.

    .venv/bin/python -m benchmarks.recording [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import machine
from service.engine.admission import Limits
from service.engine.executor import CountedAdapters
from service.engine.inbox import Inbox, SetRecording, Submit
from service.engine.loop import EngineLoop
from service.engine.plan import Plan, Sample, SamplingParams, StepOutcome
from service.engine.scheduler import Scheduler
from service.process import frames
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.recorder import Lane

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REPEATS, CALLS = 51, 200
LIMIT_STEP_US, LIMIT_ROW_US = 2.0, 0.3
RESULTS = Path(__file__).parent / "results" / "recording.json"


class Instant(CountedAdapters):
    """Answers token 7 for every row."""

    block_tokens, blocks_total = 16, 8192

    def __init__(self) -> None:
        super().__init__()
        self._outcomes: list[StepOutcome] = []

    def launch(self, plan: Plan) -> None:
        samples = tuple((Sample(7),) for _ in plan.sampled_rows)
        self._outcomes.append(StepOutcome(samples, 1, 2))

    def collect(self) -> StepOutcome:
        return self._outcomes.pop(0)


class Watched(EngineLoop):
    """Remembers what the last step recorded with."""

    last: tuple[Any, ...] = ()

    def _record(self, *args: Any) -> None:
        self.last = args
        super()._record(*args)

    def record_again(self) -> None:
        super()._record(*self.last)


def decoding(rows: int) -> tuple[Watched, Lane, Inbox]:
    """A loop whose last step had so many decode rows and nothing else."""
    lane, inbox = Lane(), Inbox()
    limits = Limits(
        block_tokens=16, blocks_total=8192, max_model_tokens=1024, max_seqs=256,
        budget_tokens=1024, chunked_prefill=True, queue_limit_requests=512,
        queue_limit_tokens=1 << 20,
    )  # fmt: skip
    loop = Watched(Scheduler(limits), Instant(), inbox, lane, MonotonicClock())
    for seq_id in range(rows):
        prompt, sampling = [seq_id % 200] * 4, SamplingParams(temperature=0.0)
        inbox.put(Submit(seq_id=seq_id, prompt=prompt, max_tokens=400, sampling=sampling))
    for _ in range(20):
        loop.step()
    plan = loop.last[0].plan
    assert (len(plan.decodes), len(plan.prefills)) == (rows, 0), plan
    return loop, lane, inbox


def timed_us(call: Callable[[], object]) -> float:
    """CPU time of one call, from many."""
    begin_ns = time.thread_time_ns()
    for _ in range(CALLS):
        call()
    return (time.thread_time_ns() - begin_ns) / CALLS / 1000


def measure(rows: int) -> dict[str, float]:
    """On and off in turns, so that both see the same drift of the machine."""
    loop, lane, inbox = decoding(rows)
    loop.record_again()
    fact = lane.drain()[-1]
    found: dict[str, list[float]] = {"on": [], "off": [], "encode": []}
    for _ in range(REPEATS):
        for name in ("on", "off"):
            inbox.put(SetRecording(name == "on"))
            loop.apply_commands()
            found[name].append(timed_us(loop.record_again))
            lane.drain()
        found["encode"].append(timed_us(lambda: frames.encode(frames.Frame([], [fact], 0))))
    added = [on - off for on, off in zip(found["on"], found["off"], strict=True)]
    return {
        "rows": rows,
        "recording_us": min(found["on"]) - min(found["off"]),
        "median_us": statistics.median(added),
        "off_us": min(found["off"]),
        "encode_us": min(found["encode"]),
    }


def recording_cost() -> dict[str, Any]:
    """Per step and per row, from a straight line through all batch sizes."""
    points = [measure(rows) for rows in ROWS]
    rows = np.array([point["rows"] for point in points])
    us = np.array([point["recording_us"] for point in points])
    weights = 1 / np.maximum(us, 1e-9)  # relative errors are alike, not absolute ones
    per_row, per_step = np.polyfit(rows, us, 1, w=weights)
    holds = all(
        point["recording_us"] <= LIMIT_STEP_US + LIMIT_ROW_US * point["rows"] for point in points
    )
    return {
        "us_per_step": float(per_step),
        "us_per_row": float(per_row),
        "limit": f"{LIMIT_STEP_US} us a step + {LIMIT_ROW_US} us a row",
        "holds_at_every_size": holds,
        "points": points,
    }


def table(found: dict[str, Any]) -> str:
    lines = [
        "| rows | recording us | median us | limit us | encoding us |",
        "|---|---|---|---|---|",
    ]
    for point in found["points"]:
        limit = LIMIT_STEP_US + LIMIT_ROW_US * point["rows"]
        cells = [point["recording_us"], point["median_us"], limit, point["encode_us"]]
        lines.append(f"| {point['rows']} | " + " | ".join(f"{us:.2f}" for us in cells) + " |")
    verdict = "holds" if found["holds_at_every_size"] else "does not hold"
    lines.append("")
    lines.append(
        f"{found['us_per_step']:.2f} us a step and {found['us_per_row']:.3f} us a row; "
        f"limit {found['limit']}: {verdict}"
    )
    return "\n".join(lines)


def main() -> int:
    """The exit code: 1 when it does not hold at every size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    found = recording_cost()
    args.out.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    print(table(found))
    return 0 if found["holds_at_every_size"] else 1


if __name__ == "__main__":
    sys.exit(main())
