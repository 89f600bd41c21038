"""How a goodput is searched: in worlds that end when it is known whether they are good enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.disaggregated.goodput import (
    BUDGET_TOKENS,
    GOOD,
    PRECISION,
    Judged,
    Layout,
    Mix,
    Setting,
    asks_of,
    goodput,
    guess_of,
    is_good,
    shares,
)
from service.engine.inbox import SetStepCost
from telemetry.facts.engine_records import StepRecorded

COST = SetStepCost(base_ns=20_000_000, prefill_token_ns=1_000_000, decode_row_ns=1_000_000)
MIX = Mix("short", (40, 120), (4, 12), 4.0, 3.0)
SETTING = Setting(MIX, COST, requests=40)
LAYOUTS = (Layout(), Layout(chunked=False), Layout(paced=True), Layout(2), Layout(2, True, True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whether_a_rate_is_good_is_known_before_the_end_and_is_what_all_requests_say(
    layout: Layout,
) -> None:
    for times in (0.1, 0.5, 0.8, 1.2, 4.0):
        rate = times * guess_of(SETTING)
        world = Judged(SETTING, rate, layout)
        found = world.is_good()

        assert found == (shares(SETTING, rate, layout)[0] >= GOOD)
        assert world.events.step(), "something was still to happen"


def test_without_chunks_a_prompt_is_computed_in_one_step_beyond_the_budget_too() -> None:
    mix = replace(MIX, prompt_tokens=(BUDGET_TOKENS + 100, BUDGET_TOKENS + 200))
    setting = replace(SETTING, mix=mix, requests=8)
    most: dict[bool, int] = {}
    for chunked in (True, False):
        world = Judged(setting, 1.0, Layout(chunked=chunked))
        world.run()
        most[chunked] = max(
            row.tokens
            for node in world.decodes
            for fact in node.facts
            if isinstance(fact, StepRecorded)
            for row in fact.rows
        )

    assert most[True] == BUDGET_TOKENS
    assert most[False] == max(len(ask.prompt) for ask in world.scenario.asks)


def test_a_goodput_is_good_and_a_little_more_is_not() -> None:
    rate = goodput(SETTING, Layout())

    assert is_good(SETTING, rate, Layout())
    assert not all(is_good(SETTING, rate * PRECISION**n, Layout()) for n in range(1, 4))


def test_a_search_above_a_rate_finds_the_same_goodput_or_that_it_is_not_above() -> None:
    rate = goodput(SETTING, Layout())
    from_below = goodput(SETTING, Layout(), above=rate / 2)

    assert 1 / PRECISION**2 < from_below / rate < PRECISION**2
    assert goodput(SETTING, Layout(), above=2 * rate) == 0.0


def test_requests_are_the_same_at_any_rate_and_others_with_another_seed() -> None:
    slow, fast = (asks_of(MIX, rate, False, seed=7, count=20) for rate in (1.0, 2.0))
    other = asks_of(MIX, 1.0, False, seed=8, count=20)

    assert [ask.prompt for ask in slow] == [ask.prompt for ask in fast]
    assert [ask.at_ns for ask in slow] == pytest.approx([2 * ask.at_ns for ask in fast], abs=2)
    assert [ask.prompt for ask in slow] != [ask.prompt for ask in other]
