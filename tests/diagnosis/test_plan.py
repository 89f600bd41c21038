"""`phasescope plan`: arithmetic by hand, and rates that simulated runs confirm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnosis.root_cause.capacity import (
    RESERVE,
    Workload,
    ceiling_of,
    memory_of,
    plan_capacity,
)
from diagnosis.root_cause.outcomes import outcomes_of
from lab.replay.closed_loop import Users, closed_loop
from lab.replay.iteration_cost import IterationCost, fit_iterations
from lab.replay.recorded import NotReplayable, read_runs
from lab.simulation.scenarios import small_limits
from service.cli.main import main
from service.cli.replay import stated_policy
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import EngineStarted, StepRecorded
from telemetry.facts.engine_start import ModelShape
from telemetry.facts.records import Fact, RequestEnded
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from telemetry.requests.slo_policy import SloClass, SloPolicy
from tests.support.worlds.replayed import close, facts_at, of_a_slower_model

SHAPE = ModelShape(2, 64, 64, 32, 128, 1000, 2.0, 256)
WORKLOAD = Workload(users=8, prompt_tokens=24, output_tokens=16)


@pytest.fixture(scope="module")
def facts() -> list[Fact]:
    return [
        replace(fact, shape=SHAPE) if isinstance(fact, EngineStarted) else fact
        for fact in facts_at(6.0)
    ]


@pytest.fixture(scope="module")
def journal(facts: list[Fact], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.journal"
    write_journal(path, facts, MonotonicClock(), "test")
    return path


@pytest.fixture(scope="module")
def cost(facts: list[Fact]) -> IterationCost:
    return fit_iterations(read_runs(facts))


def test_the_cache_gets_the_memory_that_weights_leave() -> None:
    """Layers of 2 x 64 x (64 + 32) + 3 x 64 x 128 weights, and a head of 1000 x 64."""
    weights = 2 * (2 * (2 * 64 * (64 + 32) + 3 * 64 * 128) + 1000 * 64)
    limits = small_limits(blocks_total=100)
    memory = memory_of(limits, SHAPE, WORKLOAD, 10_000_000)
    assert memory.weight_bytes == weights
    assert memory.cache_bytes == int(10_000_000 * (1 - RESERVE)) - weights
    assert memory.cache_tokens == memory.cache_bytes // (4 * 256) * 4  # in whole blocks
    assert memory.longest_context_tokens == memory.cache_tokens // 8
    assert memory.users_that_fit == memory.cache_tokens // 40
    as_it_is = memory_of(limits, SHAPE, WORKLOAD, None)
    assert as_it_is.cache_tokens == 400


def test_the_ceiling_is_bytes_over_bandwidth() -> None:
    ceiling = ceiling_of(SHAPE, WORKLOAD, 1.0)
    weights = memory_of(small_limits(), SHAPE, WORKLOAD, None).weight_bytes
    assert ceiling.alone_tokens_per_s == pytest.approx(1e9 / (weights + 32 * 256))
    assert ceiling.all_tokens_per_s == pytest.approx(8e9 / (weights + 8 * 32 * 256))


@pytest.mark.parametrize("users", [1, 4, 8, 20])
def test_a_closed_loop_has_one_request_in_flight_for_each_user(
    cost: IterationCost, users: int
) -> None:
    limits = small_limits(blocks_total=256)
    asked = Users(count=users, prompt_tokens=24, output_tokens=16)
    facts = closed_loop(limits, cost, asked, rounds=4)
    steps = [fact for fact in facts if isinstance(fact, StepRecorded)]
    assert max(step.running + step.waiting for step in steps) <= users
    assert max(step.running for step in steps) == min(users, limits.max_seqs)
    assert len([fact for fact in facts if isinstance(fact, RequestEnded)]) == 3 * users
    (outcome,) = outcomes_of(facts).classes.values()
    assert outcome.output_tokens == 3 * users * 16


def test_a_single_user_never_queues(cost: IterationCost) -> None:
    facts = closed_loop(small_limits(), cost, Users(count=1, prompt_tokens=8, output_tokens=9))
    latency = next(iter(outcomes_of(facts).classes.values())).latency
    step_ms = 20 + 0.9 + 0.02 * 12  # the world's cost of one row at a context of 12
    assert close(latency["tpot"].p50_ms, step_ms, 0.03)


def test_one_users_predicted_rate_is_its_tokens_over_its_request_time(journal: Path) -> None:
    workload = Workload(users=1, prompt_tokens=8, output_tokens=9)
    (point,) = plan_capacity(open_journal(journal), workload).points
    request_s = (point.ttft_p50_ms + 8 * point.itl_p50_ms) / 1e3
    assert close(point.output_tokens_per_s, 9 / request_s, 0.02)


@pytest.mark.parametrize(("prompt", "output"), [(40, 25), (80, 1)])
def test_a_workload_longer_than_the_models_context_is_refused(
    journal: Path, prompt: int, output: int
) -> None:
    workload = Workload(users=1, prompt_tokens=prompt, output_tokens=output)
    with pytest.raises(NotReplayable, match="more than the 64"):
        plan_capacity(open_journal(journal), workload)


def test_a_workload_as_long_as_the_models_context_is_served_in_full(journal: Path) -> None:
    workload = Workload(users=1, prompt_tokens=40, output_tokens=24)
    (point,) = plan_capacity(open_journal(journal), workload).points
    assert close(point.output_tokens_per_s, 24 * 1e3 / (23 * point.itl_p50_ms), 0.2)


def test_a_plan_is_made_from_the_steps_of_engines_like_the_last_one(
    facts: list[Fact], journal: Path, tmp_path: Path
) -> None:
    """Another model ran before it, three times slower."""
    path = tmp_path / "two.journal"
    write_journal(path, [*of_a_slower_model(facts), *facts], MonotonicClock(), "test")
    alone = plan_capacity(open_journal(journal), WORKLOAD)
    assert plan_capacity(open_journal(path), WORKLOAD) == alone


def test_throughput_does_not_rise_beyond_the_slots(journal: Path) -> None:
    """It stops rising at the batch of eight, while TTFT keeps rising."""
    workload = Workload(users=32, prompt_tokens=24, output_tokens=16, slo_class="batch")
    plan = plan_capacity(open_journal(journal), workload, peak_gb_per_s=10.0)
    rates = {point.users: point.output_tokens_per_s for point in plan.points}
    assert list(rates) == [1, 2, 4, 8, 16, 32]
    assert rates[8] > 2.5 * rates[1]
    assert close(rates[32], rates[8], 0.2)
    waits = [point.ttft_p99_ms for point in plan.points]
    assert waits[-1] > 3 * waits[3]
    assert plan.knee in (8, 16)
    assert plan.ceiling is not None


def test_the_command_prints_text_and_json(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", str(journal), "--users", "8", "--prompt", "24", "--output", "16"]
    assert main([*words, "--peak-gb-per-s", "10", "--memory", "8MiB"]) == 0
    said = capsys.readouterr().out
    assert "256 bytes a token" in said
    assert "<- knee" in said
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["token_bytes"] == 256


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--users", "0"], 2, "at least 1"),
        (["--slo-class", "gold"], 2, "one of"),
        (["--memory", "100KiB"], 1, "more --memory"),
        (["--prompt", "60", "--output", "5"], 1, "more than the 64"),
    ],
)
def test_a_plan_that_is_not_possible_is_one_line_of_error(
    journal: Path, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(journal), *words]) == code
    assert said in capsys.readouterr().err


def test_records_are_judged_by_the_classes_of_the_server_that_wrote_them(
    facts: list[Fact], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan` takes such a class, and `replay` its targets, unless a file names others."""
    short = ["--prompt", "24", "--output", "16"]
    gold = SloPolicy({"gold": SloClass(name="gold", ttft_ns=10**9, itl_ns=10**8)}, default="gold")
    path = tmp_path / "gold.journal"
    write_journal(path, facts, MonotonicClock(), "test", slo=gold)
    assert main(["plan", str(path), "--slo-class", "gold", "--users", "1", *short]) == 0
    assert main(["plan", str(path), "--slo-class", "chat"]) == 2
    assert "one of gold" in capsys.readouterr().err
    assert stated_policy(None, open_journal(path)) == gold

    named = tmp_path / "slo.toml"
    named.write_text('default = "chat"\n[classes.chat]\nttft_ms = 900\nitl_ms = 90\n')
    assert stated_policy(str(named), open_journal(path)).default == "chat"


def test_a_journal_without_a_models_shape_cannot_be_planned_from(tmp_path: Path) -> None:
    path = tmp_path / "shapeless.journal"
    write_journal(path, facts_at(4.0, count=20), MonotonicClock(), "test")
    with pytest.raises(NotReplayable, match="shape"):
        plan_capacity(open_journal(path), WORKLOAD)
