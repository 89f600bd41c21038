"""When the autopilot asks for a search."""

from __future__ import annotations

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
