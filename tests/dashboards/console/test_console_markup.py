"""The console's pages as HTML: what they say, and that nothing from outside becomes markup."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser

import msgspec
import pytest
from markupsafe import Markup

from dashboards.console.markup import batch, incidents, latency, limits, overview, requests
from dashboards.console.markup.charts import cells_in_words, line_chart, step_cells
from dashboards.console.markup.findings import findings, who_of
from dashboards.console.markup.html import href, tag
from dashboards.console.markup.overview import Overview
from dashboards.console.markup.waterfall import render as render_request
from dashboards.console.markup.words import Clock, ms, percent, span
from dashboards.console.model.heat import cells_of
from dashboards.console.model.incidents import incidents_of
from dashboards.console.model.moments import Moment
from dashboards.console.model.requests import Order, Query
from dashboards.console.model.waterfall import waterfall_of
from dashboards.console.model.whatif import root_answer
from diagnosis.evidence import Measurement
from telemetry.facts.limits import LimitInForce, LimitsChanged, LimitsView, SetBy
from telemetry.requests.request_list import Taker
from telemetry.stats.snapshot import Batch, GridRow
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
    victim,
)
from tests.dashboards.console.test_console_model import explained_of

VOID = {"input", "br", "hr", "rect", "line", "circle", "path", "polyline"}


class Checked(HTMLParser):
    """Every element is closed in order; texts and links are kept."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(markup)
        assert self.open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if tag == "a" and name == "href"]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page(now: Moment, **fields: object) -> Checked:
    known = index(line(0), victim(1, "report-1"))
    view = Overview(now, history(moment(0), now), known, None, CLOCK)
    return Checked(overview.render(msgspec.structs.replace(view, **fields) if fields else view))


def test_a_healthy_server_says_so_first_with_goodput_queue_cache_and_budget() -> None:
    shown = page(moment(1, slo=slo(good=100, burn=0.0)))

    assert shown.text.startswith("Healthy")
    for words in ("100 %", "2 waiting", "25 %", "512 tokens a step", "80 output tokens/s",
                  "640 tokens wait, 3 of 64 run", "In flight: 1", "live-1"):  # fmt: skip
        assert words in shown.text, words


def test_a_fault_says_what_it_is_and_links_the_guilty_request_in_the_first_line() -> None:
    shown = page(moment(1, finding(), slo=slo()))

    assert shown.text.startswith("Prefill interference others' prompts took 5,000 ms")
    assert shown.links[0] == "/requests/report-1"
    assert "10.0" in shown.text
    assert "Time that decoding" not in shown.text
    assert Measurement.CO_PREFILL.meaning in shown.text
    assert "Host stall : the loop did not stand still" in shown.text
    assert "since 00:15:00 UTC" in shown.text


def test_a_culprit_that_is_a_tenant_leads_to_its_requests() -> None:
    known = index(line(0))
    shown = Checked(findings(moment(0, finding()).diagnosis, None, who_of(known), CLOCK))

    assert "/requests?tenant=red" in shown.links
    assert "/requests/report-1" in shown.links


def test_what_a_replay_promises_stands_with_the_finding_it_is_about() -> None:
    root = root_answer(
        {
            "promises": {"prefill_interference": "turn chunked prefill on: itl 60 % less"},
            "window": 1,
        }
    )
    shown = Checked(findings(moment(0, finding()).diagnosis, root, who_of(index(line(0))), CLOCK))

    assert "What if: turn chunked prefill on: itl 60 % less" in shown.text
    assert root_answer({"state": "nothing is wrong"}).promises == {}


def test_a_verdict_that_cannot_be_told_gives_its_reason() -> None:
    now = moment(1)
    unsure = msgspec.structs.replace(now.diagnosis, verdict="indeterminate", why="facts are lost")

    assert "Cannot tell facts are lost" in page(Moment(now.snapshot, unsure)).text


def test_the_batch_shows_what_each_sequence_did_in_words_too() -> None:
    rows = (GridRow("chat-7", 7, "running", 33, 5, "wPDDDx"),)
    found = Batch(at_ns=0, step_ids=(10, 15), total=300, rows=rows, step_tokens=40,
                  step_budget_tokens=512)  # fmt: skip
    markup = batch.render(found, moment(0).snapshot)
    shown = Checked(markup)

    assert "299 more sequences are not shown" in shown.text
    assert "steps 10 to 15" in shown.text
    assert "The last step computed 40 of 512 tokens" in shown.text
    assert "/requests/chat-7" in shown.links
    assert "wait 1, prefill 1, decode 3, preempted 1" in markup
    assert "Nothing has run" in Checked(batch.render(None, moment(0, grid=()).snapshot)).text


def test_kinds_of_cells_differ_in_form_and_not_only_in_colour() -> None:
    forms = {kind: step_cells(kind).split('d="')[1].split('"')[0] for kind in "PDw"}

    assert len(set(forms.values())) == 3
    assert cells_in_words(" ") == "no step"
    assert cells_in_words("PDPDPDPD") == "prefill 4, decode 4"


def test_the_explorer_keeps_what_was_asked_in_its_form_and_its_links() -> None:
    known = index(*(line(number) for number in range(120)))
    query = requests.query_of({"slo_class": "chat", "page": "2", "order": "slowest", "x": "y"})
    assert query == Query(slo_class="chat", page=2, order=Order.E2E)

    shown = Checked(requests.render(known.search(query), query, known, CLOCK))
    form = Checked(requests.form(query, known))

    assert "120 requests of the last 120 that ended, slowest first" in shown.text
    assert "/requests?slo_class=chat&order=slowest&until=119" in shown.links
    assert "page 2 of 3" in shown.text
    assert "red" in form.text
    assert requests.query_of({"page": "none", "text": "a"}) == Query(text="a")


def test_a_request_names_its_culprits_and_its_victims_with_links_both_ways() -> None:
    entries = [{"state": "run", "part": "co_prefill", "ns": 30_000_000, "payer": "report-1"}]
    ledger = {"sum_ns": 70_000_000, "residue_ns": 0, "unattributed_ns": 0, "entries": entries}
    explained = explained_of(request_id="chat-1", ledger=ledger)
    culprit = explained_of(request_id="report-1")
    known = index(line(0, request_id="report-1", prompt_tokens=700), victim(1, "report-1"))
    who = who_of(known)

    shown = Checked(render_request(explained, waterfall_of(explained), known, who))
    back = Checked(render_request(culprit, waterfall_of(culprit), known, who))

    assert "/requests/report-1" in shown.links
    assert "700" in shown.text
    assert "other requests took 42.9 %" in shown.text
    assert "The parts sum to 70,000,000 ns, 0 ns off" in shown.text
    assert "/requests/chat-1" in back.links


def test_incidents_are_listed_and_the_strip_marks_the_chosen_time() -> None:
    known = history(*(moment(at * SECOND, *([finding()] if at > 950 else []), slo=slo())
                      for at in range(900, 1000)))  # fmt: skip
    found = incidents_of(known.moments)
    who = who_of(index(line(0)))

    listed = Checked(incidents.listing(found, CLOCK, who, 999 * SECOND))
    strip = incidents.strip(known, found, 950 * SECOND)
    state = Checked(incidents.state(known.moments[-1], None, who, CLOCK))

    assert "Prefill interference 00:15:00 1 min 39 s holds" in listed.text
    assert f"/incidents?at={951 * SECOND}" in listed.links
    assert Checked(strip)
    assert 'class="mark"' in strip
    assert "Findings then" in state.text
    assert "Batch then" in state.text
    assert "16 min 40 s" not in incidents.when(known.moments[-1], CLOCK)
    assert incidents.when(known.moments[-1], CLOCK).startswith("00:16:39 UTC, 1 s ago, fault")


def test_the_latency_page_marks_what_misses_its_target_and_leads_to_the_requests() -> None:
    lines = [line(number, ttft_ns=SECOND) for number in range(990, 999)]
    cells = cells_of(lines, slo().classes, 0)

    matrix = latency.matrix(cells, ("chat", "ttft"))
    picture = latency.picture(lines, ("chat", "ttft"), SECOND // 2, 900 * SECOND, CLOCK)

    assert "level-bad" in matrix
    assert "/latency?slo_class=chat&measure=queue" in Checked(matrix).links
    shown = Checked(picture)
    assert any(one.startswith("/requests?slo_class=chat&measure=ttft") for one in shown.links)
    assert 'class="target"' in picture


def test_limits_say_who_changed_them_and_why() -> None:
    by = SetBy(by="operator", why="queue grows", at_unix_s=0.0, ago_s=125.0)
    view = LimitsView(
        limits={"max_num_seqs": LimitInForce(value=16, at_start=64, changed=by)},
        changes=[LimitsChanged(limits={"max_num_seqs": 16}, set=by)],
    )
    shown = Checked(limits.render(view, None))

    assert "max_num_seqs 16 64 2 min ago by operator: queue grows" in shown.text


@pytest.mark.parametrize(
    "draw",
    [
        lambda known: requests.render(known.search(Query()), Query(text=HOSTILE), known, CLOCK),
        lambda known: requests.form(Query(text=HOSTILE, tenant=HOSTILE), known),
        lambda known: findings(
            moment(0, finding(claim=HOSTILE, culprits=(HOSTILE,))).diagnosis, None,
            who_of(known), CLOCK,
        ),
        lambda known: batch.render(None, moment(
            0, grid=(GridRow(HOSTILE, 1, HOSTILE, 1, 1, "D"),)).snapshot),
        lambda known: overview.render(Overview(
            moment(1, model=HOSTILE), history(moment(0), moment(1)), known, None, CLOCK)),
    ],
)  # fmt: skip
def test_text_from_clients_is_text_on_every_page(draw: Callable[[object], Markup]) -> None:
    known = index(line(0, tenant=HOSTILE, request_id=HOSTILE, takers=(Taker(HOSTILE, 1),)))

    shown = draw(known)

    assert Checked(shown)
    assert "<script" not in shown
    assert "javascript:" not in shown


def test_elements_escape_attributes_and_leave_out_what_is_none() -> None:
    assert tag("a", "x", href='"><b>', title=None, hidden=True, tabindex=0) == (
        '<a href="&#34;&gt;&lt;b&gt;" hidden tabindex="0">x</a>'
    )
    assert href("/requests", tenant="a&b", page="") == "/requests?tenant=a%26b"


def test_a_line_has_a_gap_where_nothing_was_measured() -> None:
    points = [(0, 1.0), (1, 2.0), (2, None), (3, 1.0), (4, 0.0)]

    assert line_chart(points, "x").count("<polyline") == 2
    assert "<svg" not in line_chart([(0, None), (1, None)], "x")


def test_numbers_are_written_as_people_read_them() -> None:
    assert [ms(value) for value in (None, 1_234_567, 23_456_000, 456_700_000, 1_234_000_000)] == [
        "-", "1.23 ms", "23.5 ms", "457 ms", "1.23 s",
    ]  # fmt: skip
    assert [span(value * SECOND) for value in (5, 65, 120, 3720)] == [
        "5 s", "1 min 5 s", "2 min", "1 h 2 min",
    ]  # fmt: skip
    assert [percent(one, 100) for one in (0, 5, 12.34, 100)] == ["0 %", "5 %", "12.3 %", "100 %"]
    assert percent(1, 0) == "-"
    assert Clock(0, 86_399 * SECOND).utc(2 * SECOND) == "00:00:01"
