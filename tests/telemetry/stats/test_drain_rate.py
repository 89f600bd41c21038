"""Retry-After follows from what the engine computed lately."""

from __future__ import annotations

from msgspec.structs import replace

from telemetry.facts.engine_records import EngineIdled, StepRecorded
from telemetry.stats.drain_rate import LONGEST_S, WINDOW_NS, DrainRate
from tests.support.worlds.facts import MS, prefill, step

SECOND_MS = 1000


def computed(begin_ms: int, end_ms: int, waiting_tokens: int) -> StepRecorded:
    """A step with the eight tokens of a prompt."""
    found = step(begin_ms, begin_ms, end_ms, [prefill(tokens=8)])
    return replace(found, waiting_tokens=waiting_tokens)


def test_it_is_the_waiting_tokens_over_those_computed_in_a_second() -> None:
    rate = DrainRate()
    rate.on_facts([computed(0, 500, 0), computed(500, 1000, 160)])
    assert rate.retry_after_s == 10


def test_a_step_longer_than_the_window_is_counted_over_its_own_time() -> None:
    rate = DrainRate()
    long_ms = 2 * WINDOW_NS // MS
    rate.on_facts([computed(0, 500, 0), computed(500, 500 + long_ms, 8)])
    assert rate.retry_after_s == 20
    rate.on_facts([computed(500 + long_ms, 1000 + long_ms, 1_000_000)])
    assert rate.retry_after_s == LONGEST_S
    rate.on_facts([EngineIdled(0, 0, 0, 0, 0, 0)])
    assert rate.retry_after_s == 1
