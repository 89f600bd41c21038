"""The latency target of a step, wherever a step is shown; and steps whose target cannot be met."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from opentelemetry.sdk.resources import Resource
from rich.console import Console

from dashboards.explain import Explained, render
from dashboards.timeline.build import write_timeline
from lab.simulation.sim_executor import LinearCost
from telemetry.facts.clock import ManualClock, WallAnchor
from telemetry.facts.engine_records import EngineStarted, Row, StepCostSet, StepRecorded
from telemetry.facts.records import EngineDied, Fact
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from telemetry.metrics.prometheus import scalar_families, text
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.timelines import describe
from telemetry.stats.histograms import Histograms
from telemetry.stats.snapshot import Snapshot
from telemetry.stats.window_fold import WindowFold
from telemetry.traces.spans import SpanBuilder
from tests.support.servers.perfetto_check import checked
from tests.support.worlds.engine_world import World
from tests.support.worlds.facts import (
    MS,
    accepted,
    decode,
    parsed,
    prefill,
    queued,
    request_ended,
    sequence_ended,
    step,
    submitted,
    tokenized,
)
from tests.support.worlds.ledger_world import run_fold

STARTED = EngineStarted(
    0, 77, "model", "native-cpu", "float32", 100, 16, 512, 8, 64, True, 1, 100, 1000,
    auto_budget=True,
)  # fmt: skip
COST = StepCostSet(0, 0, 10 * MS, MS, 5 * MS, 0)


def bound(one: StepRecorded, target_ms: int | None) -> StepRecorded:
    target_ns = None if target_ms is None else target_ms * MS
    return msgspec.structs.replace(one, target_ns=target_ns)


def snapshot_of(*facts: Fact) -> Snapshot:
    fold = WindowFold(Histograms())
    fold.on_facts(facts)
    return fold.snapshot(100 * MS)


def rows_of(count: int) -> list[Row]:
    return [decode(seq_id, 100) for seq_id in range(count)]


# --- which targets cannot be met ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "target_ms", "span_ms", "missed"),
    [
        (rows_of(1), 50, 40, 0),
        (rows_of(1), 50, 60, 1),
        (rows_of(1), None, 60, 0),
        ([*rows_of(2), prefill(9, 8)], 50, 90, 0),
        ([*rows_of(9), prefill(9, 8)], 50, 90, 1),
        ([prefill(9, 8)], 50, 90, 0),
    ],
    ids=[
        "short enough", "decodes too long", "no target", "too long by its prompt",
        "too long whatever its prompt", "no decode",
    ],
)  # fmt: skip
def test_a_step_whose_decodes_alone_miss_their_target_is_counted(
    rows: list[Row], target_ms: int | None, span_ms: int, missed: int
) -> None:
    """A step of 10 ms, and 5 ms for each decode row, by its fitted cost."""
    one = bound(step(1, 0, span_ms, rows), target_ms)
    snapshot = snapshot_of(STARTED, COST, one)

    assert snapshot.steps_target_unreachable_total == missed
    exposed = text(scalar_families(snapshot, ())).decode()
    assert f"\nphasescope_steps_target_unreachable_total {missed}\n" in exposed


def test_without_a_fit_only_steps_without_prompts_say_it() -> None:
    mixed = bound(step(1, 0, 90, [*rows_of(9), prefill(9, 8)]), 50)
    alone = bound(step(2, 90, 180, rows_of(9)), 50)

    assert snapshot_of(STARTED, mixed, alone).steps_target_unreachable_total == 1
    again = msgspec.structs.replace(STARTED, at_ns=1)
    snapshot = snapshot_of(STARTED, COST, EngineDied(1, -9, "", 0), again, mixed)
    assert snapshot.steps_target_unreachable_total == 0


def test_an_engine_with_too_large_a_batch_for_its_target_says_so() -> None:
    cost = LinearCost(prefill_token_ns=MS)
    world = World(cost=cost, auto_budget=True, budget_tokens=64, blocks_total=200)
    world.inbox.put(cost.as_fitted())
    for _ in range(8):
        world.submit(4, max_tokens=20, itl_target_ns=24 * MS)
    world.run()
    facts = [STARTED, *world.facts]

    assert snapshot_of(*facts).steps_target_unreachable_total > 10


# --- where it is shown --------------------------------------------------------------------------


def test_the_snapshot_has_the_budget_in_force_and_the_last_step() -> None:
    one = bound(step(1, 0, 40, [decode(1, 100), prefill(2, 12)]), 50)
    snapshot = snapshot_of(STARTED, one)

    assert snapshot.auto_budget
    assert (snapshot.step_tokens, snapshot.step_target_ns) == (13, 50 * MS)
    assert snapshot.step_budget_tokens == one.budget_tokens
    fixed = snapshot_of(msgspec.structs.replace(STARTED, auto_budget=False))
    assert (fixed.auto_budget, fixed.budget_tokens, fixed.step_tokens) == (False, 64, None)


def served() -> list[Fact]:
    """A prompt in two chunks, the second one in a step that a target bounded."""
    return [
        accepted(), parsed(), tokenized(), submitted(), queued(),
        step(1, 10, 20, [prefill(1, 2, sampled=False)]),
        bound(step(2, 20, 30, [prefill(1, 2, context=2, sampled=True)]), 45),
        step(3, 30, 40, [decode(1, 4)]),
        sequence_ended(at=40), request_ended(at=41),
    ]  # fmt: skip


def timeline_of(facts: list[Fact]) -> RequestTimeline:
    (timeline,) = run_fold(facts)[0]
    return timeline


def test_a_chunks_span_has_the_target_of_its_step() -> None:
    ids = iter(range(1, 100))
    builder = SpanBuilder(Resource({}), lambda: f"{next(ids):016x}")
    spans = builder.build(timeline_of(served()), WallAnchor(0, 0))
    chunks = [dict(span.attributes or {}) for span in spans if span.name == "prefill.chunk"]

    targets = [chunk.get("phasescope.step.target_ms") for chunk in chunks]
    assert targets == [None, 45.0]


def test_the_timeline_has_it_on_the_step_and_on_the_chunk(tmp_path: Path) -> None:
    write_journal(tmp_path / "j", served(), ManualClock(), "request")
    write_timeline(open_journal(tmp_path / "j"), tmp_path / "trace.json.gz")
    slices = checked(tmp_path / "trace.json.gz").phase("X")
    steps = {one["args"]["step"]: one["args"] for one in slices if one.get("cat") == "step"}
    chunks = {one["args"]["step"]: one["args"] for one in slices if one.get("cat") == "chunk"}

    assert [steps[number].get("target_ms") for number in (1, 2, 3)] == [None, 45.0, None]
    assert [chunks[number].get("step_target_ms") for number in (1, 2)] == [None, 45.0]


def test_an_explained_request_says_how_many_of_its_chunks_a_target_bounded() -> None:
    described = msgspec.to_builtins(describe(timeline_of(served())))
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(render(msgspec.convert(described, Explained)))

    said = "1 of 2 prefill chunks are in steps that a latency target of 45.000 ms bounded"
    assert said in console.export_text()
