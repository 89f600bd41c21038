"""The autopilot as a machine: what it proposes, keeps, takes back, and leaves alone."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from diagnosis.autopilot.bounds import LimitBounds
from diagnosis.autopilot.desk import State
from diagnosis.autopilot.thresholds import ANSWER_WITHIN_NS, MOST_MEASURED_NS
from telemetry.facts.limits import LimitValue
from telemetry.facts.reasons import AutopilotDecision as Decision
from telemetry.facts.reasons import AutopilotReason as Reason
from tests.support.examples import examples
from tests.support.worlds.piloted import SECOND, Model, Shares, World, admitted, arrival, at_rest

SEQS = [{"max_num_seqs": n} for n in (2, 4, 8, 16, 32)]


def by_seqs(best: int = 16, good: float = 0.98, bad: float = 0.4) -> Model:
    """More sequences are better up to `best`."""

    def shares(limits: Mapping[str, LimitValue], rate: float) -> Shares:
        n = limits["max_num_seqs"]
        assert isinstance(n, int)
        return {"chat": good if n == best else bad, "batch": 0.999}

    return shares


def always(share: float) -> Model:
    return lambda limits, rate: {"chat": share, "batch": 0.999}


def world(truth: Model, **changes: Any) -> World:
    return World(truth=truth, candidates=SEQS, **changes)


def test_a_change_that_keeps_its_promise_stays() -> None:
    found = world(by_seqs()).run(120)

    assert [one.decision for one in found.decisions] == [
        Decision.PROPOSED,
        Decision.APPLIED,
        Decision.KEPT,
    ]
    assert found.in_force["max_num_seqs"] == 16
    kept = found.decisions[-1]
    assert kept.reason is Reason.PROMISE_KEPT
    assert kept.measured["chat"] > 0.8
    assert kept.before["chat"] < 0.6
    assert found.puts[0].why.startswith("chat ")


def test_it_decides_within_a_minute_where_the_gain_is_large() -> None:
    found = world(by_seqs()).run(60)

    assert found.told(Decision.KEPT)


def test_a_promise_that_is_not_kept_is_rolled_back_and_not_tried_again() -> None:
    """The search sees a gain where there is none."""
    found = world(always(0.4), forecast=by_seqs()).run(1800)

    assert len(found.told(Decision.APPLIED)) == 1
    assert found.told(Decision.ROLLED_BACK)[0].reason is Reason.PROMISE_MISSED
    assert found.in_force["max_num_seqs"] == 4
    assert Reason.TRIED_BEFORE in {one.reason for one in found.told(Decision.REFUSED)}


def test_it_waits_for_the_requests_that_take_long() -> None:
    """Good ones end within a second, the others after twenty: of those that have ended after ten
    seconds, nearly all are good."""
    found = world(
        always(0.4), forecast=by_seqs(), takes_s=lambda is_good: 1.0 if is_good else 20.0
    ).run(300)

    assert found.told(Decision.APPLIED)
    assert not found.told(Decision.KEPT)
    assert found.told(Decision.ROLLED_BACK)[0].reason is Reason.PROMISE_MISSED


def test_a_stream_without_an_end_holds_the_decision_up_for_three_minutes_at_most() -> None:
    """A chat that goes on for an hour, begun just after the change."""
    found = world(by_seqs(), events={14: _endless}).run(250)
    kept = found.told(Decision.KEPT)[0]

    assert found.told(Decision.APPLIED)[0].at_ns < 14 * SECOND
    assert kept.at_ns - 14 * SECOND == pytest.approx(MOST_MEASURED_NS, abs=2 * SECOND)


def test_a_stream_of_a_class_that_the_change_is_not_for_holds_nothing_up() -> None:
    found = world(by_seqs(), events={14: lambda w: _endless(w, "batch")}).run(60)

    assert found.told(Decision.KEPT)


def _endless(found: World, slo_class: str = "chat") -> None:
    for fact in arrival("endless", 10**6, slo_class, found.now_ns):
        found.pilot.on_fact(fact)
    found.pilot.on_fact(admitted(10**6, found.now_ns))


@pytest.mark.parametrize("had_backlog", [True, False])
def test_a_class_with_a_backlog_that_becomes_worse_is_asked_about(had_backlog: bool) -> None:
    """More came of it than is served, whatever is set: a replay says whether to go back."""

    def truth(limits: Mapping[str, LimitValue], rate: float) -> Shares:
        is_changed = limits["max_num_seqs"] != 4
        return {"chat": 0.75 if is_changed else 0.5, "batch": 0.0 if is_changed else 0.99}

    def hopes(limits: Mapping[str, LimitValue], rate: float) -> Shares:
        return {"chat": 0.95 if limits["max_num_seqs"] == 16 else 0.5, "batch": 0.999}

    def waits(found: World) -> None:
        for fact in arrival("waiting", 10**6, "batch", found.now_ns):
            found.pilot.on_fact(fact)

    events = {2: waits} if had_backlog else {}
    found = world(truth, forecast=hopes, events=events).run(120)
    said = [(one.decision, one.reason) for one in found.decisions]

    assert ((Decision.VOIDED, Reason.BACKLOG) in said) is had_backlog
    assert ((Decision.ROLLED_BACK, Reason.WORSE) in said) is not had_backlog
    assert ((Decision.KEPT, Reason.NO_GAIN_IN_GOING_BACK) in said) is had_backlog


def test_a_class_that_becomes_clearly_worse_ends_the_trial_early() -> None:
    def truth(limits: Mapping[str, LimitValue], rate: float) -> Shares:
        is_changed = limits["max_num_seqs"] != 4
        return {"chat": 0.95 if is_changed else 0.5, "batch": 0.2 if is_changed else 0.99}

    def hopes(limits: Mapping[str, LimitValue], rate: float) -> Shares:
        return {"chat": 0.95 if limits["max_num_seqs"] == 16 else 0.5, "batch": 0.999}

    found = world(truth, forecast=hopes).run(90)
    (applied,), (back,) = found.told(Decision.APPLIED), found.told(Decision.ROLLED_BACK)

    assert back.reason is Reason.WORSE
    assert "batch" in back.why
    assert back.at_ns - applied.at_ns < 15 * SECOND
    assert found.in_force["max_num_seqs"] == 4


def test_what_a_class_would_lose_is_not_proposed() -> None:
    def shares(limits: Mapping[str, LimitValue], rate: float) -> Shares:
        is_changed = limits["max_num_seqs"] == 16
        return {"chat": 0.95 if is_changed else 0.3, "batch": 0.9 if is_changed else 0.99}

    found = world(shares).run(60)

    assert [(one.decision, one.reason) for one in found.decisions] == [
        (Decision.REFUSED, Reason.LOSS)
    ]
    assert not found.puts


def test_what_is_out_of_bounds_is_not_proposed() -> None:
    narrow = {"max_num_seqs": LimitBounds(least=1, most=8)}
    found = world(by_seqs(), bounds=narrow).run(120)

    assert {one.reason for one in found.decisions} == {Reason.OUT_OF_BOUNDS}
    assert not found.puts


def test_nothing_is_asked_or_done_while_all_is_well() -> None:
    found = world(always(0.999)).run(3600)

    assert not found.asks
    assert not found.decisions


@pytest.mark.parametrize("verdict", ["indeterminate", "healthy"])
def test_nothing_is_asked_while_nothing_is_known(verdict: str) -> None:
    """An open verdict, or a fault without requests to measure by."""
    share = 0.3 if verdict == "indeterminate" else 0.999
    found = world(always(share), verdict=lambda at_s, shares: verdict).run(600)

    assert not found.asks


def test_nothing_is_asked_without_requests() -> None:
    found = world(by_seqs(), rate=lambda at_s: 0.02).run(600)

    assert not found.asks


def test_a_class_that_misses_its_objective_is_enough_whatever_the_verdict() -> None:
    found = world(by_seqs(bad=0.8), verdict=lambda at_s, shares: "healthy").run(200)

    assert found.told(Decision.KEPT)


def test_a_search_that_gives_no_answer_times_out_and_is_asked_later_each_time() -> None:
    found = world(by_seqs(), search_s=None).run(1500)
    gaps = [(b - a) / SECOND for a, b in zip(found.asks, found.asks[1:], strict=False)]

    assert not found.decisions
    assert gaps[0] > ANSWER_WITHIN_NS / SECOND
    assert gaps == sorted(gaps)


def test_a_change_that_the_engine_does_not_confirm_is_taken_back() -> None:
    found = world(by_seqs(), confirms=False).run(60)

    assert not found.told(Decision.APPLIED)
    assert [one.values for one in found.puts[:2]] == [{"max_num_seqs": 16}, {"max_num_seqs": 4}]
    assert found.told(Decision.ROLLED_BACK)[0].reason is Reason.NOT_CONFIRMED
    assert at_rest(found)


def test_advise_changes_nothing_and_says_later_whether_it_still_would() -> None:
    found = world(by_seqs(), acts=False).run(300)

    assert not found.puts
    assert found.told(Decision.PROPOSED)
    assert found.told(Decision.UPHELD)
    assert found.pilot.state in (State.ADVISE, State.WAIT)


def test_advice_is_withdrawn_when_all_is_well_again() -> None:
    found = world(by_seqs(), acts=False, events={60: lambda w: setattr(w, "truth", always(0.999))})
    found.run(300)
    said = [(one.decision, one.reason) for one in found.decisions]

    assert said[0] == (Decision.PROPOSED, Reason.GAIN)
    assert said[-1][0] is Decision.WITHDRAWN
    assert found.pilot.standing is None


def test_an_operators_limit_is_left_alone_until_a_restart() -> None:
    found = world(by_seqs(), events={3: lambda w: w.set_limits({"max_num_seqs": 3})}).run(600)

    assert found.in_force["max_num_seqs"] == 3
    assert not found.puts
    assert found.told(Decision.STOPPED)[0].limits == {"max_num_seqs": 3}


def test_an_operator_who_changes_the_limit_that_is_measured_ends_the_trial() -> None:
    slow = by_seqs(good=0.46, bad=0.4)
    found = world(slow, events={24: lambda w: w.set_limits({"max_num_seqs": 3})}).run(300)

    assert found.told(Decision.APPLIED)
    assert found.told(Decision.STOPPED)
    assert not found.told(Decision.KEPT)
    assert found.in_force["max_num_seqs"] == 3


def test_an_operators_change_of_another_limit_makes_the_measurement_void() -> None:
    slow = by_seqs(good=0.46, bad=0.4)
    found = world(slow, events={24: lambda w: w.set_limits({"max_batched_tokens": 64})}).run(300)
    said = [(one.decision, one.reason) for one in found.decisions]

    assert (Decision.VOIDED, Reason.OPERATOR) in said
    assert (Decision.KEPT, Reason.PROMISE_KEPT) not in said
    assert (Decision.KEPT, Reason.NO_GAIN_IN_GOING_BACK) in said


def test_an_engine_that_restarts_while_it_is_measured_goes_back_to_what_was() -> None:
    slow = by_seqs(good=0.46, bad=0.4)
    found = world(slow, events={24: lambda w: w.restart()}).run(120)
    said = [(one.decision, one.reason) for one in found.decisions]

    assert (Decision.VOIDED, Reason.ENGINE_RESTARTED) in said
    assert (Decision.ROLLED_BACK, Reason.ENGINE_RESTARTED) in said
    assert found.in_force["max_num_seqs"] == 4


def test_a_restart_keeps_what_was_kept() -> None:
    found = world(by_seqs(), events={100: lambda w: w.restart()}).run(400)

    assert [one.decision for one in found.decisions][-1] is Decision.KEPT
    assert found.in_force["max_num_seqs"] == 16


@pytest.mark.parametrize("factor", [3.0, 1 / 4])
def test_a_load_that_shifts_makes_the_measurement_void(factor: float) -> None:
    """Then a replay of the new load says whether to go back."""
    slow = by_seqs(good=0.45, bad=0.4)
    found = world(slow, seed=2, rate=lambda at_s: 6.0 if at_s < 24 else 6.0 * factor).run(200)
    said = [(one.decision, one.reason) for one in found.decisions]

    assert (Decision.VOIDED, Reason.LOAD_CHANGED) in said
    assert (Decision.KEPT, Reason.PROMISE_KEPT) not in said


def test_loads_that_alternate_do_not_make_it_swing() -> None:
    """Each of two loads wants another setting, and they change every two minutes for four hours: a
    cool-down that doubles leaves fewer changes than its logarithm allows."""

    def truth(limits: Mapping[str, LimitValue], rate: float) -> Shares:
        wanted = 16 if rate > 5 else 2
        return {"chat": 0.97 if limits["max_num_seqs"] == wanted else 0.5, "batch": 0.999}

    found = world(truth, rate=lambda at_s: 8.0 if int(at_s / 120) % 2 else 3.0).run(4 * 3600)
    changes = len(found.told(Decision.APPLIED)) + len(found.told(Decision.ROLLED_BACK))

    assert found.told(Decision.APPLIED)
    assert changes <= 12
    assert len(found.told(Decision.ROLLED_BACK)) <= 4


@examples(10, 35, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32))
def test_the_invariants_hold_in_any_world(seed: int) -> None:
    """Truth, forecast, load, verdicts and events are drawn; `World` checks AP-1 to AP-7 at each
    tick, and at the end nothing is left open for long."""
    draw = Random(seed)

    def any_model() -> Model:
        table = {n: (draw.random(), draw.random()) for n in (2, 3, 4, 8, 16, 32)}

        def shares(limits: Mapping[str, LimitValue], rate: float) -> Shares:
            n = limits["max_num_seqs"]
            assert isinstance(n, int)
            chat, batch = table[n]
            return {"chat": chat if rate < 6 else batch, "batch": batch}

        return shares

    truth = any_model()
    events = {
        draw.randrange(5, 400): draw.choice(
            [
                lambda w: w.restart(),
                lambda w: w.restart(with_limits=False),
                lambda w: w.set_limits({"max_num_seqs": 3}),
                lambda w: w.set_limits({"max_batched_tokens": 128}),
                lambda w: setattr(w, "confirms", draw.random() < 0.5),
                lambda w: setattr(w, "search_s", draw.choice([None, 1.0, 20.0])),
                lambda w: setattr(w, "truth", any_model()),
            ]
        )
        for _ in range(draw.randrange(6))
    }
    period = draw.choice([20, 60, 300])
    found = world(
        truth,
        forecast=draw.choice([truth, any_model()]),
        seed=seed,
        acts=draw.random() < 0.8,
        rate=lambda at_s: 10.0 if int(at_s / period) % 2 else 3.0,
        verdict=lambda at_s, shares: (
            "indeterminate" if int(at_s) % 97 < 5 else "fault" if min(shares.values()) < 0.9
            else "healthy"
        ),
        events=events,
    ).run(600)  # fmt: skip

    assert len(found.told(Decision.ROLLED_BACK)) <= 6
    found.confirms, found.search_s = True, 2.0
    found.run(400)  # longer than every time limit
    assert found.checks.open is None or found.checks.open.at_ns > found.now_ns - 330 * SECOND


def test_the_same_input_gives_the_same_decisions() -> None:
    assert (
        world(by_seqs(), seed=5).run(300).decisions == world(by_seqs(), seed=5).run(300).decisions
    )
