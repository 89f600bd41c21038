"""The part of a run that is replayed, the demand on one replica, and how the edges are judged."""

from __future__ import annotations

import dataclasses
from functools import cache

import msgspec
import pytest

from diagnosis.settings_search.alone import impossible_of
from diagnosis.settings_search.excerpt import excerpt_of, quiet_ns
from diagnosis.settings_search.forecast import Forecaster, affordable, forecast
from diagnosis.settings_search.judged import judge_recorded, judged
from diagnosis.settings_search.replicas import elsewhere
from diagnosis.settings_search.search import search
from diagnosis.settings_search.settings import (
    NotPossible,
    applied,
    settings_of,
    values_of,
)
from diagnosis.settings_search.thresholds import LEAD_LEAST, LEAD_MOST, MOST_WORK
from diagnosis.settings_search.wider import wider
from diagnosis.spans import Span
from lab.replay.iteration_cost import IterationCost, fit_iterations
from lab.replay.recorded import RecordedRun, read_runs
from service.engine.inbox import SetLimits
from service.engine.limits_record import runtime_of
from telemetry.costs.step_load import StepLoad
from telemetry.facts.engine_records import StepCostSet, StepRecorded
from telemetry.facts.limits import named
from telemetry.facts.records import RequestAccepted, RequestEnded, fact_ns
from tests.support.worlds.promised import GOOD, MS, POLICY, SECOND, Kind, Promised

CHAT = Kind(rate_per_s=5.0)
BUSY = Promised(kinds=(Kind(rate_per_s=7.0, outputs=(20, 60)),), seconds=60.0)
WINDOW = Span(48 * SECOND, 60 * SECOND)


@cache
def busy() -> tuple[RecordedRun, IterationCost]:
    return BUSY.recorded(3)


def requests(run: RecordedRun) -> set[str]:
    return {fact.request_id for fact in run.others if isinstance(fact, RequestAccepted)}


# --- the excerpt ---


def test_an_excerpt_begins_at_the_quietest_moment_before_the_window() -> None:
    run, _ = busy()
    begin_ns = quiet_ns(run, WINDOW)
    before_s = (WINDOW.begin_ns - begin_ns) / 1e9

    def live(at_ns: int) -> int:
        return sum(
            one.entry.at_ns < at_ns and (one.end is None or one.end.at_ns >= at_ns)
            for one in run.sequences.values()
        )

    assert LEAD_LEAST * WINDOW.seconds <= before_s <= LEAD_MOST * WINDOW.seconds
    assert live(begin_ns) <= min(live(begin_ns + n * SECOND) for n in range(int(before_s - 3)))


def test_an_excerpt_has_the_requests_from_its_begin_on_and_what_is_left_of_those_before() -> None:
    run, _ = busy()
    part = excerpt_of(run, WINDOW)
    begin_ns = quiet_ns(run, WINDOW)
    carried = [seq_id for seq_id in part.sequences if run.sequences[seq_id].entry.at_ns < begin_ns]

    assert all(part.sequences[seq_id].entry.at_ns == begin_ns for seq_id in carried)
    for seq_id in carried:
        was, now = run.sequences[seq_id], part.sequences[seq_id]
        if was.end is not None and now.end is not None:
            whole = was.entry.prompt_tokens + was.end.output_tokens
            assert now.entry.prompt_tokens + now.end.output_tokens == whole
    assert requests(part) == {
        fact.request_id
        for fact in run.others
        if isinstance(fact, RequestAccepted) and begin_ns <= fact.at_ns < WINDOW.end_ns
    }


def test_every_request_of_an_excerpt_may_end() -> None:
    """Those that ran at the end of the record have an end, which the replay moves."""
    run, _ = busy()
    part = excerpt_of(run, WINDOW)
    ended = {fact.request_id for fact in part.others if isinstance(fact, RequestEnded)}
    open_ends = requests(run) - {
        fact.request_id for fact in run.others if isinstance(fact, RequestEnded)
    }

    assert open_ends
    assert requests(part) == ended


def test_a_replay_of_an_excerpt_gives_what_a_replay_of_the_whole_run_gives() -> None:
    run, cost = busy()
    short = forecast(run, cost, WINDOW, (), POLICY).classes["chat"]
    measured = judge_recorded(run, WINDOW, POLICY).classes["chat"]

    assert short.requests == pytest.approx(measured.requests, abs=3)
    assert short.good_share == pytest.approx(measured.good_share, abs=0.03)
    assert short.output_tokens_per_s == pytest.approx(measured.output_tokens_per_s, rel=0.03)
    assert short.itl_p99_ms == pytest.approx(measured.itl_p99_ms, rel=0.05)


def test_limits_that_were_set_while_it_ran_are_those_of_the_excerpt() -> None:
    """Set long before the window: the replay has them from its first step on, and what is undone is
    a change that the running server can have."""
    few = msgspec.structs.replace(runtime_of(GOOD), max_seqs=2)
    command = SetLimits(limits=few, changed=("max_num_seqs",), by="test", why="too few")
    world = dataclasses.replace(BUSY, commands=((5 * SECOND, command),))
    run, cost = world.recorded(3)
    now = run.limits_in(WINDOW.begin_ns, WINDOW.end_ns)[-1]
    undone = settings_of({"max_num_seqs": 16}, run.limits, now)
    present = forecast(run, cost, WINDOW, (), POLICY).classes["chat"]
    better = forecast(run, cost, WINDOW, undone, POLICY).classes["chat"]

    assert [(one.was, one.value, one.runtime) for one in undone] == [(2, 16, True)]
    assert present.good_share < 0.2
    assert better.good_share > 0.8


def test_a_queue_that_other_settings_would_not_have_had_is_not_held_against_them() -> None:
    """The record begins when hundreds wait already, for two slots."""
    kinds = (Kind(rate_per_s=7.0, outputs=(20, 60)),)
    slow = Promised(kinds=kinds, limits=dataclasses.replace(GOOD, max_seqs=2), seconds=60.0)
    cut_ns = 45 * SECOND
    facts = [
        fact
        for fact in slow.facts(3)
        if not isinstance(fact, StepRecorded) or fact.begin_ns > cut_ns
    ]
    (run,) = read_runs(facts)
    answer = search(run, fit_iterations([run]), WINDOW, POLICY)

    assert answer.backlog > 100
    assert answer.present.classes["chat"].good_share == 0.0
    assert answer.best is not None
    assert {setting.name for setting in answer.best.settings} >= {"max_num_seqs"}
    assert answer.best.is_met


def test_of_a_busy_server_the_last_part_of_the_window_is_replayed() -> None:
    run, _ = busy()
    longer = Span(0, 60 * SECOND)
    one = next(iter(run.steps.values()))
    many = dataclasses.replace(run, steps=dict.fromkeys(range(1), one))

    assert affordable(run, longer) == longer
    assert affordable(many, longer) == longer
    heavy = dataclasses.replace(run, steps=_wide(run))
    cut = affordable(heavy, longer)
    assert cut.end_ns == longer.end_ns
    assert cut.begin_ns > longer.begin_ns


def _wide(run: RecordedRun) -> dict[int, StepRecorded]:
    """The steps with so many rows that their work is twice what is affordable."""
    rows = sum(len(step.rows) for step in run.steps.values())
    times = 2 * MOST_WORK // rows + 1
    return {
        n: msgspec.structs.replace(step, rows=step.rows * times) for n, step in run.steps.items()
    }


# --- the edges of the window ---


def test_a_request_that_waits_beyond_its_target_at_the_end_is_late() -> None:
    """And one that may yet be good does not count."""
    run, _ = Promised(kinds=(Kind(rate_per_s=40.0),), seconds=6.0).recorded(1)
    window = Span(2 * SECOND, 6 * SECOND)
    chat = judge_recorded(run, window, POLICY).classes["chat"]
    accepted = [
        fact for fact in run.others if isinstance(fact, RequestAccepted) and window.has(fact.at_ns)
    ]
    recent = [fact for fact in accepted if fact.at_ns > window.end_ns - 500 * MS]

    assert len(accepted) - len(recent) <= chat.requests < len(accepted)
    assert chat.late_first_tokens > 0.8 * chat.requests


def test_a_request_whose_client_left_does_not_count_where_it_has_not_ended() -> None:
    """In the record it ended with its client, at the very end of the window."""
    run, _ = busy()
    last = max(
        (fact for fact in run.others if isinstance(fact, RequestAccepted)), key=lambda f: f.at_ns
    )
    window = Span(last.at_ns, last.at_ns + 5 * SECOND)
    facts = sorted([*run.others, *run.facts], key=fact_ns)
    started = [fact for fact in facts if fact_ns(fact) <= last.at_ns]
    waits = judged(started, window, POLICY, {})
    left = judged(started, window, POLICY, {}, {last.request_id})

    assert waits.missed == {last.request_id}
    assert left.classes == {}


# --- replicas ---


def test_with_few_tenants_every_nth_request_stays() -> None:
    run, _ = busy()
    gone = elsewhere(run, 3)

    assert len(run.sequences) - len(gone) == -(-len(run.sequences) // 3)
    assert elsewhere(run, 1) == frozenset()


def test_every_class_is_divided() -> None:
    kinds = (CHAT, Kind(rate_per_s=5.0, slo_class="voice"))
    run, _ = Promised(kinds=kinds, seconds=10.0).recorded(1)
    kept = set(run.sequences) - elsewhere(run, 2)
    owners = run.owners
    classes = {
        fact.request_id: fact.slo_class for fact in run.others if isinstance(fact, RequestAccepted)
    }
    for name in ("chat", "voice"):
        mine = [seq_id for seq_id in run.sequences if classes[owners[seq_id]] == name]
        assert abs(2 * len(kept & set(mine)) - len(mine)) <= 1


def test_with_many_equal_tenants_whole_tenants_stay() -> None:
    kinds = tuple(Kind(rate_per_s=1.0, outputs=(20, 20), tenant=f"t{n}") for n in range(12))
    run, _ = Promised(kinds=kinds, seconds=20.0).recorded(1)
    gone = elsewhere(run, 2)
    tenants_gone = {run.sequences[seq_id].entry.tenant for seq_id in gone}
    tenants_kept = {run.sequences[n].entry.tenant for n in set(run.sequences) - gone}

    assert len(tenants_kept) >= 5
    assert not tenants_gone & tenants_kept


def test_requests_on_a_replica_are_as_long_as_they_were() -> None:
    run, cost = busy()
    forecaster = Forecaster(run, cost, WINDOW, POLICY)
    whole = forecaster.replay().trial.classes["chat"]
    half = forecaster.replay(replicas=2).trial.classes["chat"]

    assert half.requests == pytest.approx(whole.requests / 2, abs=2)
    assert half.output_tokens_per_s == pytest.approx(whole.output_tokens_per_s / 2, rel=0.2)


# --- settings by name ---


def test_settings_have_the_names_of_debug_limits() -> None:
    assert named(runtime_of(GOOD)).items() <= values_of(GOOD).items()


@pytest.mark.parametrize(
    ("values", "runtime"),
    [
        ({"max_num_seqs": 8}, True),
        ({"max_num_seqs": 32}, False),
        ({"max_batched_tokens": "auto", "max_auto_tokens": 128}, True),
        ({"max_batched_tokens": 512}, False),
        ({"order": "slo"}, True),
        ({"tenant_max_seqs": 2}, True),
        ({"kv_memory": 4096}, False),
        ({"chunked_prefill": False}, False),
        ({"fairness": "vtc"}, False),
        ({"prefix_cache": False}, True),
    ],
)
def test_what_a_running_server_can_be_given(values: dict[str, object], runtime: bool) -> None:
    found = settings_of(values, GOOD, GOOD)  # type: ignore[arg-type]

    assert [one.name for one in found] == list(values)
    assert all(one.runtime is runtime for one in found)
    assert values.items() <= values_of(applied(GOOD, found)).items()


def test_a_value_that_is_not_new_is_no_change() -> None:
    assert settings_of({"max_num_seqs": GOOD.max_seqs}, GOOD, GOOD) == ()


def test_settings_that_an_engine_cannot_have_are_refused() -> None:
    few = settings_of({"max_batched_tokens": GOOD.max_seqs - 1}, GOOD, GOOD)

    assert not any(one.runtime for one in few)
    with pytest.raises(NotPossible, match="no room"):
        applied(GOOD, few)
    with pytest.raises(NotPossible, match="no such setting"):
        settings_of({"colour": 1}, GOOD, GOOD)


# --- alone ---


def test_a_prompt_whose_beginning_was_computed_before_is_not_impossible() -> None:
    """The prefix cache may have it, so that alone it is in time."""
    same = Kind(rate_per_s=1.0, prompt=(16, 32), shared_tokens=1800, slo_class="voice")
    run, cost = Promised(kinds=(same,), seconds=10.0).recorded(1)
    owners, first = run.owners, min(run.sequences)
    found = impossible_of(run, cost, POLICY, set(owners.values()))

    assert found.ids == {owners[first]}


def test_a_step_above_the_target_is_impossible_for_everyone() -> None:
    slow = dataclasses.replace(BUSY.cost, base_ns=150 * MS)
    run, cost = Promised(kinds=(Kind(rate_per_s=1.0),), cost=slow, seconds=10.0).recorded(1)
    found = impossible_of(run, cost, POLICY, set(run.owners.values()))

    assert found.ids == set(run.owners.values())
    assert "the target is 100 ms" in found.reasons["chat"]


# --- wider batches ---


def test_rows_beyond_those_recorded_cost_what_the_engine_says() -> None:
    """Every step had two rows: from these alone nobody can tell a row from a step."""
    kinds = (Kind(rate_per_s=7.0, outputs=(20, 60)),)
    slow = Promised(kinds=kinds, limits=dataclasses.replace(GOOD, max_seqs=2), seconds=20.0)
    run, cost = slow.recorded(3)
    known = wider(run, cost)
    two, sixteen = _decodes(2), _decodes(16)
    true_ns = slow.cost.base_ns + 16 * (slow.cost.decode_row_ns + 50 * 2_000)

    assert known.step_ns(two) == cost.step_ns(two)
    assert known.step_ns(sixteen) == pytest.approx(true_ns, rel=0.05)


def test_without_the_engines_own_fit_the_cost_is_that_of_the_record() -> None:
    run, cost = busy()
    facts = [fact for fact in run.facts if not isinstance(fact, StepCostSet)]

    assert wider(dataclasses.replace(run, facts=facts), cost) is cost


def _decodes(rows: int) -> StepLoad:
    return StepLoad(
        decode_tokens=rows, decode_rows=rows, context_tokens=50 * rows, sampled_rows=rows
    )
