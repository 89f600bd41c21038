"""The arithmetic of the overhead benchmarks, on made-up blocks."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from benchmarks.attach.overhead import CONTROL, ON, figures
from benchmarks.paired import Block, Cost, Pair, cost_figure, costs, run_quad


def block(
    state: str, drift: float, slower: float, draw: np.random.Generator, varies: float = 0.002
) -> Block:
    """A block on a machine that is `drift` times slower than at its best."""
    noise = drift * (1 + draw.normal(0, varies))
    gaps_ms = draw.gamma(80, 1 / 4, 200) * noise * (1 + slower)
    return Block(state, 100 / noise / (1 + slower), gaps_ms)


def pairs(slower: float, count: int = 16, varies: float = 0.002) -> list[Pair]:
    """Neighbours share the machine's mood, which changes by tens of percent over the run."""
    draw = np.random.default_rng(5)
    moods = 1 + 0.3 * draw.random(count)
    return [
        (block("off", mood, 0, draw, varies), block("on", mood, slower, draw, varies))
        for mood in moods
    ]


def test_two_equal_states_cost_nothing() -> None:
    found = costs(pairs(0.0))

    for cost in found.values():
        assert cost.low <= 0 <= cost.high
    assert abs(found["throughput"].percent) < 0.2


def test_a_cost_of_two_percent_is_found_although_the_machine_drifts_by_thirty() -> None:
    """Fewer tokens a second and longer gaps are both positive."""
    found = costs(pairs(0.02))

    assert found["throughput"].percent == pytest.approx(100 * (1 - 1 / 1.02), abs=0.2)
    assert found["throughput"].low > 1
    assert found["itl_p50"].percent == pytest.approx(2, abs=0.7)
    assert found["itl_p99"].low < 2 < found["itl_p99"].high


def test_a_cost_is_not_held_when_two_equal_states_differ_by_more_than_the_limit() -> None:
    """The noisier the machine, the less is known: three percent are not hidden by ten."""
    noisy = {CONTROL: pairs(0.0, 32, varies=0.1), ON: pairs(0.03, 32, varies=0.1)}
    (_, _, *found) = figures(noisy)

    assert [(one.value, one.holds) for one in found] == [(None, False)] * 2
    assert found[0].line().endswith("not measured, limit <= 1: does not hold")


def test_a_cost_is_judged_by_the_upper_end_of_its_interval() -> None:
    """Where two equal states differ by less than the limit, in either direction."""
    calm, biased = Cost(0.1, -0.4, 0.6), Cost(-1.5, -2.0, -1.0)

    assert cost_figure("x", Cost(0.5, 0.2, 0.8), calm, 1.0).holds
    assert not cost_figure("x", Cost(0.5, -0.2, 1.3), calm, 1.0).holds
    assert cost_figure("x", Cost(0.5, 0.2, 0.8), biased, 1.0).value is None
    assert not cost_figure("itl_p99", Cost(10.0, 3.8, 35.8), Cost(-6.0, -17.7, 18.3), 1.0).holds


@pytest.mark.parametrize(("number", "order"), [(0, "ABBA"), (1, "BAAB"), (2, "ABBA")])
def test_pairs_are_neighbours_with_the_base_first(number: int, order: str) -> None:
    """So a drift in one direction cancels within a quad."""
    played: list[Block] = []

    async def one(state: str) -> Block:
        played.append(Block(state, 1.0, np.ones(3)))
        return played[-1]

    found = asyncio.run(run_quad("A", "B", number, one))

    assert "".join(one.state for one in played) == order
    places = {id(one): place for place, one in enumerate(played)}
    assert [(a.state, b.state) for a, b in found] == [("A", "B")] * 2
    assert all(abs(places[id(a)] - places[id(b)]) == 1 for a, b in found)
