"""The production scheduler in simulated worlds: invariants, determinism, reproduction."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from lab.simulation.scenarios import SCENARIOS, build_scenario, trace_scenario
from lab.simulation.world import Report, World
from service.cli.main import main
from service.config.settings import ConfigError
from service.engine.scheduler import Scheduler
from telemetry.facts.engine_records import CacheFlushed, SequenceAdmitted, StepRecorded

pytestmark = pytest.mark.long

CHAOS_SEEDS = 300


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "chaos"])
def test_each_named_scenario_holds_every_invariant(name: str) -> None:
    for seed in range(8):
        World(build_scenario(name, seed)).run()


def test_hundreds_of_chaotic_runs_hold_every_invariant_and_have_every_kind_of_end() -> None:
    ends: Counter[str] = Counter()
    preempted = hits = ghosts = host = drafted = flushed = 0
    for seed in range(CHAOS_SEEDS):
        report = World(build_scenario("chaos", seed)).run()
        ends.update({reason.value: count for reason, count in report.ends.items()})
        for fact in report.facts:
            match fact:
                case StepRecorded():
                    preempted += len(fact.preempted)
                    drafted += sum(not row.is_prefill and row.sampled > 1 for row in fact.rows)
                case SequenceAdmitted():
                    hits += fact.hit_tokens > 0
                    ghosts += fact.ghost_tokens > 0
                    host += fact.host_tokens > 0
                case CacheFlushed():
                    flushed += 1
                case _:
                    pass

    expected = {
        "max_tokens", "disconnect", "deadline", "grammar_invalid", "executor_error",
        "queue_full", "tenant_limit",
    }  # fmt: skip
    assert expected <= ends.keys()
    assert min(preempted, hits, ghosts, host, drafted, flushed) > 0


def journal(name: str, seed: int) -> Report:
    return World(build_scenario(name, seed)).run()


def test_the_same_seed_gives_the_same_journal_and_another_seed_another_one() -> None:
    assert journal("chaos", 5).journal == journal("chaos", 5).journal
    assert journal("chaos", 5).journal != journal("chaos", 6).journal


def test_a_jump_of_the_wall_clock_changes_no_fact() -> None:
    from dataclasses import replace

    scenario = build_scenario("poisson", 1)
    jumps = replace(scenario.faults, wall_jumps=((10**9, -(10**10)), (2 * 10**9, 10**12)))

    jumped = World(replace(scenario, faults=jumps))
    report = jumped.run()

    assert jumped.wall.unix_ns != World(scenario).wall.unix_ns
    assert report.journal == World(scenario).run().journal


def test_fair_shares_let_the_calm_tenant_wait_less_than_first_come_first_served_does() -> None:
    from dataclasses import replace

    from service.engine.fairness import Policy

    waits: dict[Policy, int] = {}
    for policy in Policy:
        total = 0
        for seed in range(5):
            scenario = build_scenario("tenants", seed)
            limits = replace(scenario.limits, policy=policy)
            total += calm_wait_ns(World(replace(scenario, limits=limits)).run())
        waits[policy] = total

    assert waits[Policy.VTC] < 0.5 * waits[Policy.FCFS]


def calm_wait_ns(report: Report) -> int:
    """Time in the queue of the tenant `calm`, all its sequences together."""
    from telemetry.facts.engine_records import SequenceQueued

    queued: dict[int, int] = {}
    total = 0
    for fact in report.facts:
        if isinstance(fact, SequenceQueued) and fact.tenant == "calm":
            queued[fact.seq_id] = fact.at_ns
        elif isinstance(fact, SequenceAdmitted) and fact.seq_id in queued:
            total += fact.at_ns - queued.pop(fact.seq_id)
    return total


def test_the_drill_command_runs_a_trace_file_and_writes_its_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "journal"
    lines = [{"at_ms": i * 40, "prompt_tokens": 30 + i, "max_tokens": 8} for i in range(12)]
    trace.write_text("\n".join(json.dumps(line) for line in lines))

    assert main(["drill", "--sim", str(trace), "--journal", str(out)]) == 0

    assert "every invariant held" in capsys.readouterr().out
    assert out.stat().st_size > 1000


def test_a_journal_that_cannot_be_written_is_one_line_of_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "absent" / "journal"
    assert main(["drill", "--sim", "poisson", "--journal", str(out)]) == 1
    assert capsys.readouterr().err.endswith(f"phasescope: {out}: No such file or directory\n")


def test_a_wrong_trace_and_an_unknown_scenario_are_one_line_of_error(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at_ms": 0, "prompt_tokens": 9000, "max_tokens": 1}\n')

    with pytest.raises(ConfigError, match=r"trace.jsonl:1: does not fit"):
        trace_scenario(trace, 0)
    with pytest.raises(ConfigError, match="no scenario 'calm'"):
        build_scenario("calm", 0)


def test_a_failing_seed_prints_the_command_that_reproduces_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Scheduler, "cancel", lambda self, seq_id, reason: None)

    code = main(["drill", "--sim", "chaos", "--seed", "3", "--count", "200"])

    shown = capsys.readouterr().err
    assert code == 1
    assert "reproduce: phasescope drill --sim chaos --seed " in shown
