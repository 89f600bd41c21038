"""Replay of an attached vLLM: what drives its scheduler, with a small scheduler in its place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace as with_fields
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnosis.root_cause.whatif import NoiseKind
from diagnosis.root_cause.whatif_vllm import replay_vllm_journal
from lab.replay.recorded import NotReplayable, read_runs
from lab.vllm_replay.decisions import Cause, Kind
from lab.vllm_replay.protocol import Arrive, Build, SchedulerFailed
from lab.vllm_replay.recording import VllmRun, read_vllm_runs
from lab.vllm_replay.replay_exact import Identity, replay_exactly
from lab.vllm_replay.replay_modelled import Stuck, load_of_planned, replay_modelled
from lab.vllm_replay.scheduler_process import scheduler_process
from lab.vllm_replay.settings import BLOCKS, CHANGEABLE, build_of, changed
from service.cli.main import main
from service.config.settings import ConfigError
from telemetry.costs.step_load import load_of_step
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import (
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    SequenceSubmitted,
)
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from tests.support.worlds.toy_vllm import ToyScheduler, asked, flat_cost, started


def run_of(facts: Sequence[Fact], depth: int | None = None) -> VllmRun:
    (run,) = read_vllm_runs(facts)
    if depth is None:
        return run
    deep = replace(run.run.started, pipeline_depth=depth)
    return with_fields(run, run=with_fields(run.run, started=deep))


@cache
def _recorded(depth: int, seed: int) -> tuple[Fact, ...]:
    return tuple(replay_modelled(run_of(asked(seed=seed), depth), ToyScheduler(), flat_cost()))


def recorded(depth: int = 1, seed: int = 1) -> list[Fact]:
    """What the small scheduler did, with `depth` steps in flight."""
    return list(_recorded(depth, seed))


def again(facts: Sequence[Fact]) -> Identity:
    return replay_exactly(run_of(facts), ToyScheduler())


def steps_in(facts: Sequence[Fact]) -> list[StepRecorded]:
    return [fact for fact in facts if isinstance(fact, StepRecorded)]


def ends_in(facts: Sequence[Fact]) -> dict[int, SequenceEnded]:
    return {fact.seq_id: fact for fact in facts if isinstance(fact, SequenceEnded)}


# --- exact ---


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_a_scheduler_decided_it_decides_again(depth: int, seed: int) -> None:
    facts = recorded(depth, seed)

    found = again(facts)

    assert run_of(facts).depth == depth
    assert found.steps == len(steps_in(facts)) > 100
    assert found.decisions == found.same
    assert found.share == 1
    assert set(found.decisions) >= {"row", "admission", "prefix_hit", "end"}


def test_the_recorded_runs_have_preemptions_hits_and_aborts() -> None:
    facts = recorded()

    assert any(step.preempted for step in steps_in(facts))
    assert any(fact.hit_tokens for fact in facts if isinstance(fact, SequenceAdmitted))
    assert any(e.reason is EndReason.DISCONNECT for e in ends_in(facts).values())


def test_a_decision_that_differs_is_named_with_what_follows_from_it() -> None:
    facts = recorded()
    place = next(i for i, f in enumerate(facts) if isinstance(f, SequenceAdmitted) and f.hit_tokens)
    admitted = facts[place]
    assert isinstance(admitted, SequenceAdmitted)
    facts[place] = replace(admitted, hit_tokens=0)

    found = again(facts)

    (difference,) = found.differences
    assert (difference.step_id, difference.seq_id) == (admitted.step_id, admitted.seq_id)
    assert (difference.kind, difference.cause) == (Kind.PREFIX_HIT, Cause.UNKNOWN)
    assert "recorded 0 tokens" in str(difference)
    assert found.causes == {"unknown": 1}
    assert found.share < 1


def test_a_text_without_aliases_is_the_reason_for_a_missing_hit() -> None:
    facts = recorded()
    hit = next(f.seq_id for f in facts if isinstance(f, SequenceAdmitted) and f.hit_tokens)
    facts = [
        replace(f, blocks=None) if isinstance(f, SequenceQueued) and f.seq_id == hit else f
        for f in facts
    ]

    found = again(facts)

    assert found.differences[0].cause is Cause.NOT_SHARED
    assert Cause.NOT_SHARED.meaning
    assert set(found.causes) <= {"not_shared", "unknown", "follows"}


def test_a_grammar_of_unknown_time_is_the_reason_for_another_admission() -> None:
    facts = [fact for fact in recorded() if type(fact).__name__ != "GrammarCompiled"]

    assert "grammar" in again(facts).causes


@pytest.mark.parametrize(("lost", "said"), [(0, "first 1 steps"), (50, "1 of its steps")])
def test_decisions_without_their_beginning_or_with_gaps_are_not_compared(
    lost: int, said: str
) -> None:
    """A sidecar may come late, or facts may be lost; a what-if replay is possible then."""
    facts = recorded()
    gone = steps_in(facts)[lost]
    run = run_of([fact for fact in facts if fact is not gone])

    with pytest.raises(NotReplayable, match=said):
        replay_exactly(run, ToyScheduler())
    assert len(steps_in(replay_modelled(run, ToyScheduler(), flat_cost()))) > 100


# --- what-if ---


def test_a_smaller_budget_bounds_each_step() -> None:
    run = run_of(recorded())

    facts = replay_modelled(
        run, ToyScheduler(), flat_cost(), changed(run.build, ["max_num_batched_tokens=32"])
    )

    tokens = [sum(row.tokens for row in step.rows) for step in steps_in(facts)]
    assert max(tokens) == 32
    assert len(ends_in(facts)) == len(ends_in(recorded()))


def test_a_replay_with_nothing_changed_and_the_same_cost_is_what_it_was() -> None:
    facts = recorded(depth=2)

    replayed = replay_modelled(run_of(facts), ToyScheduler(), flat_cost())

    assert [s.committed_ns for s in steps_in(replayed)] == [s.committed_ns for s in steps_in(facts)]


def test_aborts_keep_their_times_and_outputs_their_lengths() -> None:
    facts = recorded()
    run = run_of(facts)

    slower = ends_in(replay_modelled(run, ToyScheduler(), flat_cost(base_ns=20_000_000)))

    for seq_id, was in ends_in(facts).items():
        now = slower[seq_id]
        if was.reason.outcome is Outcome.FINISHED and now.reason.outcome is Outcome.FINISHED:
            assert now.output_tokens == was.output_tokens
        elif was.reason is EndReason.DISCONNECT:
            assert now.at_ns >= was.at_ns - 100_000_000
            assert now.output_tokens <= was.output_tokens + 1


def test_a_stop_string_ends_a_sequence_after_its_recorded_tokens() -> None:
    """The front end aborts it, so its end in the core says disconnect."""
    facts = recorded()
    seq_id = next(s for s, e in ends_in(facts).items() if e.reason is EndReason.EOS)
    end = ends_in(facts)[seq_id]
    known: list[Fact] = [replace(f, reason=EndReason.DISCONNECT) if f is end else f for f in facts]
    known += [
        RequestAccepted("r", 1, "0" * 32, None, None, None, "/", "chat", "t", ""),
        SequenceSubmitted("r", 2, seq_id, 0),
        RequestEnded(
            "r", end.at_ns + 1, EndReason.STOP_STRING, 200, None, end.output_tokens,
            None, None, 0, 1, None, received_ns=end.at_ns,
        ),
    ]  # fmt: skip
    run = run_of(known)

    slower = replay_modelled(run, ToyScheduler(), flat_cost(base_ns=20_000_000))

    assert run.stopped_by_front_end == {seq_id}
    assert ends_in(slower)[seq_id].output_tokens in (end.output_tokens, end.output_tokens + 1)
    assert ends_in(slower)[seq_id].at_ns > end.at_ns
    (ended,) = (fact for fact in slower if isinstance(fact, RequestEnded))
    assert ended.received_ns is not None
    assert end.at_ns < ended.received_ns <= ended.at_ns


def test_a_cache_that_no_sequence_fits_into_is_said() -> None:
    run = run_of(asked(count=5))

    with pytest.raises(Stuck):
        replay_modelled(run, ToyScheduler(), flat_cost(), replace(run.build, blocks_total=3))


def test_the_load_of_a_planned_step_is_that_of_the_recorded_one() -> None:
    run = run_of(recorded())
    scheduler = ToyScheduler()

    facts = replay_modelled(run, scheduler, flat_cost())

    assert [load_of_planned(planned) for planned in scheduler.planned] == [
        load_of_step(
            replace(step, rows=tuple(replace(row, wasted=False) for row in step.rows))
        )._replace(reshapes=False)
        for step in steps_in(facts)
    ]


# --- settings ---


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("max_num_batched_tokens=512", "max_num_batched_tokens", 512),
        ("--max-num-seqs=3", "max_num_seqs", 3),
        ("long_prefill_token_threshold=0", "long_prefill_token_threshold", 0),
        ("enable_prefix_caching=off", "enable_prefix_caching", False),
        ("scheduler_reserve_full_isl=false", "scheduler_reserve_full_isl", False),
        ("watermark=0.02", "watermark", 0.02),
        ("policy=priority", "policy", "priority"),
        ("max_num_scheduled_tokens=64", "max_num_scheduled_tokens", 64),
        ("max_num_active_seqs=2", "max_num_active_seqs", 2),
        (
            "long_prefill_token_threshold_adaptive=true",
            "long_prefill_token_threshold_adaptive",
            True,
        ),
    ],
)
def test_a_change_sets_a_field_of_vllm(word: str, name: str, value: object) -> None:
    assert changed(build_of(started()), [word]).values[name] == value


def test_blocks_are_changed_by_vllms_flag() -> None:
    assert changed(build_of(started()), [f"{BLOCKS}=200"]).blocks_total == 200


@pytest.mark.parametrize(
    "word",
    [
        "no_such=1", "max_num_seqs", "max_num_seqs=0", "max_num_seqs=x", "watermark=1",
        "policy=vtc", "enable_prefix_caching=perhaps", "max_num_batched_tokens=7",
        "num_gpu_blocks_override=10", "enable_chunked_prefill=off",
    ],
)  # fmt: skip
def test_what_vllm_would_not_take_is_refused_in_one_line(word: str) -> None:
    with pytest.raises(ConfigError) as error:
        changed(build_of(started()), [word])
    assert "\n" not in str(error.value)


def test_recorded_settings_are_read_from_vllms_own_names() -> None:
    build = build_of(
        started(
            async_scheduling="True", watermark="0.01", long_prefill_token_threshold="256",
            max_num_scheduled_tokens="None",
        )
    )  # fmt: skip

    assert build.is_async
    assert build.blocks_total == 70
    assert build.values["watermark"] == 0.01
    assert build.values["long_prefill_token_threshold"] == 256
    assert "max_num_scheduled_tokens" not in build.values
    assert set(build.values) <= set(CHANGEABLE)


@pytest.mark.parametrize(
    "settings",
    [
        {"speculative.num_speculative_tokens": "3"},
        {"kv_transfer.kv_connector": "NixlConnector"},
        {"parallel.pipeline_parallel_size": "2"},
        {"watermark": "much"},
    ],
)
def test_what_cannot_be_replayed_is_said(settings: dict[str, str]) -> None:
    with pytest.raises(NotReplayable):
        read_vllm_runs([started(**settings)])


def test_our_own_scheduler_replays_no_vllm() -> None:
    with pytest.raises(NotReplayable, match="of vllm"):
        read_runs([started()])
    with pytest.raises(NotReplayable, match="phasescope"):
        read_vllm_runs([replace(started(), engine="phasescope")])


# --- the process and the command ---


def test_a_python_without_vllm_is_said_in_one_line() -> None:
    with (
        scheduler_process(sys.executable) as scheduler,
        pytest.raises(SchedulerFailed, match="vllm"),
    ):
        scheduler.do(build_of(started()))


def test_a_command_that_is_no_python_is_said(tmp_path: Path) -> None:
    with pytest.raises(SchedulerFailed), scheduler_process(str(tmp_path / "python")):
        pass


def test_the_command_needs_a_python_with_vllm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.journal"
    write_journal(path, recorded(), MonotonicClock(), "test")

    assert main(["replay", str(path), "--exact"]) == 1
    assert "--python" in capsys.readouterr().err


def test_a_report_compares_recorded_replayed_and_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    write_journal(path, recorded(), MonotonicClock(), "test")

    report, facts = replay_vllm_journal(
        open_journal(path), ToyScheduler(), ["max_num_seqs=2"], NoiseKind.NONE
    )

    assert report.identities is not None
    assert report.identities[0].share == 1
    assert (report.version, report.recorded_version) == ("0.32.0", "0.32.0")
    assert report.cost.mean_error < 0.01
    assert report.changed is not None
    assert max(step.running for step in steps_in(facts)) == 2


def test_equal_aliases_come_again_as_equal_aliases() -> None:
    run = run_of(recorded())
    arrivals = {
        moment.command.seq_id: moment.command
        for moment in run.moments()
        if isinstance(moment.command, Arrive)
    }

    for seq_id, sequence in run.run.sequences.items():
        assert arrivals[seq_id].aliases == tuple(sequence.block_aliases)


def test_a_build_says_all_that_the_process_needs() -> None:
    build = build_of(started())

    assert isinstance(build, Build)
    assert build.block_tokens == 16
    assert build.max_model_tokens == 1024
