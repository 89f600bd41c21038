"""What the ledger costs for each token at 256 rows, and what its tape holds in memory.

Facts of a server in steady state are made here: 256 rows decode, each request has a prompt
of 32 tokens and an answer of 512, and wherever one ends another begins. They go through the phase
fold with and without an ledger_builder, in turns; CPU time of the thread, the least and the median
of several runs. `--tree PATH` measures the telemetry of another checkout.

    .venv/bin/python -m benchmarks.ledger_cost [--rows 256] [--tree PATH] [--label NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import machine

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "ledger_cost.json"
PROMPT_TOKENS, OUTPUT_TOKENS, STEP_NS = 32, 512, 20_000_000
STEPS, RUNS = 1536, 5


def facts_of(rows: int, steps: int) -> Iterator[list[Any]]:
    """Each step's facts in order; the rows' answers end one after another."""
    from telemetry.facts.engine_records import Row, SequenceEnded, SequenceQueued, StepRecorded
    from telemetry.facts.reasons import EndReason
    from telemetry.facts.records import RequestAccepted, RequestEnded, SequenceSubmitted

    live = {slot: (slot + 1, 1 + slot * OUTPUT_TOKENS // rows) for slot in range(rows)}
    next_id, trace_id = rows + 1, "0af7651916cd43dd8448eb211c80319c"

    def begin(seq_id: int, at_ns: int) -> list[Any]:
        accepted = RequestAccepted(
            request_id=f"r{seq_id}", at_ns=at_ns, trace_id=trace_id, parent_span_id=None,
            trace_sampled=None, trace_state=None, route="/v1/completions",
            operation="text_completion", tenant="t", slo_class="", read_ns=at_ns,
        )  # fmt: skip
        queued = SequenceQueued(seq_id, at_ns, 0, PROMPT_TOKENS, OUTPUT_TOKENS, "t")
        return [accepted, SequenceSubmitted(f"r{seq_id}", at_ns, seq_id, 0), queued]

    def end(seq_id: int, at_ns: int) -> list[Any]:
        ended = RequestEnded(
            request_id=f"r{seq_id}", at_ns=at_ns, reason=EndReason.MAX_TOKENS, status=200,
            error_type=None, output_tokens=OUTPUT_TOKENS, first_sent_ns=at_ns, detokenized_ns=at_ns,
            detokenize_busy_ns=0, bytes_sent=0, detected_ns=None,
        )  # fmt: skip
        return [SequenceEnded(seq_id, at_ns, 0, EndReason.MAX_TOKENS, OUTPUT_TOKENS, 0), ended]

    now_ns = 1_000_000_000
    yield [fact for seq_id, _ in live.values() for fact in begin(seq_id, now_ns)]
    for step_id in range(steps):
        begin_ns, now_ns = now_ns + 1_000_000, now_ns + STEP_NS
        made, after = [], []
        for slot, (seq_id, left) in list(live.items()):
            done = OUTPUT_TOKENS - left
            tokens, context = (1, PROMPT_TOKENS + done) if done else (PROMPT_TOKENS, 0)
            made.append(Row(seq_id, not done, tokens, context, 0, 1, False))
            live[slot] = (seq_id, left - 1)
            if left == 1:
                after += [*end(seq_id, now_ns), *begin(next_id, now_ns)]
                live[slot] = (next_id, OUTPUT_TOKENS)
                next_id += 1
        stamps = (begin_ns, begin_ns + 1000, begin_ns + 2000, begin_ns + 3000, now_ns - 9000)
        step = StepRecorded(
            step_id, *stamps, now_ns - 8000, now_ns, tuple(made), (), (), 512, rows, 0, 0, 1, 0, 2
        )
        yield [step, *after]


def cpu_us(batches: list[list[Any]], tokens: int, with_ledger: bool) -> float:
    """CPU us for each token of one pass through the fold."""
    from telemetry.ledger.builder import LedgerBuilder
    from telemetry.requests.phase_fold import PhaseFold

    ledger_builder = LedgerBuilder(lambda slo_class: 100_000_000) if with_ledger else None
    fold = PhaseFold([lambda timeline: None], ledger_builder=ledger_builder)
    begin_ns = time.thread_time_ns()
    for batch in batches:
        fold.on_facts(batch)
    return (time.thread_time_ns() - begin_ns) / 1000 / tokens


def tape_bytes(batches: list[list[Any]]) -> float:
    """Bytes a step that the tape keeps."""
    from telemetry.facts.engine_records import StepRecorded
    from telemetry.ledger.tape import Tape

    steps = [fact for batch in batches for fact in batch if isinstance(fact, StepRecorded)]
    tape = Tape()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for step in steps:
        tape.append(step, set())
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown / len(steps)


def measure(rows: int) -> dict[str, Any]:
    batches = list(facts_of(rows, STEPS))
    tokens = rows * STEPS
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(RUNS):
        for with_ledger in found:
            found[with_ledger].append(cpu_us(batches, tokens, with_ledger))
    added = [on - off for on, off in zip(found[True], found[False], strict=True)]
    return {
        "rows": rows,
        "ledger_us_per_token": round(min(found[True]) - min(found[False]), 3),
        "ledger_us_per_token_median": round(statistics.median(added), 3),
        "fold_without_ledger_us_per_token": round(min(found[False]), 3),
        "tape_bytes_per_step": round(tape_bytes(batches)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tree", type=Path, help="the checkout whose telemetry is measured")
    parser.add_argument("--label", default="now")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measure(args.rows)))
        return
    tree = (args.tree or REPOSITORY).resolve()
    answer = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--here", "--rows", str(args.rows)],
        env={**os.environ, "PYTHONPATH": str(tree)},
        cwd=tree,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(answer.stdout)
    print(json.dumps(found))
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    kept |= {"machine": machine(), args.label: found}
    args.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
