"""Runbooks are complete, linked, and match the product."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import cast

import pytest

from diagnosis.root_cause.interventions import Cause
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.rules import RULES
from diagnosis.verdicts.runbook import HEADINGS, runbook_path
from lab.simulation.settings import SETTINGS
from service.cli.main import build_parser
from service.gateway.generation.state import GatewayState
from service.gateway.routes.ops import ops_routes
from tests.support.servers.prometheus_server import CONFIG

FOLDER = runbook_path(Symptom.QUEUE_OVERLOAD).parent
ROOT = FOLDER.parent
PAGES = sorted(FOLDER.glob("*.md"))
INDEX, ENTRY = FOLDER / "README.md", FOLDER / "high_ttft.md"
ENTRY_HEADINGS = ("Start here", "Checklist", "What it is not")

# What no intervention removes: it lies outside of the scheduler, or delays no request.
WITHOUT_INTERVENTION = frozenset(
    {
        Symptom.INGEST_BACKLOG,
        Symptom.INVALID_OUTPUT,
        Symptom.OUT_OF_MEMORY,
        Symptom.ENGINE_HUNG,
        Symptom.STEP_FAILURE,
        Symptom.LOAD_FAILURE,
        Symptom.TELEMETRY_DEGRADED,
    }
)

_LINK = re.compile(r"\[[^\]]+\]\(([^)]+)\)")
_CODE = re.compile(r"`([^`]+)`")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def sections(page: Path) -> dict[str, str]:
    """The text below each heading of the second level, in order."""
    parts = re.split(r"^## (.+)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))


def first_command(section: str) -> str:
    """The indented command that a section begins with, in one line; empty where it begins with
    words. `sections` takes the indentation of the first line away."""
    first, *others = section.splitlines()
    if others and not others[0]:
        return first
    block = [first, *itertools.takewhile(lambda line: line.startswith("    "), others)]
    return "" if len(block) == 1 else " ".join(line.strip() for line in block)


def split(page: Path) -> tuple[list[str], str]:
    """Lines of indented code, continued ones put together; and all other text."""
    code: list[str] = []
    prose: list[str] = []
    into = prose
    for line in page.read_text().splitlines():
        if not line.startswith("    "):
            into = prose
        elif not prose[-1]:  # code begins after an empty line, else a list item goes on
            into = code
        into.append(line[4:] if into is code else line)
    return re.sub(r"\\\n *", "", "\n".join(code)).splitlines(), "\n".join(prose)


def spans(page: Path) -> list[str]:
    """Code within prose; one that goes on in the next line is one."""
    return [" ".join(span.split()) for span in _CODE.findall(split(page)[1])]


def commands(page: Path) -> Iterator[list[str]]:
    """Words after `phasescope`, of every command in code."""
    for code in [*split(page)[0], *spans(page)]:
        if code.startswith("phasescope "):
            yield shlex.split(re.split(r" {3,}", code)[0])[1:]


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    """By subcommand."""
    (found,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(found.choices)


def options(command: str) -> set[str]:
    """Flags of one subcommand."""
    return {flag for action in parsers()[command]._actions for flag in action.option_strings}


def all_options() -> set[str]:
    return set().union(*map(options, parsers()))


def documented_metrics() -> set[str]:
    """Names of samples, as the reference has the families."""
    found: set[str] = set()
    rows = re.findall(
        r"^\| `(phasescope_\w+)` \| (\w+) \|",
        (ROOT / "docs/reference/metrics.md").read_text(),
        flags=re.MULTILINE,
    )
    for name, kind in rows:
        suffixes = {"counter": ("_total",), "histogram": ("", "_bucket", "_count", "_sum")}
        found |= {name + suffix for suffix in suffixes.get(kind, ("",))}
    return found


def anchors(page: Path) -> set[str]:
    """What a link may name of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("symptom", Symptom)
def test_every_symptom_has_a_page_with_all_headings_in_order(symptom: Symptom) -> None:
    """A finding needs a page that says what to do."""
    found = sections(runbook_path(symptom))

    assert tuple(found) == HEADINGS
    assert all(found.values()), "a heading with nothing below it"


def test_every_page_belongs_to_a_symptom_or_leads_to_one() -> None:
    """A page that nothing links to is not found when it is needed."""
    assert set(PAGES) == {runbook_path(symptom) for symptom in Symptom} | {INDEX, ENTRY}
    assert tuple(sections(ENTRY)) == ENTRY_HEADINGS
    for page in (INDEX, ENTRY):
        linked = set(_LINK.findall(page.read_text()))
        latency = {f"{symptom.value}.md" for symptom in Symptom}
        assert linked & latency, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    """Links within the repository."""
    for link in _LINK.findall(page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_metrics_exist(page: Path) -> None:
    """What is not in the catalog cannot be looked up in an incident."""
    named = set(re.findall(r"\bphasescope_[a-z0-9_]+", page.read_text()))

    assert named <= documented_metrics()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_can_be_run_as_they_are_written(page: Path) -> None:
    """Commands with arguments; one without is only a name."""
    for words in commands(page):
        assert words[0] in parsers(), words
        assert {word for word in words if word.startswith("--")} <= options(words[0]), words
        if len(words) > 1:
            build_parser().parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_flags_exist(page: Path) -> None:
    """In prose, where the command is left to the reader. Other programs' have theirs in code."""
    told = [span for span in spans(page) if span.startswith("-")]
    for flag in _FLAG.findall(" ".join([*told, _CODE.sub("", split(page)[1])])):
        assert flag in all_options(), flag


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_replays_set_limits_that_exist_to_allowed_values(page: Path) -> None:
    """Of `phasescope replay --set`."""
    by_name = {setting.name: setting for setting in SETTINGS}
    more = [shlex.split(span) for span in spans(page) if span.startswith("--set ")]
    for words in [*commands(page), *more]:
        for flag, value in itertools.pairwise(words):
            if flag == "--set" and value != "NAME=VALUE":
                name, _, text = value.partition("=")
                by_name[name].read(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_causes_are_those_that_root_cause_can_name(page: Path) -> None:
    """A page names only causes that the output of `--root` can contain."""
    for name in re.findall(r"--root`:\s+`(\w+)`", page.read_text()):
        assert name in list(Cause), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_endpoints_exist(page: Path) -> None:
    """The app is built without state, which routes need only when called."""
    known = {route.path for route in ops_routes(cast(GatewayState, None))}
    patterns = [re.compile(re.sub(r"{[^}]+}", "[A-Z]+", path)) for path in known]
    for path in re.findall(r"(?<![\w.])/debug/[a-zA-Z/]+[a-zA-Z]", page.read_text()):
        assert any(pattern.fullmatch(path) for pattern in patterns), path


@pytest.mark.parametrize("title", ["Mitigate now", "Is it over?"])
@pytest.mark.parametrize("symptom", Symptom)
def test_what_is_needed_at_night_begins_with_one_command(symptom: Symptom, title: str) -> None:
    """Which is no restart and no what-if replay; what follows says what it does, or shows then."""
    found = sections(runbook_path(symptom))[title]
    command = first_command(found)

    assert command, "no command"
    assert "\n\n" in found, "nothing said of it"
    assert not re.match(r"phasescope (serve|replay)|python", command), command


@pytest.mark.parametrize("symptom", Symptom)
def test_recovery_is_verified_by_a_metric_or_an_endpoint(symptom: Symptom) -> None:
    found = sections(runbook_path(symptom))["Is it over?"]

    assert "`phasescope_" in found or "(phasescope_" in found


@pytest.mark.parametrize("symptom", Symptom)
def test_the_first_fix_predicts_its_gain_where_a_replay_can(symptom: Symptom) -> None:
    """A fix whose gain can be predicted comes first."""
    first = re.split(r"^2\. ", sections(runbook_path(symptom))["Fix"], flags=re.MULTILINE)[0]

    assert first.startswith("1. ")
    predicted = "`phasescope replay " in first or "--root" in first
    assert predicted == (symptom not in WITHOUT_INTERVENTION)


@pytest.mark.parametrize("symptom", Symptom)
def test_a_page_names_its_drill_and_the_symptoms_that_look_alike(symptom: Symptom) -> None:
    """With links to the pages of these symptoms."""
    found = sections(runbook_path(symptom))
    others = {f"{other.value}.md" for other in Symptom} - {f"{symptom.value}.md"}

    assert f"    phasescope drill {symptom.value} " in f"    {found['Reproduce']}"
    assert set(_LINK.findall(found["False friends"])) & others


@pytest.mark.parametrize("symptom", RULES)
def test_a_page_explains_the_evidence_and_exclusions_of_its_finding(symptom: Symptom) -> None:
    """The deciding evidence, and each symptom that the finding rules out."""
    found, rule = sections(runbook_path(symptom)), RULES[symptom]

    assert set(_CODE.findall(found["Confirm"])) & set(rule.evidence)
    links = set(_LINK.findall(found["False friends"]))
    assert {f"{other.value}.md" for other in rule.apart} <= links


def test_the_index_has_one_full_row_for_each_symptom() -> None:
    """In the order in which the product names them."""
    rows = [line for line in INDEX.read_text().splitlines() if line.startswith("| [")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]

    assert [row[0] for row in cells] == [f"[{s.value}]({s.value}.md)" for s in Symptom]
    assert all(len(row) == 4 and all(row) for row in cells)


def test_alerts_name_symptoms_that_exist() -> None:
    """An alert's label is built from a symptom. That its page exists: test_alert_rules."""
    text = CONFIG.with_name("rules.yml").read_text()
    matched = re.findall(r'match "\^\(([a-z_|]+)\)\$"', text)
    named = {name for group in matched for name in group.split("|")}
    named |= set(re.findall(r'symptom!?="([a-z_]+)"', text))

    assert "telemetry_degraded" in named
    assert named <= {symptom.value for symptom in Symptom}
