"""Of which time a baseline is learnt."""

from __future__ import annotations

import pytest

from diagnosis.verdicts.classifier import Diagnoser
from lab.twins.registry import build_twin
from telemetry.facts.host_records import HostSampled
from telemetry.facts.records import EngineDied, Fact, fact_ns

_HALF_A_SECOND_NS = 500_000_000


def idle(after_ns: int, seconds: int) -> list[Fact]:
    """What is recorded of a server that nobody asks for anything."""
    return [
        HostSampled(after_ns + number * _HALF_A_SECOND_NS, _HALF_A_SECOND_NS)
        for number in range(1, 2 * seconds + 1)
    ]


@pytest.mark.parametrize("dies", [False, True])
def test_of_a_server_without_requests_no_baseline_is_learnt(dies: bool) -> None:
    facts = build_twin("healthy_light", 1).facts
    end_ns = max(fact_ns(fact) for fact in facts)
    diagnoser = Diagnoser()
    diagnoser.on_facts(facts)
    diagnoser.on_facts(idle(end_ns, 4))  # what was before them is learnt in these
    known = diagnoser.reference()
    assert known is not None

    died: list[Fact] = [EngineDied(end_ns + 5 * 10**9, None, "it was stopped", 1)] if dies else []
    diagnoser.on_facts(died)
    diagnoser.on_facts(idle(end_ns + 5 * 10**9, 40))

    assert diagnoser.reference() is known
    assert known.requests_per_s > 0.5
