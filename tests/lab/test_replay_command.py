"""`phasescope replay`: changes, errors and reports."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from diagnosis.root_cause.whatif import NoiseKind, replay_journal
from lab.simulation.scenarios import small_limits
from lab.simulation.settings import SETTINGS, changed_limits
from service.cli.main import main
from service.config.settings import ConfigError
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.records import Fact, RequestEnded
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from tests.support.worlds.replayed import CLASS, close, facts_at


@pytest.fixture(scope="module")
def busy() -> list[Fact]:
    return facts_at(6.0)


# --- settings ---


@pytest.mark.parametrize(
    ("word", "limit", "value"),
    [
        ("max_num_seqs=3", "max_seqs", 3),
        ("max-batched-tokens=32", "budget_tokens", 32),
        ("kv_blocks=400", "blocks_total", 400),
        ("chunked_prefill=off", "chunked_prefill", False),
        ("prefix_cache=no", "prefix_cache", False),
        ("itl_target_ms=50", "itl_target_ns", 50_000_000),
        ("itl_target_ms=none", "itl_target_ns", None),
        ("fairness=vtc", "policy", "vtc"),
        ("tenant_max_seqs=none", "tenant_max_seqs", None),
        ("tenant_queue_limit=2", "tenant_queue_limit", 2),
        ("queue_limit=7", "queue_limit_requests", 7),
        ("queue_limit_tokens=70", "queue_limit_tokens", 70),
    ],
)
def test_a_change_sets_a_limit(word: str, limit: str, value: object) -> None:
    assert getattr(changed_limits(small_limits(), [word]), limit) == value


def test_every_setting_is_tried_above() -> None:
    limits = {setting.limit for setting in SETTINGS}
    assert limits <= {field.name for field in dataclasses.fields(small_limits())}
    assert len(SETTINGS) == 11


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kv_block=4"], "one of max_num_seqs"),
        (["kv_blocks"], "NAME=VALUE"),
        (["kv_blocks=many"], "wanted blocks of the KV cache"),
        (["kv_blocks=0"], "wanted blocks"),
        (["chunked_prefill=maybe"], "on or off"),
        (["kv_blocks=3"], "one request"),
        (["max_batched_tokens=2"], "no room to decode"),
    ],
)
def test_a_wrong_change_is_refused_with_the_allowed_ones(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        changed_limits(small_limits(), words)


# --- the command ---


@pytest.fixture(scope="module")
def journal(busy: list[Fact], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "busy.journal"
    write_journal(path, busy, MonotonicClock(), "test")
    return path


def test_the_report_sets_three_runs_side_by_side(
    journal: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "other.journal"
    words = ["replay", str(journal), "--set", "max_num_seqs=4", "--set", "kv_blocks=100"]
    assert main([*words, "-o", str(output)]) == 0
    said = capsys.readouterr().out
    assert "decisions were repeated" in said
    assert "max_num_seqs=4 kv_blocks=100" in said
    assert "TTFT p99 ms" in said
    assert main(["replay", str(output), "--exact"]) == 0


def test_the_report_is_there_for_programs_too(
    journal: Path, capsys: pytest.CaptureFixture[str], busy: list[Fact]
) -> None:
    assert main(["replay", str(journal), "--json", "--noise", "none"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["changed"] is None
    assert report["identities"][0]["difference"] is None
    assert report["recorded"]["classes"][CLASS]["requests"] == len(
        [fact for fact in busy if isinstance(fact, RequestEnded)]
    )


def test_durations_may_come_from_another_journal(journal: Path, tmp_path: Path) -> None:
    other = tmp_path / "calm.journal"
    write_journal(other, facts_at(2.0, seed=5), MonotonicClock(), "test")
    report, _ = replay_journal(
        open_journal(other), MonotonicClock(), (), open_journal(journal), NoiseKind.NONE
    )
    was, found = (
        outcomes.classes[CLASS].latency for outcomes in (report.recorded, report.replayed)
    )
    assert close(found["tpot"].p50_ms, was["tpot"].p50_ms, 0.02)
    assert close(found["e2e"].p99_ms, was["e2e"].p99_ms, 0.05)
    with pytest.raises(ConfigError, match="another time"):
        replay_journal(open_journal(other), MonotonicClock(), (), open_journal(journal))


def test_a_journal_that_cannot_be_replayed_is_one_line_of_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty.journal"
    write_journal(path, [], MonotonicClock(), "test")
    assert main(["replay", str(path)]) == 1
    assert "no engine's start" in capsys.readouterr().err
    assert main(["replay", str(path), "--set", "nothing"]) in (1, 2)
    assert main(["replay", str(tmp_path / "missing")]) == 1
