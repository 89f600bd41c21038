"""The cost of an iteration, fitted to a record of some seconds."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from lab.replay.iteration_cost import fit_iterations
from telemetry.costs.step_load import StepLoad, attention_pairs, load_of_step, load_of_warm_up
from telemetry.facts.engine_records import EngineStarted, StepRecorded
from telemetry.facts.engine_start import WarmUpStep
from telemetry.facts.records import Fact, fact_ns
from tests.support.worlds.replayed import COST, close, facts_at, run_of


def test_what_few_steps_say_is_not_carried_far_beyond_them() -> None:
    """A record of sixty noisy steps, with short prompts and up to six rows: a step of another shape
    costs about what the warm-up says, which had longer prompts."""
    draw, busy = Random(3), facts_at(6.0)
    steps = [fact for fact in busy if isinstance(fact, StepRecorded)][:60]
    last_ns = steps[-1].committed_ns
    noisy: list[Fact] = []
    for fact in busy:
        if fact_ns(fact) > last_ns:
            continue
        if isinstance(fact, StepRecorded):
            span_ns = int(_true_ns(load_of_step(fact)) * draw.uniform(0.7, 1.4))
            fact = replace(fact, begin_ns=fact.committed_ns - span_ns)
        elif isinstance(fact, EngineStarted):
            fact = replace(fact, warm_up=tuple(_warm_up()))
        noisy.append(fact)
    found = fit_iterations([run_of(noisy)])

    for load in (
        StepLoad(prompt_tokens=512, pairs=attention_pairs(512, 0), sampled_rows=1),
        StepLoad(prompt_tokens=128, pairs=attention_pairs(128, 0), sampled_rows=1),
        StepLoad(decode_tokens=2, decode_rows=2, context_tokens=60, sampled_rows=2),
        StepLoad(decode_tokens=5, decode_rows=5, context_tokens=150, sampled_rows=5),
    ):
        assert close(found.step_ns(load), _true_ns(load), 0.35), load


def _true_ns(load: StepLoad) -> int:
    return (
        COST.base_ns
        + COST.prefill_token_ns * load.prompt_tokens
        + COST.decode_row_ns * load.decode_rows
        + COST.context_token_ns * load.context_tokens
    )


def _warm_up() -> list[WarmUpStep]:
    """At two thirds of the pace of the steps that follow."""
    shapes = ((16, 0, 0), (64, 0, 0), (32, 0, 512), (0, 1, 1), (0, 1, 512), (0, 8, 8), (0, 8, 4096))
    loads = [(shape, load_of_warm_up(WarmUpStep(*shape, 0))) for shape in shapes]
    return [WarmUpStep(*shape, int(_true_ns(load) * 2 / 3)) for shape, load in loads]
