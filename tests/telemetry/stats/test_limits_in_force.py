"""Where a change of limits is seen: everybody who reads limits follows it."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.sdk.resources import Resource
from rich.console import Console

from dashboards.monitor.screen import screen
from dashboards.timeline.build import write_timeline
from diagnosis.detection.aggregator import Aggregator
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.facts.clock import ManualClock, WallAnchor
from telemetry.facts.engine_records import EngineStarted, LimitsSet
from telemetry.facts.limits import changed_names, limits_at_start
from telemetry.facts.records import EngineDied
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from telemetry.stats.histograms import Histograms
from telemetry.stats.snapshot import Snapshot
from telemetry.stats.window_fold import WindowFold
from telemetry.traces.limit_events import LimitEvents
from telemetry.traces.spans import SpanBuilder
from tests.support.servers.perfetto_check import checked
from tests.support.worlds.facts import MS
from tests.support.worlds.journal_facts import saved, small, turn_over
from tests.support.worlds.timelines import finished

STARTED = EngineStarted(
    0, 77, "model", "native-cpu", "float32", 100, 16, 512, 8, 64, True, 1, 100, 1000
)


def limits_set(at: int, **fields: Any) -> LimitsSet:
    begun = limits_at_start(STARTED)
    limits = msgspec.structs.replace(begun, **fields)
    return LimitsSet(at * MS, 3, limits, changed_names(begun, limits), "ann", "a flood")


def snapshot_of(*facts: Any) -> Snapshot:
    fold = WindowFold(Histograms())
    fold.on_facts(facts)
    return fold.snapshot(100 * MS)


def shown(snapshot: Snapshot) -> str:
    console = Console(width=110, height=34, file=io.StringIO(), record=True)
    console.print(screen(snapshot, Diagnosis((), 0, 7, True), "URL", 110, 34))
    return console.export_text()


def test_the_snapshot_has_the_limits_in_force_and_what_they_were_at_the_start() -> None:
    changed = limits_set(5, max_seqs=3, budget_tokens=32)
    snapshot = snapshot_of(STARTED, changed)
    assert (snapshot.max_seqs, snapshot.budget_tokens) == (3, 32)
    assert {n: (c.value, c.at_start) for n, c in snapshot.limits_changed.items()} == {
        "max_batched_tokens": (32, 64),
        "max_num_seqs": (3, 8),
    }
    again = snapshot_of(STARTED, changed, limits_set(6))
    assert (again.max_seqs, again.limits_changed) == (8, {})
    other = msgspec.structs.replace(STARTED, at_ns=8 * MS, max_seqs=5)
    restarted = snapshot_of(STARTED, changed, EngineDied(7 * MS, -9, "", 0), other)
    assert (restarted.max_seqs, restarted.limits_changed) == (5, {})


def test_the_monitor_has_a_line_for_limits_only_when_they_differ() -> None:
    assert " limits" not in shown(snapshot_of(STARTED))
    changed = limits_set(5, max_seqs=3, auto_budget=True, tenant_weights={"a": 2.0})
    text = shown(snapshot_of(STARTED, changed))
    assert "max_num_seqs 3 (started with 8)" in text
    assert "max_batched_tokens auto (started with 64)" in text
    assert len(text.splitlines()) == len(shown(snapshot_of(STARTED)).splitlines())


def test_the_timeline_marks_a_change_with_who_and_why(tmp_path: Path) -> None:
    facts = [STARTED, limits_set(5, max_seqs=3)]
    write_journal(tmp_path / "j", facts, ManualClock(), "request")
    write_timeline(open_journal(tmp_path / "j"), tmp_path / "trace.json.gz")
    marks = checked(tmp_path / "trace.json.gz").phase("i")
    (mark,) = [one for one in marks if one["name"] == "limits changed"]
    assert mark["args"] == {"changed": {"max_num_seqs": 3}, "by": "ann", "why": "a flood"}


def test_a_request_that_was_live_has_an_event_on_its_root_span() -> None:
    timeline = finished()
    begin_ns, end_ns = timeline.accepted.at_ns, timeline.ended.at_ns
    events = LimitEvents()
    before = msgspec.structs.replace(limits_set(0, max_seqs=2), at_ns=begin_ns - 1)
    during = msgspec.structs.replace(before, at_ns=begin_ns + 1, changed=("max_num_seqs", "order"))
    events.on_facts([before, during, msgspec.structs.replace(before, at_ns=end_ns)])
    ids = iter(range(1, 100))
    builder = SpanBuilder(Resource({}), lambda: f"{next(ids):016x}")
    root, *others = builder.build(
        timeline, WallAnchor(0, 0), span_events=events.between(begin_ns, end_ns)
    )
    assert [(event.name, dict(event.attributes or {})) for event in root.events] == [
        (
            "phasescope.limits_changed",
            {
                "phasescope.limits.changed": "max_num_seqs,order",
                "phasescope.limits.by": "ann",
                "phasescope.limits.why": "a flood",
            },
        )
    ]
    assert all(event.name != root.events[0].name for span in others for event in span.events)


def test_the_diagnosis_knows_which_limits_were_in_force_when() -> None:
    """A baseline of the time before a change must not have the limits of after it."""
    aggregator = Aggregator()
    aggregator.on_facts([STARTED, limits_set(5, max_seqs=3), limits_set(9, max_seqs=4)])
    now = aggregator.started
    assert now is not None
    assert (now.max_seqs, now.at_ns) == (4, 0)
    seen = [aggregator.started_at(at * MS) for at in (0, 4, 5, 8, 9, 50)]
    assert [one.max_seqs for one in seen if one is not None] == [8, 8, 3, 3, 4, 4]


def test_the_journal_carries_the_last_limits_of_the_engine_that_runs(tmp_path: Path) -> None:
    journal, clock = small()
    last = limits_set(9, max_seqs=4)
    journal.on_facts([STARTED, limits_set(5, max_seqs=3), last])
    turn_over(journal, clock)
    assert carried(tmp_path / "one", journal.frames("request")) == [STARTED, last]
    # that the engine died is lost
    other = msgspec.structs.replace(STARTED, at_ns=40_000 * MS, pid=78)
    journal.on_facts([other])
    turn_over(journal, clock)
    assert carried(tmp_path / "two", journal.frames("request")) == [other]


def carried(path: Path, frames: Iterable[bytes]) -> list[object]:
    return list(open_journal(saved(path, frames)).carried)
