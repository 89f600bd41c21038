"""A decision of the autopilot is a fact: in the journal, on spans, in the timeline."""

from __future__ import annotations

import json
from pathlib import Path

from dashboards.timeline.build import write_timeline
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.reasons import AutopilotDecision, AutopilotReason
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal, read_journal
from telemetry.traces.autopilot_events import EVENT, AutopilotEvents
from tests.support.worlds.piloted import started

DECIDED = AutopilotDecided(
    at_ns=5_000_000, number=3, decision=AutopilotDecision.KEPT,
    reason=AutopilotReason.PROMISE_KEPT, limits={"max_num_seqs": 16, "order": "slo"},
    was={"max_num_seqs": 2, "order": "arrival"}, before={"chat": 0.4}, promised={"chat": 0.97},
    measured={"chat": 0.95}, why="what was promised has come; chat 95 % good",
)  # fmt: skip


def test_it_is_an_event_of_the_requests_that_lived_through_it() -> None:
    events = AutopilotEvents()
    events.on_facts([started(), DECIDED])

    (event,) = events.between(0, 10_000_000)
    assert event.name == EVENT
    assert event.attributes["phasescope.autopilot.decision"] == "kept"
    assert event.attributes["phasescope.autopilot.limits"] == "max_num_seqs,order"
    assert events.between(0, 5_000_000) == []


def test_it_survives_the_journal_and_is_drawn_in_the_timeline(tmp_path: Path) -> None:
    path = tmp_path / "one.journal"
    write_journal(path, [started(), DECIDED], MonotonicClock(), "test")
    assert DECIDED in list(read_journal(path))
    write_timeline(open_journal(path), tmp_path / "trace.json")

    trace = json.loads((tmp_path / "trace.json").read_text())
    (drawn,) = [one for one in trace["traceEvents"] if one["name"] == "autopilot: kept"]
    assert drawn["args"]["promised"] == {"chat": 0.97}
