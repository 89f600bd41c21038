"""Replay of a run whose limits changed: as it was, and with limits that a what-if decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from diagnosis.root_cause.counterfactual import explain
from diagnosis.root_cause.interventions import Cause, interventions
from diagnosis.root_cause.question import Question
from diagnosis.root_cause.whatif import replay_journal
from diagnosis.spans import Span
from lab.replay.iteration_cost import fit_iterations
from lab.replay.recorded import RecordedRun, read_runs
from lab.replay.replay_exact import replay_exactly
from lab.replay.replay_modelled import Change, replay_modelled
from lab.simulation.scenarios import Scenario, small_limits
from lab.simulation.workload import Mix, poisson
from lab.simulation.world import World
from service.config.settings import ConfigError
from service.engine.admission import Limits
from service.engine.inbox import SetLimits
from service.engine.limits_record import runtime_of
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import LimitsSet, SequenceAdmitted, StepRecorded
from telemetry.facts.limits import changed_names
from telemetry.facts.records import Fact, fact_ns
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from tests.support.worlds.ledger_world import gateway_facts
from tests.support.worlds.replayed import COST

SECOND = 1_000_000_000
LIMITS = small_limits(blocks_total=256)
# (s, what is new): the batch, then the budget too, then the cache
CHANGES = ((4, {"max_seqs": 2}), (9, {"budget_tokens": 4}), (12, {"prefix_cache": False}))


def recorded(
    limits: Limits, changes: Iterable[tuple[int, dict[str, Any]]], count: int, rate_per_s: float
) -> list[Fact]:
    """An engine whose limits are changed at such seconds."""
    commands: list[tuple[int, SetLimits]] = []
    before = runtime_of(limits)
    for at_s, fields in changes:
        wanted = msgspec.structs.replace(before, **fields)
        changed = changed_names(before, wanted)
        commands.append(
            (at_s * SECOND, SetLimits(limits=wanted, changed=changed, by="ann", why=""))
        )
        before = wanted
    scenario = Scenario(
        name="limits", seed=1, limits=limits, cost=COST, commands=tuple(commands),
        arrivals=tuple(poisson(Mix(Random(1), 64), count, rate_per_s)),
    )  # fmt: skip
    return list(World(scenario).run().facts)


@pytest.fixture(scope="module")
def facts() -> list[Fact]:
    return recorded(LIMITS, CHANGES, 60, 4.0)


@pytest.fixture(scope="module")
def run(facts: list[Fact]) -> RecordedRun:
    (run,) = read_runs(facts)
    return run


def replayed(run: RecordedRun, pinned: frozenset[str] = frozenset(), **limits: Any) -> list[Fact]:
    change = Change(limits=dataclasses.replace(run.limits, **limits), pinned=pinned)
    return replay_modelled(run, fit_iterations([run]), change)


def changes_of(facts: list[Fact]) -> list[tuple[tuple[str, ...], int, int, bool]]:
    return [
        (f.changed, f.limits.max_seqs, f.limits.budget_tokens, f.limits.prefix_cache)
        for f in facts
        if isinstance(f, LimitsSet)
    ]


def largest_batch(facts: list[Fact]) -> int:
    """Once those that ran when it was lowered have ended."""
    steps = [fact for fact in facts if isinstance(fact, StepRecorded)]
    return max(step.running for step in steps if step.begin_ns > 7 * SECOND)


def test_the_record_has_no_difference(run: RecordedRun) -> None:
    identity = replay_exactly(run)
    assert (identity.difference, identity.steps) == (None, len(run.steps))
    assert sum(isinstance(fact, LimitsSet) for fact in run.facts) == len(CHANGES)


def test_recorded_changes_are_made_again(run: RecordedRun) -> None:
    assert changes_of(replayed(run)) == [
        (("max_num_seqs",), 2, 16, True),
        (("max_batched_tokens",), 2, 4, True),
        (("prefix_cache",), 2, 4, False),
    ]


def test_a_limit_of_a_what_if_wins_over_the_record(run: RecordedRun) -> None:
    """Of a command that changes only that limit nothing is left."""
    facts = replayed(run, max_seqs=4)
    assert changes_of(facts) == [
        (("max_batched_tokens",), 4, 4, True),
        (("prefix_cache",), 4, 4, False),
    ]
    assert largest_batch(facts) == 4


def test_a_what_if_with_the_value_of_the_start_wins_as_well(run: RecordedRun) -> None:
    pinned = frozenset({"max_seqs", "budget_tokens"})
    facts = replayed(run, pinned)
    assert changes_of(facts) == [(("prefix_cache",), 8, 16, False)]
    assert largest_batch(facts) > largest_batch(replayed(run))


def test_a_cache_that_a_what_if_turned_off_stays_off(run: RecordedRun) -> None:
    facts = replayed(run, prefix_cache=False)
    assert [fact.hit_tokens for fact in facts if isinstance(fact, SequenceAdmitted)] == [0] * 60
    assert [names for names, *_ in changes_of(facts)] == [
        ("max_num_seqs",),
        ("max_batched_tokens",),
    ]


def test_a_what_if_by_its_name(facts: list[Fact], tmp_path: Path) -> None:
    """Also where it names the value that the engine began with."""
    write_journal(tmp_path / "j", facts, ManualClock(), "test")
    journal = open_journal(tmp_path / "j")
    _, found = replay_journal(journal, ManualClock(), ["max_num_seqs=8", "max_batched_tokens=16"])
    assert changes_of(found) == [(("prefix_cache",), 8, 16, False)]


def test_a_record_that_is_not_possible_with_a_what_if_is_one_clear_line(
    facts: list[Fact], tmp_path: Path
) -> None:
    write_journal(tmp_path / "j", facts, ManualClock(), "test")
    with pytest.raises(ConfigError, match="a recorded change is then not possible") as refused:
        replay_journal(open_journal(tmp_path / "j"), ManualClock(), ["max_num_seqs=8"])
    assert "max_batched_tokens: at least 8" in str(refused.value)


def test_limits_of_a_span_are_those_that_were_in_force_in_it(run: RecordedRun) -> None:
    def batches(begin_s: float, end_s: float) -> list[tuple[int, int]]:
        found = run.limits_in(int(begin_s * SECOND), int(end_s * SECOND))
        return [(one.max_seqs, one.budget_tokens) for one in found]

    assert batches(0, 3) == [(8, 16)]
    assert batches(3, 6) == [(8, 16), (2, 16)]
    assert batches(6, 8) == [(2, 16)]
    assert batches(6, 60) == [(2, 16), (2, 4), (2, 4)]
    assert (run.last_limits.budget_tokens, run.last_limits.prefix_cache) == (4, False)


def test_a_budget_that_was_lowered_in_the_window_is_a_cause_to_try(run: RecordedRun) -> None:
    cost = fit_iterations([run])
    before, now = Span(5 * SECOND, 8 * SECOND), Span(8 * SECOND, 14 * SECOND)
    tried = interventions(Question(run, cost, before, now))
    assert tried[Cause.BUDGET].limits == {"budget_tokens": 16}
    assert Cause.SLOTS not in tried
    change = tried[Cause.BUDGET].change(Question(run, cost, before, now))
    assert changes_of(replay_modelled(run, cost, change)) == [
        (("max_num_seqs",), 2, 16, True),
        (("prefix_cache",), 2, 16, False),
    ]
    quiet = interventions(Question(run, cost, Span(0, SECOND), Span(SECOND, 3 * SECOND)))
    assert Cause.BUDGET not in quiet


WIDE = small_limits(blocks_total=256, max_seqs=64, budget_tokens=512)
NARROW = {"max_seqs": 8, "budget_tokens": 32}


def test_limits_of_a_reference_that_are_smaller_than_at_the_start_are_restored_in_the_window() -> (
    None
):
    """The engine starts with 64 sequences, for which 32 tokens are too few. From the end of the
    reference on they stay 32, of which 8 were left in the record."""
    engine = recorded(WIDE, [(1, NARROW), (10, {"budget_tokens": 8})], 100, 6.0)
    facts = sorted([*gateway_facts(engine, Random(1), 1_000), *engine], key=fact_ns)
    (run,) = read_runs(facts)
    spans = Span(2 * SECOND, 9 * SECOND), Span(10 * SECOND, 17 * SECOND)
    question = Question(run, fit_iterations([run]), *spans)
    found = explain(question)
    assert Cause.BUDGET in found.tried
    assert found.top is Cause.BUDGET, found

    change = interventions(question)[Cause.BUDGET].change(question)
    assert change.limits == run.limits
    assert changes_of(replay_modelled(run, question.cost, change)) == [
        (("max_batched_tokens", "max_num_seqs"), 8, 32, True)
    ]


def test_limits_that_no_engine_could_have_had_are_not_tried() -> None:
    """In the window the batch grew to 64, for which the 32 tokens of the reference are too few."""
    steps = [(1, NARROW), (6, {"budget_tokens": 16}), (8, {"max_seqs": 64, "budget_tokens": 512})]
    (run,) = read_runs(recorded(WIDE, steps, 60, 4.0))
    spans = Span(2 * SECOND, 5 * SECOND), Span(5 * SECOND, 12 * SECOND)
    tried = interventions(Question(run, fit_iterations([run]), *spans))
    assert Cause.BUDGET not in tried
    assert tried[Cause.SLOTS].limits == {"max_seqs": 8}
