"""`phasescope replay` of a fleet's journal, and what a journal that was cut keeps of a fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lab.fleet.recorded.record import read_fleet
from lab.fleet.traffic import Trace
from service.cli.main import main
from telemetry.facts.clock import ManualClock, MonotonicClock
from telemetry.facts.fleet.routing_records import EngineJoined, RequestRouted
from telemetry.facts.records import Fact, fact_ns
from telemetry.journal.journal import Journal, write_journal
from telemetry.journal.journal_reader import open_journal
from tests.lab.fleet.recorded_fleet import fleet


@pytest.fixture(scope="module")
def facts() -> list[Fact]:
    return fleet(Trace.SHARED_PREFIX).recorded()


@pytest.fixture
def journal(facts: list[Fact], tmp_path: Path) -> Path:
    path = tmp_path / "gateway.journal"
    write_journal(path, facts, MonotonicClock(), "test")
    return path


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["replay", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_choice_of_a_fleet_is_made_again(
    journal: Path, facts: list[Fact], capsys: pytest.CaptureFixture[str]
) -> None:
    report = asked(capsys, str(journal), "--exact")

    assert report == {"choices": len(read_fleet(facts).asks), "differing": 0, "undecidable": 0}
    assert main(["replay", str(journal), "--exact"]) == 0
    assert "choices of an engine were made again" in capsys.readouterr().out


def test_a_choice_that_the_router_did_not_make_is_found(
    facts: list[Fact], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = list(facts)
    place = next(n for n, fact in enumerate(facts) if isinstance(fact, RequestRouted))
    first = facts[place]
    assert isinstance(first, RequestRouted)
    changed[place] = replace(first, left_out=first.left_out + 1)
    write_journal(tmp_path / "x.journal", changed, MonotonicClock(), "test")

    assert main(["replay", str(tmp_path / "x.journal"), "--exact"]) == 1
    assert "came out otherwise" in capsys.readouterr().out


def test_choices_that_do_not_follow_are_counted_apart(
    facts: list[Fact], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in facts of several gateways, or where some were lost."""
    twice = [fact for fact in facts for _ in range(1 + isinstance(fact, RequestRouted))]
    write_journal(tmp_path / "x.journal", twice, MonotonicClock(), "test")

    assert main(["replay", str(tmp_path / "x.journal"), "--exact"]) == 1
    count = len(read_fleet(facts).asks)
    said = f"{count} choices cannot be made again: what was sent before them is not in the record"
    assert said in capsys.readouterr().out


def test_a_fleet_is_simulated_with_what_is_to_be_different(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["--set", "prefill=2", "--set", "decode=1"]

    report = asked(capsys, str(journal), *changes)

    assert set(report["changed"]["sent"]) == {"decode-0"}
    assert report["changed"]["apart"] > 0 == report["replayed"]["apart"]
    assert report["recorded"]["apart"] is None
    assert report["replayed"]["hit_share"] == pytest.approx(
        report["recorded"]["hit_share"], abs=0.05
    )
    assert main(["replay", str(journal), *changes]) == 0
    shown = capsys.readouterr()
    assert "prefill=2 decode=1: decode-0" in shown.out
    assert "prompts computed elsewhere" in shown.out
    assert "simulating it with prefill=2 decode=1" in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "prefill=2"], "go together"),
        (["--set", "gpus=2"], "policy, load_bound"),
        (["--noise", "drawn"], "one engine"),
        (["--seed", "3"], "one engine"),
        (["--set", "kv_blocks=3"], "kv_blocks=3"),
    ],
)
def test_what_a_fleet_cannot_do_is_one_line(
    journal: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(journal), *arguments]) != 0
    said = capsys.readouterr().err.splitlines()[-1]
    assert message in said


def test_the_simulated_fleet_can_be_written_as_a_journal(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "changed.journal"

    assert main(["replay", str(journal), "--set", "engines=2", "-o", str(path)]) == 0

    capsys.readouterr()
    again = asked(capsys, str(path))
    assert set(again["recorded"]["sent"]) == {"e0", "e1"}


def test_a_journal_that_has_dropped_its_beginning_still_knows_the_fleet(
    facts: list[Fact], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    journal = Journal(clock, capacity_bytes=60_000)
    for fact in facts:
        clock.advance(max(0, fact_ns(fact) - clock.now_ns()))
        journal.on_facts((fact,))
    path = tmp_path / "cut.journal"
    with path.open("wb") as file:
        file.writelines(journal.frames("test"))

    cut = open_journal(path)
    record = read_fleet(cut.facts())
    joined = {fact.engine for fact in facts if isinstance(fact, EngineJoined)}

    assert cut.header.cut_ns is not None
    assert set(record.engines) == joined
    assert 0 < len(record.asks) < len(read_fleet(facts).asks)
    assert main(["replay", str(path), "--exact"]) == 1
    assert "cannot be made again" in capsys.readouterr().out
    report = asked(capsys, str(path), "--set", "policy=round_robin")
    assert report["identity"] is None
    assert report["changed"]["outcomes"]["classes"]["chat"]["requests"] > 0
