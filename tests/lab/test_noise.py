"""Noise of iterations: drawn and recorded."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from lab.replay.noise import STALL, Disturbance, DrawnNoise, NoNoise, RecordedNoise
from tests.support.worlds.replayed import close, disturbed


def test_recorded_noise_has_a_stall_at_its_recorded_time() -> None:
    stall = Disturbance(200, 1000, 7.0, 900)
    calm = [Disturbance(at, 1000, 1.0, 5) for at in (100, 300)]
    noise = RecordedNoise([calm[0], stall, calm[1]])
    met = [at for at in (50, 149, 151, 200, 249, 251, 900) if noise.at(at, 1000) == stall]
    assert met == [151, 200, 249]
    assert NoNoise().at(5, 1) is RecordedNoise([]).at(5, 1) is DrawnNoise([], 1).at(5, 1) is None


def test_noise_is_drawn_from_iterations_of_a_similar_cost() -> None:
    short = [Disturbance(at, 1000, 3.0, 5) for at in range(0, 100, 2)]
    long = [Disturbance(at, 90_000, 1.1, 5) for at in range(1, 100, 2)]
    noise = DrawnNoise(sorted([*short, *long]), 1)
    met = [noise.at(0, cost_ns) for cost_ns in (900, 95_000) for _ in range(99)]
    assert [one.ratio for one in met if one] == pytest.approx([3.0] * 99 + [1.1] * 99)


def test_few_iterations_with_most_of_the_time_have_bins_of_their_own() -> None:
    known = [
        Disturbance(at, *{0: (100_000, 1.0), 30: (400_000, 1.5)}.get(at % 60, (1000, 1.2)), 5)
        for at in range(6000)
    ]
    noise = DrawnNoise(known, 1)
    met = [noise.at(0, cost_ns) for cost_ns in (100_000, 400_000) for _ in range(99)]
    assert [one.ratio for one in met if one] == pytest.approx([1.0] * 99 + [1.5] * 99)


def bursts() -> list[Disturbance]:
    """Prompts in bursts, each first one slow, among turns that decode; dear ones are quick."""
    draw = random.Random(7)
    found = list[tuple[int, float]]()
    for _ in range(150):
        found += [(draw.randint(900, 1100), 1.0) for _ in range(draw.randint(5, 60))]
        for number in range(draw.randint(1, 12)):
            cost_ns = draw.choice([20_000, 40_000])
            found.append((cost_ns, (1.5 if number == 0 else 0.9) + 4000 / cost_ns))
    return [Disturbance(at, cost_ns, ratio, 5) for at, (cost_ns, ratio) in enumerate(found)]


def test_drawn_noise_has_the_recorded_sum() -> None:
    known = bursts()
    took_ns = sum(one.span_ns(one.cost_ns) for one in known)
    drawn_ns = [
        sum(met.span_ns(one.cost_ns) for one in known if (met := noise.at(0, one.cost_ns)))
        for noise in (DrawnNoise(known, seed) for seed in range(30))
    ]
    assert mean(drawn_ns) == pytest.approx(took_ns, rel=0.005)


def test_a_drawn_stall_has_its_recorded_length() -> None:
    known = bursts()
    place = max(range(len(known)), key=lambda place: known[place].cost_ns)
    known[place] = known[place]._replace(ratio=30.0)
    noise = DrawnNoise(known, 5)
    met = [noise.at(0, known[place].cost_ns) for _ in range(9000)]
    assert {one.ratio for one in met if one and one.ratio > STALL} == {30.0}


def test_drawn_noise_has_the_recorded_spread() -> None:
    known = disturbed(0.8, 1.0, 1.2, 2.0)
    noise = DrawnNoise(known, 3)
    drawn = [one.ratio for _ in range(20_000) if (one := noise.at(0, 1000)) is not None]
    assert set(drawn) == {one.ratio for one in known}
    assert close(mean(drawn), mean(one.ratio for one in known), 0.05)
