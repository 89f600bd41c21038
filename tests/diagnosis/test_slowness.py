"""Iterations of a slow window are restored to the durations of its reference."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from diagnosis.detection.holders import Held
from diagnosis.detection.steps import row_of
from diagnosis.promises.step_clock import ENGINE, PROMPTS, StepClock
from diagnosis.root_cause.question import Question
from diagnosis.root_cause.slowness import (
    NoiseFilter,
    without_masks,
    without_residual,
    without_samples,
    without_stalls,
)
from diagnosis.spans import Span
from lab.replay.iteration_cost import fit_iterations
from lab.replay.noise import Disturbance
from lab.simulation.scenarios import small_limits
from service.engine.limits_record import record_of
from telemetry.facts.engine_records import EngineStarted, StepRecorded
from telemetry.facts.records import Fact
from tests.support.worlds.facts import decode, prefill, step
from tests.support.worlds.replayed import run_of

MS = 1_000_000
REFERENCE, WINDOW = Span(0, 1_000 * MS), Span(1_000 * MS, 2_000 * MS)


def question_of(baseline: list[float], slow: list[float]) -> Question:
    """Iterations of 10 ms, each so many times longer than predicted."""
    turns = [Disturbance(n * 10 * MS, 10 * MS, one, 0) for n, one in enumerate(baseline)]
    turns += [Disturbance((1_000 + n * 10) * MS, 10 * MS, one, 0) for n, one in enumerate(slow)]
    cost: Any = SimpleNamespace(disturbances=tuple(turns))
    run: Any = None
    return Question(run, cost, REFERENCE, WINDOW)


def restored(question: Question) -> list[float]:
    keep = without_residual(question)
    assert keep is not None
    return [one.ratio for one in keep(question.cost.disturbances)]


def test_iterations_get_the_duration_of_their_rank_in_the_reference() -> None:
    """CPU starvation makes one iteration in four three times longer. Restored, none is longer than
    the longest of the reference, and the others are unchanged."""
    baseline, slow = [0.9, 1.0, 1.0, 1.1], [1.0, 3.0, 0.9, 1.0]

    assert restored(question_of(baseline, slow)) == [*baseline, 1.0, 1.1, 0.9, 1.0]


def test_faster_iterations_are_unchanged_and_no_growth_is_no_cause() -> None:
    assert restored(question_of([1.0] * 4, [0.5, 2.0, 2.0, 2.0]))[4:] == [0.5, 1.0, 1.0, 1.0]
    assert without_residual(question_of([1.0] * 4, [1.05] * 4)) is None
    assert without_residual(question_of([1.0] * 4, [])) is None


def test_a_longer_window_than_reference_is_restored_by_rank_all_the_same() -> None:
    assert restored(question_of([1.0, 1.2], [2.0, 2.1, 3.0, 3.1]))[2:] == [1.0, 1.0, 1.2, 1.2]


def test_iterations_after_the_window_are_unchanged() -> None:
    """They may be slow for another reason, which is not in question."""
    question = question_of([1.0] * 4, [2.0] * 4)
    later = Disturbance(WINDOW.end_ns, 10 * MS, 3.0, 500 * MS)
    stall = later._replace(begin_ns=WINDOW.begin_ns + 50 * MS)
    turns = (*question.cost.disturbances, stall, later)
    cost: Any = SimpleNamespace(disturbances=turns)
    found = Question(question.run, cost, REFERENCE, WINDOW)

    for without in (without_residual, without_stalls):
        keep = without(found)
        assert keep is not None
        *_, stalled, last = keep(turns)
        assert stalled != stall
        assert last == later


SLOW = {105: 8, 106: 8, 107: 4}
"""Steps of the window that spent so many ms on masks or on sampling."""


def overlapping(slow: Callable[[StepRecorded, int], StepRecorded]) -> Question:
    """A step of 20 ms launched every 10 ms, each while the one before it is in flight, but for
    those of SLOW, which make theirs and all later ones late."""
    facts: list[Fact] = [
        EngineStarted(
            at_ns=0, pid=0, model="m", backend="b", dtype="d", pipeline_depth=2,
            **record_of(small_limits()),
        )
    ]  # fmt: skip
    late = 0
    for number in range(120):
        rows = [decode(seq_id) for seq_id in range(1 + number % 4)]
        begin = 10 * number + late
        late += SLOW.get(number, 0)
        one = step(number, begin, 10 * number + 20 + late, rows)
        facts.append(slow(one, SLOW.get(number, 0) * MS))
    run = run_of(facts)
    return Question(run, fit_iterations([run]), REFERENCE, WINDOW)


def shortened_ms(question: Question, keep: NoiseFilter | None) -> dict[int, int]:
    """By step, in their order, how much shorter its disturbance becomes."""
    assert keep is not None
    before = question.cost.disturbances
    less = [
        round((was.ratio - now.ratio) * was.cost_ns / MS)
        for was, now in zip(before, keep(before), strict=True)
    ]
    return {number: ms for number, ms in enumerate(less) if ms}


def test_of_overlapping_steps_those_get_shorter_that_spent_time_on_masks() -> None:
    question = overlapping(lambda one, spent_ns: msgspec.structs.replace(one, mask_ns=spent_ns))

    assert shortened_ms(question, without_masks(question)) == SLOW


def test_of_overlapping_steps_those_get_shorter_that_sampled_for_longer() -> None:
    question = overlapping(
        lambda one, spent_ns: msgspec.structs.replace(one, sample_ns=one.sample_ns - spent_ns)
    )

    assert shortened_ms(question, without_samples(question)) == SLOW


def test_scores_of_a_prompt_are_work_of_prompts_and_no_slowness() -> None:
    """Of 30 ms in the forward pass, 20 went into scores."""
    scored = msgspec.structs.replace(prefill(1, 8), scored=7)
    done = step(1, 0, 30, [scored, decode(2)], score_ns=20 * MS)
    row = row_of(
        done, 30 * MS, Held(0, 0, False, 0), paused=0, zombie_rows=0, recompute_tokens=0,
        long_tokens=0,
    )  # fmt: skip
    clock = StepClock()
    rows = clock.step(done, {}, done.rows)
    engine = dict(zip(ENGINE, clock.now.engine, strict=True))

    assert (row.forward_ns, row.score_ns, row.host_ns) == (10 * MS, 20 * MS, 0)
    assert row.turn_ns == row.forward_ns + row.score_ns + row.sample_ns + row.mask_ns + row.host_ns
    assert sum(engine.values()) == clock.turn_ns
    assert engine[PROMPTS] >= 20 * MS
    assert 7 * rows.score_row_ns == pytest.approx(20 * MS)
