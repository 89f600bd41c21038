"""Requests that are late everywhere are kept together, and hold up no others."""

from __future__ import annotations

from typing import Any

import msgspec

from service.fleet.routing.router import FleetFact
from service.fleet.routing.settings import RoutingSettings
from telemetry.facts.fleet.routing_records import (
    RouterStarted,
)
from tests.fleet.routing.walks import MS, Fleet

TOKENS_A_SECOND = 10_000
"""Of a prompt, on the engines here while they do nothing else."""


def _busy(*waits_s: float) -> Fleet:
    """Engines whose prompts take so long."""
    fleet = Fleet(len(waits_s))
    for number, wait_s in enumerate(waits_s):
        fleet.report(f"e{number}", prompt_tokens=int(wait_s * TOKENS_A_SECOND))
    return fleet


LONG: dict[str, Any] = {"tokens": 4000, "ttft_target_ns": 500 * MS}
SHORT: dict[str, Any] = {"tokens": 10, "ttft_target_ns": 500 * MS}


def test_requests_that_are_late_everywhere_go_together_to_where_one_waits_already() -> None:
    """One that still can be in time finds room elsewhere."""
    fleet = _busy(0.25, 2.0, 0.26, 1.0)

    assert {fleet.send(fleet.request(**LONG)) for _ in range(4)} == {"e1"}
    assert {fleet.send(fleet.request(**SHORT)) for _ in range(2)} == {"e0", "e2"}


def test_a_prompt_that_is_just_in_time_does_not_go_where_it_ends_first_but_is_late() -> None:
    """An engine with many decodes ends it later, and begins it sooner."""
    fleet = _busy(0.0, 0.17, 0.171)
    fleet.report("e0", running=20, decode_rows=20, context_tokens=20 * 500)

    assert fleet.send(fleet.request(tokens=3000, ttft_target_ns=500 * MS)) == "e0"
    assert fleet.send(fleet.request(tokens=3000)) == "e1"


def test_a_late_request_does_not_wait_much_longer_than_it_had_to() -> None:
    fleet = _busy(0.25, 25.0, 0.26)

    assert fleet.send(fleet.request(**LONG)) != "e1"


def test_a_prompt_that_is_late_by_its_own_length_goes_where_it_ends_first() -> None:
    fleet = _busy(0.01, 1.0, 0.1)

    assert fleet.send(fleet.request(**LONG)) == "e0"


def test_a_late_request_goes_to_a_holder_of_its_prefix_where_prompts_are_shared() -> None:
    """Though another engine is free sooner: to compute the prompt anew makes others late."""
    fleet, anchors = Fleet(3), tuple(range(60))
    shared: dict[str, Any] = {"tokens": 4000, "anchors": anchors, "ttft_target_ns": 500 * MS}
    holder = fleet.send(fleet.request(**shared))
    for _ in range(40):
        fleet.send(fleet.request(**shared))
    for name in ("e0", "e1", "e2"):
        busy_s = 2.0 if name == holder else 0.9
        fleet.report(name, prompt_tokens=int(busy_s * TOKENS_A_SECOND))
    fleet.router._book.prefixes.replace(fleet.router._book.by_name[holder].index, anchors)
    for name in {"e0", "e1", "e2"} - {holder}:
        fleet.router._book.prefixes.replace(fleet.router._book.by_name[name].index, ())

    assert fleet.send(fleet.request(**shared)) == holder


def test_a_late_request_does_not_go_from_who_holds_a_part_of_it_to_a_longer_wait() -> None:
    """Though prompts share little: what is computed twice makes others late."""
    fleet, anchors = _busy(2.0, 1.0, 0.9), tuple(range(24))
    fleet.router._book.prefixes.add(fleet.router._book.by_name["e1"].index, anchors)

    assert fleet.send(fleet.request(**LONG)) == "e0"
    assert fleet.send(fleet.request(**LONG, anchors=anchors)) == "e1"


def test_a_request_without_a_target_goes_where_it_ends_first() -> None:
    assert _busy(0.4, 2.0, 0.41).send() == "e0"


def test_choices_of_a_router_that_did_not_keep_late_requests_apart_come_out_the_same() -> None:
    """Facts of an earlier release do not have the setting."""
    started = RoutingSettings(late_apart_ns=1).started(0)
    fields = msgspec.json.decode(msgspec.json.encode(started))
    assert fields.pop() == 1
    (old,) = msgspec.json.decode(msgspec.json.encode([fields]), type=list[FleetFact])

    assert isinstance(old, RouterStarted)
    assert RoutingSettings.of(old).late_apart_ns == 0
