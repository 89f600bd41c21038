"""When the autopilot asks for a search."""

from __future__ import annotations

from diagnosis.autopilot.desk import State
from telemetry.facts.reasons import AutopilotDecision as Decision
from tests.autopilot.test_autopilot import always, by_seqs, world
from tests.support.worlds.piloted import SECOND


def test_a_search_that_finds_nothing_is_soon_asked_again_and_then_ever_later() -> None:
    """The first one knew only some seconds of what is wrong. In the long run searches have a tenth
    of one core; here each takes 2 s of it."""
    found = world(always(0.4)).run(1800)
    gaps_s = [(b - a) / SECOND for a, b in zip(found.asks, found.asks[1:], strict=False)]

    assert len([at_ns for at_ns in found.asks if at_ns < 66 * SECOND]) == 3
    assert gaps_s[0] < 25
    assert gaps_s == sorted(gaps_s)
    assert gaps_s[-1] > 300


def test_a_class_that_misses_its_objective_is_searched_for_before_many_have() -> None:
    """Of one request a second nine in ten are good, where 99 % were promised."""
    found = world(
        by_seqs(bad=0.9), seed=3, rate=lambda at_s: 2.0, verdict=lambda at_s, shares: "healthy"
    ).run(60)

    assert found.asks[0] < 40 * SECOND


def test_the_answer_to_an_abandoned_search_is_ignored() -> None:
    """It comes after the next one was asked for, and is of a load that was."""
    found = world(by_seqs(), search_s=None)
    while len(found.asks) < 2 and found.at_s < 300:
        found.run(0.5)
    found.pilot.on_answer(1, found.answer(), 2.0, found.now_ns)
    found.run(5)

    assert found.pilot.state is State.WAIT
    assert not found.decisions
    found.pilot.on_answer(2, found.answer(), 2.0, found.now_ns)
    found.run(1)
    assert found.told(Decision.PROPOSED)


def test_no_search_begins_while_one_runs_for_which_nobody_waits() -> None:
    """An operator ends the trial whose search runs for two minutes; the cool-down is one."""
    found = world(by_seqs(good=0.46, bad=0.4), events={
        24: lambda w: w.set_limits({"max_batched_tokens": 64}),
        25: lambda w: setattr(w, "search_s", 120.0),
        50: lambda w: w.set_limits({"max_num_seqs": 3}),
    }).run(250)  # fmt: skip
    before, last = found.asks[-2:]

    assert 40 * SECOND < before < 50 * SECOND
    assert last - before >= 120 * SECOND
