"""Adapters in the engine: who waits, who makes room, what is shared, how one is unloaded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lab.replay.recorded import read_runs
from lab.replay.replay_exact import replay_exactly
from lab.simulation.scenarios import build_scenario, small_limits
from lab.simulation.sim_adapters import SimAdapter
from lab.simulation.workload import Arrival
from lab.simulation.world import Report, Scenario, World
from service.engine.inbox import Command, LoadAdapter, UnloadAdapter
from telemetry.facts.adapter_records import (
    AdapterEvicted,
    AdapterFailed,
    AdapterLoaded,
    AdapterRefused,
    AdapterUnloaded,
    UnloadMode,
)
from telemetry.facts.engine_records import (
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason, WaitReason
from telemetry.facts.records import Fact, fact_ns

MS = 1_000_000
SECOND = 1_000 * MS
PROMPT = tuple(range(12))
# known to the world's gateway, read and placed as far as there is room
AFTER_LOADS_NS = SECOND


def run(
    arrivals: Sequence[Arrival],
    adapters: Sequence[SimAdapter],
    memory_bytes: int = 100,
    commands: Sequence[tuple[int, Command]] = (),
    **limits: object,
) -> Report:
    scenario = Scenario(
        name="adapters",
        seed=0,
        limits=small_limits(adapter_bytes=memory_bytes, max_adapters=8, **limits),
        arrivals=tuple(arrivals),
        adapters=tuple(adapters),
        commands=tuple(commands),
    )
    return World(scenario).run()


def arrival(adapter: str = "", after_ns: int = 0, max_tokens: int = 4, **more: object) -> Arrival:
    return Arrival(
        at_ns=AFTER_LOADS_NS + after_ns,
        prompt=PROMPT,
        max_tokens=max_tokens,
        adapter=adapter,
        **more,  # type: ignore[arg-type]
    )


def unload(mode: UnloadMode, name: str = "k", after_ns: int = 0) -> tuple[int, Command]:
    return AFTER_LOADS_NS + after_ns, UnloadAdapter(ticket=1, name=name, mode=mode)


def of(report: Report, kind: type) -> list[Fact]:
    return [fact for fact in report.facts if isinstance(fact, kind)]


def admitted(report: Report) -> list[int]:
    return [fact.seq_id for fact in report.facts if isinstance(fact, SequenceAdmitted)]


def ends(report: Report) -> dict[int, EndReason]:
    return {f.seq_id: f.reason for f in report.facts if isinstance(f, SequenceEnded)}


K, L = SimAdapter(name="k"), SimAdapter(name="l")


def test_a_sequence_waits_for_its_adapter_and_later_ones_pass_it() -> None:
    """There is room for one of the two, and the other is placed."""
    report = run([arrival("l"), arrival(after_ns=MS)], [K, L])

    queued = {f.seq_id: f.awaits_adapter for f in report.facts if isinstance(f, SequenceQueued)}
    assert queued == {0: True, 1: False}
    assert admitted(report) == [1, 0]
    woken = [f.seq_ids for f in report.facts if isinstance(f, AdapterLoaded)]
    assert woken == [(), (0,)]


def test_the_least_recently_used_adapter_makes_room() -> None:
    adapters = [K, L, SimAdapter(name="m")]
    report = run(
        [arrival("l"), arrival("k", SECOND), arrival("m", 2 * SECOND)], adapters, memory_bytes=200
    )

    assert [f.number for f in report.facts if isinstance(f, AdapterEvicted)] == [2]


def test_an_adapter_in_use_is_never_evicted() -> None:
    """The one that wants its room waits until the last sequence with it has ended."""
    report = run([arrival("k", max_tokens=30), arrival("l", MS)], [K, L])

    evicted = next(fact_ns(f) for f in report.facts if isinstance(f, AdapterEvicted))
    ended = next(f.at_ns for f in report.facts if isinstance(f, SequenceEnded) and not f.seq_id)
    assert ended <= evicted


def test_nothing_is_admitted_past_one_that_waited_too_long_for_room() -> None:
    """A stream of requests with one adapter would keep another one out for ever."""
    stream = [arrival("k", n * 20 * MS, max_tokens=16) for n in range(120)]
    report = run([*stream, arrival("l", MS)], [K, L], ageing_ns=200 * MS, max_seqs=4)

    seq_id = next(f.seq_id for f in report.facts if isinstance(f, SequenceQueued) and f.adapter > 1)
    place = admitted(report).index(seq_id)
    assert place < len(stream) // 2
    held = {
        skip.reason
        for step in report.facts
        if isinstance(step, StepRecorded)
        for skip in step.skips
        if skip.seq_id == seq_id
    }
    assert held == {WaitReason.ADAPTER}


@pytest.mark.parametrize(("adapters", "hits"), [(("k", "l"), 0), (("k", "k"), 8), (("", "k"), 0)])
def test_cached_blocks_are_shared_within_an_adapter_only(
    adapters: tuple[str, str], hits: int
) -> None:
    first, second = (arrival(name, n * SECOND) for n, name in enumerate(adapters))
    report = run([first, second], [K, L], memory_bytes=200)

    found = [f.hit_tokens for f in report.facts if isinstance(f, SequenceAdmitted)]
    assert found == [0, hits]


def test_an_adapter_that_comes_back_under_its_name_shares_nothing_with_the_old_one() -> None:
    again = AFTER_LOADS_NS + 2 * SECOND, LoadAdapter(ticket=2, name="k", source="k")
    report = run(
        [arrival("k"), arrival("k", 3 * SECOND)],
        [K],
        commands=[unload(UnloadMode.WAIT, after_ns=SECOND), again],
    )

    assert [f.hit_tokens for f in report.facts if isinstance(f, SequenceAdmitted)] == [0, 0]


def test_an_unload_that_waits_serves_what_has_begun_and_takes_nothing_new() -> None:
    late = arrival("k", 300 * MS)
    report = run(
        [arrival("k", max_tokens=20), late],
        [K],
        commands=[unload(UnloadMode.WAIT, after_ns=50 * MS)],
    )

    assert ends(report) == {0: EndReason.MAX_TOKENS}  # the gateway does not know the name any more
    unloaded = next(f.at_ns for f in report.facts if isinstance(f, AdapterUnloaded))
    assert unloaded >= max(f.at_ns for f in report.facts if isinstance(f, SequenceEnded))


def test_an_unload_may_refuse_while_the_adapter_is_in_use() -> None:
    report = run(
        [arrival("k", max_tokens=20)],
        [K],
        commands=[unload(UnloadMode.REFUSE, after_ns=50 * MS)],
    )

    (refused,) = of(report, AdapterRefused)
    assert isinstance(refused, AdapterRefused)
    assert (refused.why.value, refused.live) == ("in_use", 1)
    assert not of(report, AdapterUnloaded)


def test_an_unload_by_force_ends_the_sequences_and_frees_the_memory_behind_their_step() -> None:
    """Invariant 21 watches that no launched step computes with freed weights."""
    report = run(
        [arrival("k", max_tokens=20)],
        [K],
        commands=[unload(UnloadMode.FORCE, after_ns=50 * MS)],
    )

    assert ends(report) == {0: EndReason.ADAPTER_UNLOADED}
    assert of(report, AdapterUnloaded)


def test_what_cannot_be_placed_ends_those_that_wait_for_it_and_nobody_else() -> None:
    broken = SimAdapter(name="l", is_placeable=False)
    report = run([arrival("l"), arrival("k", MS)], [K, broken])

    assert ends(report) == {0: EndReason.ADAPTER_FAILED, 1: EndReason.MAX_TOKENS}


def test_an_adapter_that_is_never_read_is_not_known() -> None:
    report = run([arrival("l")], [K, SimAdapter(name="l", is_readable=False)])

    assert report.sequences == 0
    assert [f.number for f in report.facts if isinstance(f, AdapterUnloaded)] == [2]


def test_an_adapter_that_is_larger_than_the_memory_fails_at_its_load() -> None:
    report = run([], [SimAdapter(name="k", bytes=101)])

    (failed,) = of(report, AdapterFailed)
    assert isinstance(failed, AdapterFailed)
    assert (failed.stage.value, failed.detail) == ("memory", "it takes 101 bytes of 100")


@pytest.mark.parametrize("seed", range(4))
def test_decisions_on_adapters_replay_exactly(seed: int) -> None:
    report = World(build_scenario("adapters", seed)).run()

    for recorded in read_runs(report.facts):
        identity = replay_exactly(recorded)
        assert identity.holds, identity.difference
