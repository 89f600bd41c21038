"""What the console shows, before it is drawn."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dashboards.console.model.heat import cells_of, heat_of
from dashboards.console.model.incidents import incidents_of
from dashboards.console.model.link import Link, LinkState, notices
from dashboards.console.model.moments import KEPT_NS, History
from dashboards.console.model.recorded import moments_of
from dashboards.console.model.requests import MISSED, PAGE, Order, Query, RequestIndex
from dashboards.console.model.waterfall import waterfall_of
from dashboards.explain import Explained
from diagnosis.detection.tail_thresholds import INCIDENT_NS
from diagnosis.symptoms import Symptom
from telemetry.facts.clock import ManualClock
from telemetry.journal.journal import Journal
from telemetry.journal.journal_reader import open_journal
from telemetry.requests.account import Part
from telemetry.requests.timelines import describe
from tests.dashboards.console.samples import (
    SECOND,
    finding,
    history,
    index,
    line,
    moment,
    page,
    slo,
    victim,
)
from tests.support.worlds.journal_facts import request, saved, steps
from tests.support.worlds.timelines import finished


def test_a_history_forgets_what_is_too_old_and_begins_again_with_another_clock() -> None:
    known = history(*(moment(at * SECOND) for at in range(0, KEPT_NS // SECOND + 60, 10)))
    assert known.moments[0].at_ns == known.moments[-1].at_ns - KEPT_NS

    known.add(moment(3 * SECOND))  # the server's machine was started again

    assert [one.at_ns for one in known.moments] == [3 * SECOND]


def test_recorded_moments_come_before_the_polled_ones_and_no_time_is_there_twice() -> None:
    known = history(moment(10 * SECOND), moment(11 * SECOND))

    known.prepend([moment(8 * SECOND), moment(10 * SECOND), moment(12 * SECOND)])

    assert [one.at_ns // SECOND for one in known.moments] == [8, 10, 11]
    before = known.at(9 * SECOND)
    assert before is not None
    assert before.at_ns == 8 * SECOND
    assert known.at(0) == known.moments[0]
    assert History().at(0) is None


def test_a_series_is_thinned_and_keeps_the_newest_moment() -> None:
    known = history(*(moment(at * SECOND, waiting=at) for at in range(500)))

    points = known.series(lambda one: one.snapshot.waiting, 100 * SECOND, points=50)

    assert len(points) == 50
    assert points[-1] == (499 * SECOND, 499)


def test_an_incident_lasts_from_its_onset_until_it_was_last_found() -> None:
    """A short time without it is part of it, a long one ends it."""
    gap = INCIDENT_NS // SECOND
    times = [0, 1, 2, 2 + gap, 4 + 2 * gap]
    moments = [moment(at * SECOND, finding(onset_ns=at * SECOND)) for at in times]
    moments.insert(3, moment(3 * SECOND))

    first, second = incidents_of(moments)

    assert (first.begin_ns, first.end_ns) == (0, (2 + gap) * SECOND)
    assert (second.begin_ns, second.end_ns) == ((4 + 2 * gap) * SECOND, None)
    (over,) = incidents_of([*moments[:2], moment(3 * SECOND)])
    assert over.end_ns == 1 * SECOND


def test_two_symptoms_are_two_incidents_and_each_keeps_its_worst_finding() -> None:
    overload = finding(Symptom.QUEUE_OVERLOAD)
    found = incidents_of(
        [
            moment(950 * SECOND, finding(harm_ms=10.0), overload),
            moment(951 * SECOND, finding(harm_ms=90.0)),
            moment(952 * SECOND, finding(harm_ms=20.0)),
        ]
    )

    by_symptom = {one.symptom: one for one in found}
    assert by_symptom[Symptom.PREFILL_INTERFERENCE].finding.harm_ms == 90.0
    assert by_symptom[Symptom.QUEUE_OVERLOAD].end_ns == 950 * SECOND


def test_requests_are_found_by_part_of_an_id_class_tenant_verdict_and_value() -> None:
    known = index(
        line(0), line(1, tenant="blue"), line(2, slo_class="voice"), victim(3, "report-9")
    )

    def found(**fields: object) -> list[str]:
        query = msgspec.convert(fields, Query)
        return [one.request_id for one in known.search(query).lines]

    assert found() == ["chat-3", "chat-2", "chat-1", "chat-0"]
    assert found(text="t-2") == ["chat-2"]
    assert found(text="blu") == ["chat-1"]
    assert found(slo_class="voice") == ["chat-2"]
    assert found(verdict=MISSED) == ["chat-3"]
    assert found(measure="queue", low_ns=1_000_000, high_ns=3_000_000) == ["chat-2", "chat-1"]
    assert found(from_ns=2 * SECOND, to_ns=3 * SECOND) == ["chat-1"]
    assert found(order="queue") == ["chat-3", "chat-2", "chat-1", "chat-0"]
    assert found(order="late_token") == ["chat-3"]


def test_five_thousand_requests_are_paged_and_a_page_stays_while_more_end() -> None:
    known = RequestIndex()
    assert known.take(page(*(line(number) for number in range(5000))))
    second = known.search(Query(page=2))
    assert (second.found, second.pages, len(second.lines)) == (5000, 100, PAGE)

    known.take(page(line(5000)))

    again = known.search(Query(page=2, until=second.newest))
    assert again.lines == second.lines
    assert known.search(Query(page=10_000)).page == 101
    assert known.search(Query(order=Order.QUEUE)).lines[0].number == 5000


def test_the_oldest_requests_leave_and_a_restart_of_the_server_begins_anew() -> None:
    known = RequestIndex(kept=2)
    assert known.take(page(line(0), line(1), line(2)))
    assert known.get("chat-0") is None
    assert len(known) == 2

    assert not known.take(page(line(0), run_ns=6)), "its number was one of the old run"
    assert (len(known), known.next) == (0, 0)
    assert known.take(page(line(0), run_ns=6))
    assert known.next == 1


def test_a_culprit_knows_its_victims_worst_first() -> None:
    known = index(victim(0, "report-9", 5), line(1), victim(2, "report-9", 50), victim(3, "x", 70))

    assert [(one.request_id, ns) for one, ns in known.victims("report-9")] == [
        ("chat-2", 50),
        ("chat-0", 5),
    ]


def test_a_heatmap_counts_every_request_in_the_cell_of_its_time_and_latency() -> None:
    values_ms = (1, 20, 20, 3000)
    lines = [line(i, ttft_ns=ms * 1_000_000) for i, ms in enumerate(values_ms)]

    heat = heat_of(lines, "ttft", 0, 48 * SECOND)

    assert sum(heat.counts.values()) == len(lines)
    for one, ms in zip(lines, values_ms, strict=True):
        column = one.ended_ns // SECOND
        (row,) = [r for c, r in heat.counts if c == column]
        assert heat.edges_ns[row] <= ms * 1_000_000 < heat.edges_ns[row + 1]


@pytest.mark.parametrize("value_ns", [0, 1, 99_999, 100_000, 215_443, 10**9, 999_999_999, 10**13])
def test_every_latency_has_a_row(value_ns: int) -> None:
    heat = heat_of([line(0, ttft_ns=value_ns)], "ttft", 0, 10 * SECOND)

    assert sum(heat.counts.values()) == 1
    assert all(0 <= row < heat.rows for _, row in heat.counts)


def test_a_cell_of_the_matrix_has_percentiles_of_requests_and_the_target_of_its_class() -> None:
    lines = [line(i, ttft_ns=(i + 1) * SECOND // 10) for i in range(10)]

    cell = cells_of(lines, slo().classes, 0)["chat"]["ttft"]

    assert (cell.count, cell.p50_ns, cell.p95_ns) == (10, SECOND // 2, SECOND)
    assert cell.target_ns == SECOND // 2
    assert cell.ratio == 2
    assert cells_of(lines, slo().classes, 11 * SECOND) == {}


def explained_of(**changes: object) -> Explained:
    described = {**describe(finished()), **changes}
    return msgspec.json.decode(msgspec.json.encode(described), type=Explained)


def test_a_waterfall_begins_with_the_request_and_covers_it() -> None:
    fall = waterfall_of(explained_of())

    phases = [bar for bar in fall.bars if bar.kind == "phase"]
    assert phases[0].begin_ns == 0
    assert sum(bar.ns for bar in phases) == fall.whole_ns
    assert [bar.label for bar in fall.bars if bar.kind == "preempted"] == ["preempted"]
    assert len([bar for bar in fall.bars if bar.kind == "chunk"]) == 3


def test_the_takers_of_a_request_are_summed_over_the_parts_and_causes_are_none_of_them() -> None:
    entries = [
        {"state": "run", "part": "co_prefill", "ns": 30, "payer": "a"},
        {"state": "wait", "part": "co_prefill", "ns": 40, "payer": "b", "reason": "budget"},
        {"state": "wait", "part": "co_mask", "ns": 5, "payer": "a"},
        {"state": "run", "part": "host_stall", "ns": 99, "payer": "gc"},
    ]
    ledger = {"sum_ns": 1, "residue_ns": 0, "unattributed_ns": 0, "entries": entries}

    fall = waterfall_of(explained_of(ledger=ledger))

    assert [(one.request_id, one.ns) for one in fall.takers] == [("b", 40), ("a", 35)]
    assert fall.takers[1].parts == {Part.CO_PREFILL: 30, Part.CO_MASK: 5}


def test_a_request_in_flight_has_no_bars() -> None:
    running = explained_of(phases=[], sequences=[], outcome="running", reason=None)

    assert waterfall_of(running).bars == ()


def test_notices_say_what_is_wrong_with_the_link_or_the_server() -> None:
    def said(link: Link, **fields: object) -> str:
        return " ".join(one.text for one in notices(link, moment(0, **fields), 9 * SECOND, ""))

    up = Link(state=LinkState.UP)
    assert said(up) == ""
    assert "not ready" in said(up, ready=False)
    assert "spans" in said(up, folds_detached=("spans",))
    down = Link(state=LinkState.DOWN, since_ns=2 * SECOND, why="refused")
    assert "No answer for 7 s; what you see is from before. refused." in said(down)
    assert "asks for its debug key" in said(Link(state=LinkState.WANTS_KEY))
    assert "does not accept" in said(Link(state=LinkState.WANTS_KEY, had_key=True))


def test_the_recorder_gives_the_moments_from_before_the_console(tmp_path: Path) -> None:
    """With the batch, the load and the verdict of each."""
    clock = ManualClock()
    journal = Journal(clock)
    facts = [*request("r1", 1, 0), *steps(600)]  # six seconds
    journal.on_facts(facts)
    clock.advance(7 * SECOND)
    path = saved(tmp_path / "kept.journal", journal.frames("request"))

    moments = list(moments_of(open_journal(path), every_ns=SECOND))

    assert [one.at_ns // SECOND for one in moments] == [1, 2, 3, 4, 5, 7]
    assert moments[0].snapshot.grid[0].request_id == "r1"
    assert moments[-1].snapshot.steps_total == 600
    assert {one.diagnosis.verdict for one in moments} == {"healthy"}
