"""The incident report: what it says of a known fault, and that the file stands alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from dashboards.report.build import IncidentFold, incident_of
from dashboards.report.incident import Gain, Incident, Remedies
from dashboards.report.page import About, report_page
from dashboards.report.runbook import Block, Kind, Piece, blocks, runbook
from diagnosis.root_cause.counterfactual import Explanation
from diagnosis.root_cause.counterfactual import Gain as ReplayGain
from diagnosis.root_cause.interventions import Cause
from diagnosis.root_cause.root import NOTHING_TO_COMPARE, RelativeWindow, RootCause
from diagnosis.settings_search.answer import ClassForecast, Setting, SettingsAnswer, Trial
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.runbook import HEADINGS
from service.cli.main import main
from service.cli.operator.report_remedies import beyond_replay, remedies_from
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import fact_ns
from telemetry.journal.journal_reader import open_journal
from telemetry.requests.slo_policy import DEFAULT_POLICY
from tests.support.servers.served import started
from tests.support.worlds.facts import accepted, request_ended
from tests.support.worlds.incidents import INTO_S, interference, journal_of_facts, lasting
from tests.support.worlds.journal_facts import request, saved, small, turn_over
from tests.support.worlds.twins.cases import SECOND, twin

ABOUT = About(made="2026-01-31 23:59:59 UTC", versions={"phasescope": "1"})
VOID = {"meta", "link", "br", "hr", "img", "input"}
LOADING = {"src", "srcset", "action", "formaction", "poster", "data", "background"}


class Page(HTMLParser):
    """Checks that tags nest, and collects ids, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self._open.append(tag)
        for name, value in attrs:
            assert name not in LOADING, (tag, name, value)
            assert not name.startswith("on"), (tag, name)
            if name == "id":
                self.ids.append(value or "")
            elif name == "href":
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, (tag, self._open)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    """Twelve seconds into prefill interference."""
    folder = tmp_path_factory.mktemp("incident")
    return incident_of(journal_of_facts(folder, lasting(interference())), "incident.journal")


def test_it_names_the_cause_the_culprits_and_who_was_hit(incident: Incident) -> None:
    truth = interference()
    assert incident.top is not None
    named = [one for one in incident.culprits if one.is_named]

    assert incident.top.symptom is Symptom.PREFILL_INTERFERENCE
    assert named
    assert {one.name for one in named} <= truth.culprits
    assert all(one.prompt_tokens for one in named)
    assert incident.hit > 0
    assert incident.hit == sum(one.hit for one in incident.tenants)
    assert sum(one.requests for one in incident.classes) == sum(
        one.requests for one in incident.tenants
    )


def test_its_times_are_those_of_the_fault(incident: Incident) -> None:
    """Seconds from the onset; the verdicts tile the time that is drawn."""
    truth = interference()
    assert truth.onset_ns is not None

    assert abs(incident.begin_ns - truth.onset_ns) < 5 * SECOND
    assert incident.ends_s is None
    assert incident.duration_s == pytest.approx(INTO_S, abs=5)
    assert [one.end_s for one in incident.spells[:-1]] == [
        one.begin_s for one in incident.spells[1:]
    ]
    assert incident.spells[-1].verdict == "fault"
    assert [one.at_s for one in incident.moments] == sorted(one.at_s for one in incident.moments)
    assert any("prefill_interference" in one.text for one in incident.moments)


def test_ten_requests_are_shown_and_their_parts_sum_to_the_whole(incident: Incident) -> None:
    shown = incident.exemplars

    assert len(shown) == len({one.request_id for one in shown}) == 10
    for one in shown:
        if one.bars:
            assert sum(bar.ms for bar in one.bars) == pytest.approx(one.e2e_ms)
        if one.ledger:
            assert sum(line.ms for line in one.ledger) == pytest.approx(one.e2e_ms)
    assert any(late.culprit for one in shown for late in one.late_tokens)


def test_an_incident_that_is_over_is_told_with_its_end_and_its_worst_moment(
    tmp_path: Path,
) -> None:
    truth = interference()
    found = incident_of(journal_of_facts(tmp_path, truth.facts), "incident.journal")
    assert truth.end_ns is not None
    assert found.ends_s is not None
    assert found.top is not None

    assert found.top.symptom is Symptom.PREFILL_INTERFERENCE
    assert abs(found.end_ns - truth.end_ns) < 15 * SECOND
    assert found.spells[-1].verdict == "healthy"


def test_a_journal_that_was_cut_covers_the_time_from_its_cut(tmp_path: Path) -> None:
    """What it carries from before the cut may be days older: the engine's start, a request."""
    journal, clock = small()
    journal.on_facts([started(0), *request("live", 1, at=1)])
    turn_over(journal, clock, 300)
    read = open_journal(saved(tmp_path / "cut.journal", journal.frames("request")))
    cut_ns, last_ns = read.header.cut_ns, max(map(fact_ns, read.facts()))
    found = incident_of(read, "cut.journal")

    assert cut_ns is not None
    assert read.carried
    assert found.first_ns == cut_ns
    assert found.record.covered_s == pytest.approx((last_ns - cut_ns) / SECOND)


def test_a_journal_gives_the_same_incident_however_it_is_cut_in_batches() -> None:
    facts = lasting(interference())
    saids = []
    for size in (97, len(facts)):
        fold = IncidentFold(DEFAULT_POLICY)
        for first in range(0, len(facts), size):
            fold.on_facts(facts[first : first + size])
        fold.close()
        saids.append((fold.watch.said, fold.watch.incidents, fold.lines.lines, fold.moments.all()))

    assert saids[0] == saids[1]


def test_requests_in_flight_at_the_end_of_a_hang_are_counted_as_late(tmp_path: Path) -> None:
    """Nobody ends while an engine is stopped."""
    one = twin("engine_hung", "stopped")
    assert one.onset_ns is not None
    facts = [fact for fact in one.facts if fact_ns(fact) < one.onset_ns + 8 * SECOND]
    found = incident_of(journal_of_facts(tmp_path, facts), "hung.journal")
    assert found.top is not None

    assert found.top.symptom is Symptom.ENGINE_HUNG
    assert sum(one.overdue for one in found.classes) > 0
    assert any(one.outcome == "in flight" for one in found.exemplars)
    assert any("does not respond" in moment.text for moment in found.moments)


def test_the_file_stands_alone(incident: Incident) -> None:
    """No script, nothing that a browser would load, and every link leads to something in it."""
    text = report_page(incident, Remedies(why_not="Not asked for."), ABOUT)
    page = Page(text)

    assert page.tags.isdisjoint({"script", "link", "iframe", "img", "object", "embed", "base"})
    assert not re.search(r"url\(|@import|@font-face", text)
    assert len(page.ids) == len(set(page.ids))
    assert page.links
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert all(link.startswith("#") for link in page.links)
    assert text.startswith("<!doctype html>")


def test_the_first_screen_answers_what_who_and_what_to_do(incident: Incident) -> None:
    text = report_page(incident, Remedies(), ABOUT)
    head = text[: text.index('<nav aria-label="Sections">')]
    culprit = next(one for one in incident.culprits if one.is_named)

    assert "Prefill interference" in head
    for words in ("What happened", "Who was hit", "Who did it", "What to do"):
        assert words in head
    assert culprit.name in head
    assert f"/v1/requests/{culprit.name}" in head


def test_words_of_clients_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    facts = [
        accepted("r1", at=0, tenant=evil),
        request_ended("r1", at=9000, reason=EndReason.INTERNAL),
    ]
    found = incident_of(journal_of_facts(tmp_path, facts), "a.journal")
    text = report_page(found, Remedies(why_not=evil), ABOUT)

    assert evil not in text
    assert "&lt;script&gt;" in text
    Page(text)


def test_a_healthy_record_is_reported_as_one(tmp_path: Path) -> None:
    facts = [accepted("r1", at=0), request_ended("r1", at=60)]
    text = report_page(
        incident_of(journal_of_facts(tmp_path, facts), "a.journal"), Remedies(), ABOUT
    )

    assert "Nothing was found" in text
    Page(text)


def test_the_report_has_no_field_that_could_hold_a_text(incident: Incident) -> None:
    """The view model is what facts have: no name in it speaks of prompts, outputs or token ids but
    as counts."""
    names = re.findall(r'"(\w+)":', msgspec.json.encode(incident).decode())

    texts = {name for name in names if re.search(r"prompt|output|token_id|content|message", name)}
    assert texts <= {
        "prompt_tokens", "output_tokens", "prompt_tokens_each", "usual_prompt_tokens_each",
        "output_tokens_each", "usual_output_tokens_each",
    }  # fmt: skip


@pytest.mark.parametrize("symptom", Symptom)
def test_every_runbook_becomes_steps(symptom: Symptom) -> None:
    """Nothing of Markdown is left in the text, and no step is lost."""
    found = runbook(symptom, {})

    assert tuple(found) == HEADINGS
    assert found["Mitigate now"][0].kind is Kind.CODE
    assert Kind.STEPS in {block.kind for block in found["Mitigate now"]}
    for section in found.values():
        for block in section:
            for piece in (piece for line in block.lines for piece in line):
                assert "](" not in piece.text
                assert piece.is_code or "`" not in piece.text


def test_a_runbook_is_filled_with_names_that_a_shell_takes_as_one_word() -> None:
    line = "1. End it: `curl -X DELETE URL/v1/requests/CULPRIT`. See [that](that.md)."
    code = "curl -X DELETE URL/v1/requests/r1"

    assert blocks(line, {"CULPRIT": "r1"}) == (
        Block(Kind.STEPS, ((Piece("End it: "), Piece(code, is_code=True), Piece(". See that.")),)),
    )
    section = runbook(Symptom.PREFILL_INTERFERENCE, {"CULPRIT": "r1; rm -rf x"})["Mitigate now"]
    (steps,) = [block for block in section if block.kind is Kind.STEPS]
    assert "CULPRIT" in steps.lines[0][1].text


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = journal_of_facts(tmp_path, lasting(interference()))
    file = tmp_path / "out.html"

    assert main(["report", str(journal.path), "-o", str(file), "--no-replay"]) == 0
    assert "prefill_interference" in capsys.readouterr().out
    assert "--no-replay" in file.read_text()
    assert main(["report", str(tmp_path / "nothing"), "-o", str(file)]) == 1
    assert "nothing" in capsys.readouterr().err


def test_what_would_have_helped_is_told_with_the_gain_that_it_promises(incident: Incident) -> None:
    """The best setting that can be set now comes first, then each cause that was taken away."""
    gain = ReplayGain(
        cause=Cause.PROMPTS, symptom="ttft_p95", gain=0.75, share=0.9, spared_ms=9000.0
    )
    setting = Setting(name="max_batched_tokens", value=128, was=2048, runtime=True)
    now, then = _class(0.8), _class(0.98)
    answer = SettingsAnswer(
        window_s=20.0, present=Trial(settings=(), classes={"chat": now}), recorded={"chat": now},
        noise={"chat": 0.01}, best_runtime=Trial(settings=(setting,), classes={"chat": then}),
        best=None, capacity=None, impossible={}, tried=3, cpu_s=1.0,
    )  # fmt: skip
    root = RootCause(
        window=RelativeWindow(20, 0), reference=RelativeWindow(60, 20), remedies={}, promises={},
        explanation=Explanation(
            requests=60, reference_requests=90, compared=True,
            moved={"ttft_p95": (100.0, 400.0)}, gains=(gain,), tried=(Cause.PROMPTS,),
        ),
        settings=answer,
    )  # fmt: skip
    helped = remedies_from(
        root, {"prefill_interference": "route long prompts elsewhere: 75 % less"}
    )
    text = report_page(incident, helped, ABOUT)

    assert [one.is_runtime for one in helped.gains] == [True, None, None]
    assert [one.is_remedy for one in helped.gains] == [True, True, False]
    assert helped.gains[0].action == "Set max_batched_tokens 2048 -> 128"
    assert helped.gains[0].promise == "chat 80 % -> 98 % good"
    assert helped.gains[2].promise.startswith("ttft_p95 400 ms -> 100 ms (75 % less")
    assert {one.label for one in helped.forecasts} >= {"measured", "best that can be set now"}
    assert "Would have helped:" in text[: text.index('<nav aria-label="Sections">')]
    assert helped.why_not == ""
    Page(text)


@pytest.mark.parametrize(
    ("explanation", "said"),
    [
        (
            Explanation(requests=0, reference_requests=45, moved={}, gains=(), tried=()),
            "too few finished requests to compare: 0, and 45 in the reference",
        ),
        (NOTHING_TO_COMPARE, "the record has too little time before it to compare with"),
    ],
    ids=["too few", "no reference"],
)
def test_a_replay_that_compared_nothing_is_not_one_in_which_nothing_would_have_helped(
    incident: Incident, explanation: Explanation, said: str
) -> None:
    window, reference = RelativeWindow(20, 0), RelativeWindow(60, 20)
    root = RootCause(
        window=window, reference=reference, remedies={}, promises={}, explanation=explanation
    )
    text = report_page(incident, remedies_from(root, {}), ABOUT)

    assert said in text
    assert "Undoing none of the changes would have helped" not in text


def test_no_remedy_is_promised_where_the_cause_lies_outside_of_the_scheduler(
    incident: Incident,
) -> None:
    """A replay of a hung engine finds that time is missing, and that is no remedy."""
    assert incident.top is not None
    hung = msgspec.structs.replace(incident.top, symptom=Symptom.ENGINE_HUNG)
    stopped = msgspec.structs.replace(incident, causes=(hung,))
    told = Gain(action="Without residual: look for neighbours", promise="ttft_p95 99 % less")
    helped = Remedies(gains=(told,), why_not=beyond_replay(stopped))
    text = report_page(stopped, helped, ABOUT)

    assert beyond_replay(incident) == ""
    assert "engine_hung lies outside of what a scheduler decides" in text
    assert "Would have helped:" not in text


def _class(good_share: float) -> ClassForecast:
    return ClassForecast(
        requests=50, good_share=good_share, ttft_p95_ms=300.0, itl_p99_ms=None,
        output_tokens_per_s=90.0, late_first_tokens=3, slow_tokens=0, objective=0.95,
    )  # fmt: skip
