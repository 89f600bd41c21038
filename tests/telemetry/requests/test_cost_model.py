"""A step's cost has one set of terms, and every model that prices it takes them from there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.steps import FEATURES
from lab.twins.physics import Machine, Physics
from service.engine.plan import DecodeRow, Plan, PrefillChunk
from service.engine.planning.plan_load import load_of_plan
from telemetry.costs.cost_model import AROUND, BASELINE, BUDGET, LEDGER, REPLAY, Preset, Term, fit
from telemetry.costs.forward_cost import ForwardCost
from telemetry.costs.step_load import StepLoad, attended, attention_pairs, load_of_step
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import Row
from tests.support.worlds.facts import MS, decode, prefill, step

ROOT = Path(__file__).resolve().parents[3]
PRESETS = {"budget": BUDGET, "ledger": LEDGER, "baseline": BASELINE, "around": AROUND,
           "replay": REPLAY}  # fmt: skip
# (tokens, context) of prompt chunks, and the context of decodes
shapes = st.tuples(
    st.lists(st.tuples(st.integers(1, 512), st.integers(0, 8192)), max_size=5),
    st.lists(st.integers(0, 8192), max_size=9),
)


def plan_of(chunks: list[tuple[int, int]], contexts: list[int]) -> Plan:
    prefills = tuple(
        PrefillChunk(seq_id, seq_id, start, [0] * tokens, (), 0, True, 0)
        for seq_id, (tokens, start) in enumerate(chunks)
    )
    decodes = tuple(DecodeRow(100 + i, 100 + i, start, (), 1) for i, start in enumerate(contexts))
    return Plan(0, decodes, prefills, (), (), (), (), 512)


def rows_of(chunks: list[tuple[int, int]], contexts: list[int]) -> list[Row]:
    prompts = [prefill(i, tokens, context) for i, (tokens, context) in enumerate(chunks)]
    return [decode(100 + i, context) for i, context in enumerate(contexts)] + prompts


@given(shape=shapes)
def test_plan_step_aggregator_and_ledger_see_the_same_work(
    shape: tuple[list[tuple[int, int]], list[int]],
) -> None:
    planned = load_of_plan(plan_of(*shape))
    done = step(0, 0, 10, rows_of(*shape))

    assert load_of_step(done) == planned
    aggregator = Aggregator()
    aggregator.on_fact(done)
    priced = aggregator.steps(0, 1 << 62).features[0].tolist()
    assert priced == [getattr(planned, name) for name in FEATURES]
    ones = ForwardCost(prefill_token_ns=1, pair_ns=1, decode_token_ns=1, context_token_ns=1)
    charged = sum(ones.row_ns(row) for row in done.rows)
    assert charged == sum(LEDGER.columns(planned)[1:-1])


@given(shape=shapes)
def test_a_twin_steps_take_the_cost_of_the_same_terms(
    shape: tuple[list[tuple[int, int]], list[int]],
) -> None:
    clock = ManualClock(0)
    ones = Physics(base_ns=7, prompt_token_ns=3, pair_ns=2, decode_row_ns=5, context_token_ns=1)
    plan = plan_of(*shape)
    Machine(clock, (), (), Counter()).forward(ones, plan, 1.0)
    load = load_of_plan(plan)
    spent = 7 + 3 * load.prompt_tokens + 2 * load.pairs + 5 * load.decode_rows
    assert clock.now_ns() == int(spent + load.context_tokens)


@given(tokens=st.integers(1, 4096), context=st.integers(0, 100_000))
def test_a_chunk_has_the_attention_pairs_of_its_tokens_one_by_one(
    tokens: int, context: int
) -> None:
    one_by_one = sum(context + place + 1 for place in range(tokens))
    assert attended(tokens, context) == one_by_one
    assert attention_pairs(tokens, context) == tokens * (context + tokens / 2)


def test_the_attention_term_is_written_once() -> None:
    """No n * (k + n / 2) and no n * (n + 1) // 2 outside of one module."""
    wrong = re.compile(r"\(\s*[\w.]*(context|start)\w*\s*\+\s*\w+\s*/\s*2\s*\)|\w+ \+ 1\) // 2")
    found = [
        str(path.relative_to(ROOT))
        for folder in ("service", "telemetry", "diagnosis", "dashboards", "lab")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if wrong.search(path.read_text()) and path.name != "step_load.py"
    ]
    assert found == []


def test_least_squares_are_solved_in_one_module() -> None:
    """A second fit would sooner or later have other terms."""
    found = [
        str(path.relative_to(ROOT))
        for folder in ("service", "telemetry", "diagnosis", "dashboards", "lab")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "lstsq" in path.read_text()
    ]
    found.remove("lab/replay/stolen.py")  # what stolen CPU time adds to turns, not what work costs
    # what of a request's time goes with prompts around it, in records without steps
    found.remove("diagnosis/importers/regression.py")
    assert found == ["telemetry/costs/cost_model.py"]


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_each_preset_recovers_the_cost_that_made_its_data(preset: Preset) -> None:
    draw = Random(3)
    loads = [
        StepLoad(
            prompt_tokens := draw.choice((0, draw.randint(1, 400))),
            attention_pairs(prompt_tokens, draw.randint(0, 2000)),
            decode_tokens := draw.randint(1, 30),
            decode_tokens,
            draw.randint(0, 9000),
            decode_tokens + draw.randint(0, 3),
            draw.random() < 0.5,
        )
        for _ in range(400)
    ]
    columns = np.array([preset.columns(load) for load in loads])
    true = np.array([MS, *(draw.randint(50, 5000) for _ in range(columns.shape[1] - 1))], float)
    spans_ns = columns @ true
    stalled = spans_ns.copy()
    if preset.inliers is not None:
        stalled[::40] *= 9.0  # teaches nothing

    found = fit(preset, columns, stalled)
    again = columns @ found.coefficients
    if preset.unbiased:
        again *= spans_ns.sum() / again.sum()
    assert again == pytest.approx(spans_ns, rel=0.002)
    assert found.inliers.sum() == len(loads) - (10 if preset.inliers is not None else 0)


def test_the_diagnosis_fits_the_terms_of_its_preset() -> None:
    assert tuple(term.value for term in BASELINE.terms if term != Term.ROW_STEPS) == FEATURES
    assert set(AROUND.terms) <= set(BASELINE.terms)
