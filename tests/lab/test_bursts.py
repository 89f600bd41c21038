"""A burst that drains is no fault; one that does not drain is overload."""

from __future__ import annotations

from random import Random

import pytest

from diagnosis.verdicts.classifier import Diagnoser
from lab.twins.simulate import simulate
from lab.twins.simulated_run import START_NS, SimulatedRun
from lab.twins.traffic import Setting
from telemetry.facts.records import fact_ns
from tests.support.worlds.twins.cases import SECOND

pytestmark = pytest.mark.long


def said_of_burst(requests: int, seed: int, at_s: float = 6.0) -> tuple[set[str], set[str]]:
    """Symptoms and verdicts of a run with `requests` more requests within 50 ms, before there is a
    baseline."""
    draw = Random(f"burst/{seed}")
    setting = Setting.drawn(draw)
    setting.load = 0.3
    run = SimulatedRun.baseline(setting, f"burst/{seed}")
    begin_ns = START_NS + int(at_s * SECOND)
    run.add(
        [setting.spec(draw, 0, begin_ns + n * SECOND // (20 * requests)) for n in range(requests)]
    )
    run.renumber()
    diagnoser, symptoms, words = Diagnoser(), set[str](), set[str]()
    for fact in simulate(run):
        diagnoser.on_facts([fact])
        if fact_ns(fact) < begin_ns + 14 * SECOND:
            said = diagnoser.diagnosis()
            symptoms |= {finding.symptom.value for finding in said.findings}
            words.add(said.verdict)
    return symptoms, words


@pytest.mark.parametrize(("requests", "seed"), [(16, 0), (24, 1), (24, 3)])
def test_a_burst_that_drains_is_not_called_anything(requests: int, seed: int) -> None:
    """Neither a fault nor indeterminate, also when the alarm comes after the burst."""
    assert said_of_burst(requests, seed) == (set(), {"healthy"})


def test_a_burst_that_does_not_drain_for_long_is_overload() -> None:
    """So many that the last waits for long beyond what is promised."""
    symptoms, _ = said_of_burst(400, 1)

    assert "queue_overload" in symptoms
