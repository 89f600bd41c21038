"""A fleet's gateway in the console: faults of its fleet are told as its own findings are."""

from __future__ import annotations

from typing import Any

import msgspec
from markupsafe import Markup

from dashboards.console.markup import incidents
from dashboards.console.markup.findings import findings, who_of
from dashboards.console.model.incidents import incidents_of
from dashboards.console.model.moments import Moment
from diagnosis.routed.evidence import Routed
from diagnosis.routed.symptoms import (
    FleetAbstention,
    FleetExclusion,
    FleetFault,
    FleetNeed,
    FleetSymptom,
    RoutedVerdict,
)
from diagnosis.symptoms import Finding
from tests.dashboards.console.samples import (
    CLOCK,
    HOSTILE,
    SECOND,
    finding,
    history,
    index,
    line,
    moment,
    slo,
)
from tests.dashboards.console.test_console_markup import Checked, page


def fault(**fields: Any) -> FleetFault:
    values: dict[str, Any] = {
        "symptom": FleetSymptom.REPLICA_SLOW,
        "claim": "steps of e2 take twice the others'",
        "harm_ms": 700.0,
        "evidence": (Routed.STEP_FACTOR.of(2.0),),
        "culprits": ("e2",),
        "victims": ("chat-0",),
        "excluded": (FleetExclusion(FleetSymptom.HOT_PREFIX, "no prefix is asked for more"),),
        "intervention": "drain e2",
        "onset_ns": 900 * SECOND,
        "runbook": "runbooks/fleet/replica_slow.md",
        **fields,
    }
    return FleetFault(**values)


def gateway(at_ns: int, *faults: FleetFault, found: tuple[Finding, ...] = ()) -> Moment:
    """A moment of a gateway of three engines."""
    missing = FleetAbstention(FleetSymptom.KV_CORRUPT, (FleetNeed.KV_TRANSFERS.value,))
    of_fleet = RoutedVerdict(faults, 3, 10 * SECOND, True, (missing,))
    now = moment(at_ns, *found, slo=slo())
    is_wrong = bool(faults or found)
    diagnosis = msgspec.structs.replace(
        now.diagnosis,
        fleet=of_fleet,
        healthy=not is_wrong,
        verdict="fault" if is_wrong else "healthy",
    )
    return Moment(now.snapshot, diagnosis)


def test_a_fault_of_the_fleet_is_the_verdict_where_nothing_else_is_wrong() -> None:
    shown = page(gateway(1, fault()))

    assert shown.text.startswith("Replica slow steps of e2 take twice the others' Guilty: e2")
    assert "Cannot tell" not in shown.text
    for words in (
        "Replica slow of the fleet",
        "700 ms of requests' time lost since 00:15:00 UTC",
        "What would remove it: drain e2.",
        Routed.STEP_FACTOR.meaning,
        "Hot prefix : no prefix is asked for more",
        "runbooks/fleet/replica_slow.md",
        "Not judged of the fleet: kv_corrupt (needs facts of KV",
    ):
        assert words in shown.text, words
    assert "/requests/chat-0" in shown.links
    assert not any("e2" in one for one in shown.links)


def test_a_finding_of_the_server_comes_first_and_counts_those_of_the_fleet() -> None:
    shown = page(gateway(1, fault(), found=(finding(),)))

    assert shown.text.startswith("Prefill interference")
    assert "others' prompts took 5,000 ms (1 more below)" in shown.text
    own, of_fleet = (shown.text.index(one) for one in ("confidence 0.92", "of the fleet"))
    assert own < of_fleet


def test_a_fleet_in_which_nothing_is_wrong_is_said_to_be_watched() -> None:
    shown = page(gateway(1))

    assert shown.text.startswith("Healthy")
    assert "The fleet of 3 engines: nothing found in the last 10 s." in shown.text


def test_incidents_of_the_fleet_are_listed_and_shown_as_they_were() -> None:
    known = history(
        *(gateway(at * SECOND, *([fault()] if at > 950 else [])) for at in range(900, 1000))
    )
    found = incidents_of(known.moments)
    who = who_of(index(line(0)))

    listed = Checked(incidents.listing(found, CLOCK, who, 999 * SECOND))
    state = Checked(incidents.state(known.moments[-1], None, who, CLOCK))

    assert "Replica slow 00:15:00 1 min 39 s holds 700 ms e2 steps of e2" in listed.text
    assert Checked(incidents.strip(known, found, 950 * SECOND))
    assert "Findings then" in state.text
    assert incidents.when(known.moments[-1], CLOCK).endswith("fault: replica slow")


def test_text_from_nodes_is_text() -> None:
    hostile = fault(claim=HOSTILE, culprits=(HOSTILE,), victims=(HOSTILE,), intervention=HOSTILE)
    shown = findings(gateway(0, hostile).diagnosis, None, who_of(index(line(0))), CLOCK)

    assert Checked(shown)
    assert Checked(incidents.listing(incidents_of([gateway(0, hostile)]), CLOCK, Markup.escape, 0))
    assert "<script" not in shown
