"""A slowness that nothing measured explains must exceed what the machine does by itself."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from diagnosis.detection.step_cost import SpeedDrift, fit_cost
from diagnosis.detection.steps import Steps
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.classifier import Diagnoser
from tests.diagnosis.test_engine_time import SECOND, baseline, charged, decodes
from tests.support.worlds.twins.cases import twin

S = Symptom


def drift(spread: float, stretches: int) -> SpeedDrift:
    """Of a machine whose stretches of a second differ by `spread` of 10 ms a step."""
    random, found = Random(7), SpeedDrift()
    cost = fit_cost(Steps(np.vstack([decodes(1, 10, 500), decodes(2, 10, 500)])))
    assert cost is not None
    for _ in range(stretches):
        found.add(Steps(decodes(2, 10 * (1 + random.gauss(0, spread)), 100)), cost)
    return found


def test_the_spread_is_that_of_the_stretches_once_there_are_many() -> None:
    assert drift(0.0, 0).spread == pytest.approx(0.04)
    assert drift(0.0, 100).spread < 0.015
    assert drift(0.08, 200).spread == pytest.approx(0.08, rel=0.2)


def test_a_few_steps_say_nothing_of_the_speed() -> None:
    found = SpeedDrift()
    cost = baseline().cost
    assert cost is not None
    found.add(Steps(decodes(2, 50, 8)), cost)

    assert found.spread == SpeedDrift().spread


@pytest.mark.parametrize(
    ("speed_spread", "slow_ms", "is_named"),
    [
        (0.02, 11.8, True),  # a steady machine
        (0.08, 11.8, False),  # one whose neighbours take as much now and then
        (0.08, 13.0, True),
        (0.30, 13.0, True),  # so much is a fault wherever it lasts
    ],
)
def test_a_machine_must_be_slower_than_it_is_by_itself(
    speed_spread: float, slow_ms: float, is_named: bool
) -> None:
    found = charged(decodes(2, slow_ms, 1600), speed_spread=speed_spread)

    lost_ns = found.decoding_ns[S.THROTTLED] + found.decoding_ns[S.MEMORY_BANDWIDTH]
    assert (lost_ns > 2 * SECOND) == is_named
    assert lost_ns >= 0


def learnt(name: str, mechanism: str) -> float:
    """The spread at the end of a simulated server's life; its machine is steady but for a fault."""
    diagnoser = Diagnoser()
    diagnoser.on_facts(twin(name, mechanism).facts)
    reference = diagnoser.reference()
    assert reference is not None
    return reference.speed_spread


def test_a_steady_machine_is_learnt_to_be_steady_and_a_fault_is_no_variation() -> None:
    healthy, faulty = learnt("healthy_light", "poisson"), learnt("memory_bandwidth", "stream")

    assert healthy < SpeedDrift().spread
    assert faulty < SpeedDrift().spread


def test_a_stretch_with_a_fault_that_ended_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnoser = Diagnoser()
    diagnoser.on_facts(twin("healthy_light", "poisson").facts)
    learner, compared = diagnoser._learner, list[int]()
    monkeypatch.setattr(learner._speed, "add", lambda steps, cost: compared.append(len(steps)))
    assert learner.span_ns is not None
    end_ns = learner.span_ns[1]
    learner._compare_speed(end_ns + 3 * SECOND)
    learner.exclude_until(end_ns + SECOND)
    learner._compare_speed(end_ns + 3 * SECOND)

    assert len(compared) == 1
