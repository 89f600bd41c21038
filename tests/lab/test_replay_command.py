"""`phasescope replay`: changes, errors and reports."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnosis.root_cause.outcomes import outcomes_of
from diagnosis.root_cause.whatif import NoiseKind, replay_journal
from lab.simulation.scenarios import small_limits
from lab.simulation.settings import SETTINGS, changed_limits
from service.cli.main import main
from service.config.settings import ConfigError
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.host_records import HostSampled
from telemetry.facts.records import Fact, RequestAccepted, RequestEnded, fact_ns
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from tests.support.worlds.replayed import CLASS, close, facts_at, of_a_slower_model

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def busy() -> list[Fact]:
    return facts_at(6.0)


# --- settings ---


@pytest.mark.parametrize(
    ("word", "limit", "value"),
    [
        ("max_num_seqs=3", "max_seqs", 3),
        ("max-batched-tokens=32", "budget_tokens", 32),
        ("max_batched_tokens=32", "auto_budget", False),
        ("max_batched_tokens=auto", "auto_budget", True),
        ("max_batched_tokens=auto", "budget_tokens", 16),
        ("order=slo", "slo_order", True),
        ("order=arrival", "slo_order", False),
        ("refuse_late=on", "refuse_late", True),
        ("speculative_tokens=3", "draft_tokens", 3),
        ("speculative_tokens=0", "draft_tokens", 0),
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
    assert len(SETTINGS) == 14


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kv_block=4"], "one of max_num_seqs"),
        (["kv_blocks"], "NAME=VALUE"),
        (["order=fifo"], "slo or arrival"),
        (["max_batched_tokens=soon"], "or auto"),
        (["speculative_tokens=-1"], "draft tokens"),
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


# --- the outcomes ---


def test_an_hour_of_idling_before_the_first_request_changes_no_rate(busy: list[Fact]) -> None:
    """And a minute after the last one, in which only the host was sampled."""
    early = [
        replace(fact, at_ns=fact.at_ns - 3600 * SECOND) if isinstance(fact, EngineStarted) else fact
        for fact in busy
    ]
    late = HostSampled(at_ns=max(map(fact_ns, busy)) + 60 * SECOND, window_ns=SECOND)

    assert outcomes_of([*early, late]) == outcomes_of(busy)


def test_requests_from_before_the_record_do_not_begin_the_time_of_its_rates(
    busy: list[Fact],
) -> None:
    """Others that came with them have ended, and are not there. Where there are no others, they
    do."""
    came_ns = {fact.request_id: fact.at_ns for fact in busy if isinstance(fact, RequestAccepted)}
    early = frozenset(name for name, at_ns in came_ns.items() if at_ns < 3 * SECOND)
    whole_s = outcomes_of(busy).span_s

    assert whole_s - 4 < outcomes_of(busy, cut=early).span_s < whole_s - 2
    assert outcomes_of(busy, cut=frozenset(came_ns)).span_s == whole_s


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


def test_all_columns_have_their_rates_over_the_time_of_the_record(journal: Path) -> None:
    """Also where the last request ends later than it did."""
    report, _ = replay_journal(open_journal(journal), MonotonicClock(), ["max_num_seqs=2"])
    assert report.changed is not None
    span_s = report.recorded.span_s
    columns = [one.classes[CLASS] for one in (report.recorded, report.replayed, report.changed)]

    assert columns[2].latency["e2e"].max_ms > columns[0].latency["e2e"].max_ms
    assert report.replayed.span_s == report.changed.span_s == span_s
    for one in columns:
        assert one.good_requests_per_s == pytest.approx(one.good / span_s)


def test_an_engine_of_another_model_does_not_change_what_steps_are_said_to_take(
    busy: list[Fact], journal: Path, tmp_path: Path
) -> None:
    """It ran before, three times slower. Another run of the same model is learnt from."""
    slower, twice = tmp_path / "slower.journal", tmp_path / "twice.journal"
    before = of_a_slower_model(busy)
    write_journal(slower, [*before, *busy], MonotonicClock(), "test")
    same = [replace(f, model="simulated") if isinstance(f, EngineStarted) else f for f in before]
    write_journal(twice, [*same, *busy], MonotonicClock(), "test")
    alone, beside, mixed = (
        replay_journal(open_journal(path), MonotonicClock(), noise=NoiseKind.NONE)[0]
        for path in (journal, slower, twice)
    )

    assert beside.cost == alone.cost
    assert beside.replayed == alone.replayed
    assert mixed.cost.turns == 2 * alone.cost.turns


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
