"""The diagnosis fold over a recorded journal, timed by itself.

Facts go to it in the pieces in which the pump of a live server would have drained them, every 50
ms. Its CPU time over the time that the journal spans is its share of a core at the live rate.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from diagnosis.verdicts.classifier import Diagnoser
from telemetry.facts.clock import thread_cpu_ns
from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.records import Fact, fact_ns
from telemetry.journal.journal_reader import open_journal
from telemetry.requests.slo_policy import DEFAULT_POLICY

PIECE_NS = 50_000_000


class FoldTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The time of the folds over one journal. `share` is of a core, `us_per_row` what a row of a
    step costs, and `worst_ms` the dearest piece."""

    seconds: float
    facts: int
    steps_per_s: float
    rows_per_step: float
    cpu_s: float
    share: float
    us_per_row: float
    worst_ms: float


def pieces(facts: Iterable[Fact], piece_ns: int = PIECE_NS) -> Iterator[list[Fact]]:
    """Facts in order of time, cut every `piece_ns`."""
    found: list[Fact] = []
    end_ns: int | None = None
    for fact in facts:
        at_ns = fact_ns(fact)
        if end_ns is None or at_ns >= end_ns:
            if found:
                yield found
            found, end_ns = [], at_ns + piece_ns
        found.append(fact)
    if found:
        yield found


def timing_of(path: Path) -> FoldTiming:
    """Raises JournalError."""
    facts = list(open_journal(path).facts())
    steps = [fact for fact in facts if isinstance(fact, StepRecorded)]
    rows, times_ns = [len(step.rows) for step in steps], [fact_ns(step) for step in steps]
    seconds = max(1e-9, (times_ns[-1] - times_ns[0]) / 1e9) if len(times_ns) > 1 else 1e-9
    diagnoser, total_ns, worst_ns = Diagnoser(policy=DEFAULT_POLICY), 0, 0  # as a server has it
    gc.collect()
    gc.freeze()  # a server does not keep a whole journal, which its collector would walk through
    for piece in pieces(facts):
        begin_ns = thread_cpu_ns()
        diagnoser.on_facts(piece)
        took_ns = thread_cpu_ns() - begin_ns
        total_ns, worst_ns = total_ns + took_ns, max(worst_ns, took_ns)
    gc.unfreeze()
    return FoldTiming(
        seconds=round(seconds, 2),
        facts=len(facts),
        steps_per_s=round(len(rows) / seconds, 1),
        rows_per_step=round(sum(rows) / max(1, len(rows)), 1),
        cpu_s=round(total_ns / 1e9, 3),
        share=round(total_ns / 1e9 / seconds, 5),
        us_per_row=round(total_ns / 1e3 / max(1, sum(rows)), 2),
        worst_ms=round(worst_ns / 1e6, 2),
    )
