"""Steps of many rows: every fold counts each row once, as it does where few decode together."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from random import Random

from lab.simulation.scenarios import small_limits
from lab.simulation.workload import Mix, bursts
from lab.simulation.world import Scenario, World
from telemetry.facts.records import Fact, fact_ns
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import Measure, Measured, RequestTimeline
from tests.support.worlds.ledger_world import gateway_facts, run_fold, steps_of
from tests.telemetry.requests.test_ledger import (
    ledgers,
    parts_sum_to_its_time_and_none_is_negative,
    payments_between_requests_are_those_of_the_harm_ledger,
    requests_without_a_common_step_take_none_of_its_time,
)

REQUESTS, ROWS = 120, 48


@cache
def crowded() -> list[Fact]:
    """Sixty requests at once, twice, on an engine with 48 slots and blocks for all of them."""
    limits = small_limits(max_seqs=ROWS, blocks_total=2048, budget_tokens=128)
    arrivals = bursts(Mix(Random(3), 64), REQUESTS, REQUESTS // 2, 2_000_000_000)
    scenario = Scenario(name="crowded", seed=3, limits=limits, arrivals=tuple(arrivals))
    engine = list(World(scenario).run().facts)
    facts = sorted([*gateway_facts(engine, Random(3), 30_000_000), *engine], key=fact_ns)
    assert max(len(one.rows) for one in steps_of(facts)) == ROWS
    return facts


def test_each_request_has_the_tokens_of_its_rows_at_the_ends_of_their_steps() -> None:
    timelines: list[RequestTimeline] = []
    measured: list[Measured] = []
    PhaseFold([timelines.append], [measured.append]).on_facts(crowded())
    committed: defaultdict[int, list[int]] = defaultdict(list)
    for one in steps_of(crowded()):
        for row in one.rows:
            committed[row.seq_id] += [one.committed_ns] * row.sampled

    found = {s.seq_id: list(s.token_ns) for t in timelines for s in t.sequences if s.token_ns}
    assert len(found) > REQUESTS * 3 // 4
    assert found == {seq_id: stamps for seq_id, stamps in committed.items() if stamps}
    gaps = sum(len(stamps) - 1 for stamps in found.values())
    assert sum(one.measure is Measure.ITL for one in measured) == gaps


def test_each_account_is_whole_and_names_only_who_was_there() -> None:
    timelines, ledger_builder = run_fold(crowded())
    found, steps = ledgers(timelines), steps_of(crowded())

    for timeline in timelines:
        ledger = found[timeline.accepted.request_id]
        parts_sum_to_its_time_and_none_is_negative(timeline, ledger)
        requests_without_a_common_step_take_none_of_its_time(timeline, ledger, steps)
    payments_between_requests_are_those_of_the_harm_ledger(found, ledger_builder)
