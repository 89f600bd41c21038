"""Timelines: phases tile the time of a request exactly, whatever its outcome."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.facts.reasons import EndReason, Phase, WaitReason
from telemetry.facts.records import EngineDied, Fact, fact_ns
from telemetry.facts.step_parts import Skip
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import Measured, RequestTimeline, WaitSpan
from tests.support.worlds.engine_world import World
from tests.support.worlds.facts import (
    MS,
    accepted,
    decode,
    parsed,
    prefill,
    queued,
    request_ended,
    sequence_ended,
    step,
    submitted,
    tokenized,
)


def fold(facts: list[Fact]) -> tuple[list[RequestTimeline], list[Measured]]:
    timelines: list[RequestTimeline] = []
    measured: list[Measured] = []
    PhaseFold([timelines.append], [measured.append]).on_facts(facts)
    return timelines, measured


def finished_request() -> list[Fact]:
    return [
        accepted(at=0),
        parsed(at=1),
        tokenized(at=2),
        submitted(at=2),
        queued(at=3),
        step(0, 10, 20, [prefill()]),
        step(1, 20, 35, [decode()]),
        step(2, 35, 60, [decode(context=6)]),
        sequence_ended(at=60),
        request_ended(at=70, first_sent_ns=22 * MS),
    ]


def borders(timeline: RequestTimeline) -> list[tuple[Phase, int, int]]:
    return [(p.name, p.start_ns // MS, p.end_ns // MS) for p in timeline.phases]


def check_tiling(timeline: RequestTimeline) -> None:
    """No gap, no overlap, nothing outside, difference exactly 0 ns."""
    at_ns = timeline.accepted.at_ns
    for phase in timeline.phases:
        assert phase.start_ns == at_ns
        assert phase.end_ns >= phase.start_ns
        at_ns = phase.end_ns
    assert at_ns == timeline.ended.at_ns
    assert sum(p.end_ns - p.start_ns for p in timeline.phases) == timeline.e2e_ns


def test_a_finished_request_goes_through_all_phases() -> None:
    """Borders as the module defines them, and the measures that follow from them."""
    (timeline,), measured = fold(finished_request())

    assert borders(timeline) == [
        (Phase.PARSE, 0, 1),
        (Phase.TOKENIZE, 1, 2),
        (Phase.QUEUE, 2, 10),
        (Phase.PREFILL, 10, 20),
        (Phase.DECODE, 20, 60),
        (Phase.DETOKENIZE, 60, 65),
        (Phase.DELIVER, 65, 70),
    ]
    values = [(m.measure.value, m.value_ns // MS) for m in measured]
    assert values == [
        ("itl", 15),
        ("itl", 25),
        ("tokenize", 1),
        ("queue", 8),
        ("prefill", 10),
        ("ttft", 22),
        ("tpot", 20),
        ("e2e", 70),
        ("deliver", 5),
    ]


@pytest.mark.parametrize(
    ("cut", "reason", "last"),
    [
        (1, EndReason.INVALID, Phase.PARSE),
        (2, EndReason.NOT_READY, Phase.TOKENIZE),
        (4, EndReason.QUEUE_FULL, Phase.QUEUE),
        (5, EndReason.DISCONNECT, Phase.QUEUE),
        (6, EndReason.TIMEOUT, Phase.DECODE),
        (7, EndReason.DISCONNECT, Phase.DECODE),
    ],
)
def test_a_request_that_ends_early_is_cut_in_its_phase(
    cut: int, reason: EndReason, last: Phase
) -> None:
    """The phases so far tile up to the end; no later phase is invented."""
    facts = finished_request()[:cut]
    if cut > 4:
        facts.append(sequence_ended(at=64, reason=reason))
    elif cut == 4:
        facts.append(sequence_ended(at=4, reason=reason))
    facts.append(request_ended(at=66, reason=reason))
    (timeline,), _ = fold(facts)

    check_tiling(timeline)
    assert timeline.phases[-1].name is last
    assert timeline.truncated


def test_the_engines_death_ends_its_sequences() -> None:
    """A dead engine writes no terminal fact; the gateway's fact ends its sequences."""
    died = EngineDied(40 * MS, -9, "ended by signal 9", 0)
    ended = request_ended(at=39, reason=EndReason.ENGINE_DIED)
    (timeline,), _ = fold([*finished_request()[:7], ended, died])

    check_tiling(timeline)
    assert timeline.sequences[0].end_reason is EndReason.ENGINE_DIED


def test_a_request_whose_engine_facts_were_lost_is_given_out_after_a_grace_period() -> None:
    """Nothing is kept for ever."""
    facts = [*finished_request()[:7], request_ended(at=70)]
    timelines, _ = fold(facts)
    assert timelines == []

    (timeline,), _ = fold([*facts, step(9, 5000, 5001, [])])
    check_tiling(timeline)


def test_a_wait_has_the_reason_of_the_queue_head_and_the_head() -> None:
    """The head waits for its own reason, those behind it wait for the head."""
    facts: list[Fact] = [
        *(accepted(r, at=0) for r in ("a", "b")),
        *(parsed(r) for r in ("a", "b")),
        *(tokenized(r) for r in ("a", "b")),
        submitted("a", seq_id=1),
        submitted("b", seq_id=2),
        queued(1, at=3),
        queued(2, at=4),
        step(0, 5, 20, [decode(9)], (Skip(1, WaitReason.SEQS, None),), waiting=2),
        step(1, 20, 30, [prefill(1)], (Skip(2, WaitReason.KV, None),), waiting=1),
        step(2, 30, 40, [prefill(2), decode(1)]),
        sequence_ended(1, at=40),
        sequence_ended(2, at=41),
        request_ended("a", at=50),
        request_ended("b", at=50),
    ]
    timelines, _ = fold(facts)
    waits = {t.accepted.request_id: t.sequences[0].waits for t in timelines}

    assert waits["a"] == (WaitSpan(WaitReason.SEQS, None, 5 * MS, 20 * MS),)
    assert waits["b"] == (
        WaitSpan(WaitReason.HEAD_OF_LINE, 1, 5 * MS, 20 * MS, WaitReason.SEQS),
        WaitSpan(WaitReason.KV, None, 20 * MS, 30 * MS),
    )


def test_a_preemption_lasts_from_the_plan_to_the_next_token() -> None:
    """And its recompute is not counted as the first prefill."""
    facts = finished_request()[:7]
    facts += [
        step(2, 35, 40, [decode(7)], (Skip(1, WaitReason.PREEMPTED, None),), preempted=(1,)),
        step(3, 40, 55, [prefill(1, tokens=6)]),
        sequence_ended(at=55),
        request_ended(at=70),
    ]
    (timeline,), _ = fold(facts)
    (gap,) = timeline.sequences[0].preempted

    assert (gap.start_ns // MS, gap.end_ns // MS) == (35, 55)
    assert borders(timeline)[3] == (Phase.PREFILL, 10, 20)
    assert timeline.sequences[0].waits[-1].reason is WaitReason.PREEMPTED


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            st.integers(1, 40),
            st.integers(1, 12),
            st.sampled_from([None, EndReason.DISCONNECT, EndReason.TIMEOUT]),
            st.integers(0, 10),
        ),
        min_size=1,
        max_size=12,
    ),
    depth=st.sampled_from([1, 2]),
    shuffle=st.randoms(use_true_random=False),
)
def test_every_request_of_a_simulated_run_has_one_timeline_that_tiles(
    requests: list[tuple[int, int, EndReason | None, int]], depth: int, shuffle: random.Random
) -> None:
    """Production engine in virtual time, gateway facts around it, lanes interleaved at random."""
    world = World(blocks_total=20, depth=depth)
    gateway: list[Fact] = []

    def now() -> int:
        return world.clock.now_ns() // MS

    for index, (prompt, outputs, cancel, delay) in enumerate(requests):
        name = f"r{index}"
        gateway += [accepted(name, now()), parsed(name, now()), tokenized(name, now())]
        world.clock.advance(MS)
        seq_id = world.submit(prompt, outputs)
        gateway.append(submitted(name, now(), seq_id))
        for _ in range(delay):
            world.step()
        if cancel is not None:
            world.cancel(seq_id, cancel)
    world.run()
    world.clock.advance(10 * MS)
    for index in range(len(requests)):
        reason = world.ends[index][0]
        gateway.append(request_ended(f"r{index}", now(), reason))
    merged = sorted([*gateway, *world.facts], key=fact_ns)
    cuts = sorted(shuffle.randrange(len(merged) + 1) for _ in range(5))
    timelines: list[RequestTimeline] = []
    phases = PhaseFold([timelines.append])
    for begin, end in zip([0, *cuts], [*cuts, len(merged)], strict=True):
        phases.on_facts(merged[begin:end])

    assert sorted(t.accepted.request_id for t in timelines) == sorted(
        f"r{index}" for index in range(len(requests))
    )
    for timeline in timelines:
        check_tiling(timeline)
        (sequence,) = timeline.sequences
        assert len(sequence.token_ns) == len(world.outputs[sequence.seq_id])
    assert phases.live == 0
