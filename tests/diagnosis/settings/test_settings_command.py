"""`phasescope diagnose --settings`: the table, the sentences, the JSON, and errors."""

from __future__ import annotations

import argparse
import dataclasses
import json

import pytest

from diagnosis.settings_search.answer import SettingsAnswer
from service.cli.diagnose_settings import Progress, search_settings
from service.cli.main import main
from telemetry.facts.clock import ManualClock, MonotonicClock
from telemetry.journal.journal import write_journal
from tests.support.worlds.promised import GOOD, Kind, Promised

pytestmark = pytest.mark.long

SLO = """
default = "chat"
[classes.chat]
ttft_ms = 500
objective = 0.95
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The record of a server with two slots, and its SLO classes."""
    folder = tmp_path_factory.mktemp("settings")
    world = Promised(
        kinds=(Kind(rate_per_s=5.0),), limits=dataclasses.replace(GOOD, max_seqs=2), seconds=20.0
    )
    write_journal(folder / "slow.journal", world.facts(1), MonotonicClock(), "test")
    (folder / "slo.toml").write_text(SLO)
    return str(folder / "slow.journal"), str(folder / "slo.toml")


@pytest.fixture(scope="module")
def answers() -> list[SettingsAnswer]:
    """Of the record's search, once it was made."""
    return []


@pytest.fixture
def one_search(answers: list[SettingsAnswer], monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is printed of the same record."""

    def once(args: argparse.Namespace) -> SettingsAnswer:
        if not answers:
            answers.append(search_settings(args))
        return answers[0]

    monkeypatch.setattr("service.cli.diagnose.search_settings", once)


@pytest.mark.usefixtures("one_search")
def test_the_table_and_the_words(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", files[0], "--settings", "--slo-file", files[1]]) == 0
    said = capsys.readouterr().out

    for label in ("measured", "replayed", "best", "TTFT p95", "misconfigured: "):
        assert label in said
    assert "max_num_seqs 2 -> 4" in said


@pytest.mark.usefixtures("one_search")
def test_the_json_has_what_is_derived(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", files[0], "--settings", "--slo-file", files[1], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert found["form"] == "misconfigured"
    assert found["best"]["settings"][0]["name"] == "max_num_seqs"
    assert found["said"][0].startswith("misconfigured")
    assert found["tried"] > 3


def test_it_is_a_part_of_the_root_answer(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where there is no time before the fault to compare with."""
    path, slo = files
    assert main(["diagnose", path, "--root", "--settings", "--slo-file", slo, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert found["settings"]["best"]["settings"][0]["name"] == "max_num_seqs"


def test_without_it_the_root_answer_has_none(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["diagnose", files[0], "--root", "--window", "5:0", "--reference", "10:5", "--json"]
    assert main(command) == 0

    assert json.loads(capsys.readouterr().out)["settings"] is None


def test_a_bad_file_of_classes_is_one_line(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", files[0], "--settings", "--slo-file", "/not/there.toml"]) != 0

    assert "/not/there.toml" in capsys.readouterr().err


def test_progress_is_silent_for_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    progress = Progress(clock)
    progress("early")
    clock.advance(2_000_000_000)
    progress("late")

    assert capsys.readouterr().err == "  late ...\n"
