"""Requests that lose their blocks after their first token are charged to thrashing."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest

from diagnosis.attribution.blame import Blame, blame
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import Counts, Stage
from diagnosis.detection.excess import stage_stats
from diagnosis.detection.reference import slo_baseline
from diagnosis.detection.steps import StepRow, Steps
from diagnosis.detection.window import Window
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.rules import findings_of
from telemetry.facts.reasons import WaitReason
from telemetry.facts.records import Fact
from telemetry.facts.step_parts import Skip
from tests.lab.test_vllm_replay import recorded, steps_in
from tests.support.worlds.facts import (
    accepted,
    parsed,
    prefill,
    queued,
    step,
    submitted,
    tokenized,
)

S = Symptom
SECOND = 1_000_000_000


def thrashing(preempted_s: float, recompute_tokens: int = 0, decode_s: float = 40.0) -> Blame:
    """Five seconds with steps of 50 ms: requests decode for `decode_s` in all, as fast as usual,
    and stand still for `preempted_s` beside that."""
    lost_ns = int(preempted_s * SECOND)
    counts = Counts(
        live_ns=Counter({Stage.DECODE: int(decode_s * SECOND) + lost_ns}),
        later_tokens=decode_s * 10,
        skipped_ns=Counter({WaitReason.PREEMPTED: lost_ns}),
    )
    row = StepRow(*[0] * len(StepRow._fields))._replace(
        turn_ns=SECOND // 20,
        decode_rows=8,
        prompt_tokens=recompute_tokens,
        recompute_tokens=recompute_tokens,
    )
    steps = Steps(np.array([row] * 100, dtype=np.float64))
    usual = msgspec.structs.replace(
        slo_baseline(), seconds=30.0, stage_ns=(0.0, 0.0, 0.1 * SECOND, 0.0)
    )
    return blame(Window(5.0, counts, counts, steps, None), usual)


@pytest.mark.parametrize("recompute_tokens", [0, 8], ids=["not yet", "computed again"])
def test_their_time_without_a_row_is_thrashing(recompute_tokens: int) -> None:
    """From the moment at which they lost their blocks, and not from when they are computed."""
    found = findings_of(thrashing(12.0, recompute_tokens), 0, (), ())

    assert [one.symptom for one in found] == [S.KV_THRASH]
    assert found[0].share == 1.0


def test_it_is_harm_where_as_much_variation_of_the_load_would_be_none() -> None:
    """Seven of forty seconds are below what healthy loads vary by, but these are measured."""
    assert [one.symptom for one in findings_of(thrashing(7.0), 0, (), ())] == [S.KV_THRASH]
    assert findings_of(thrashing(3.0), 0, (), ()) == []


def preempted(decoded: bool) -> list[Fact]:
    """A sequence that loses its blocks for three steps, before its first token or after it."""
    lost = (Skip(1, WaitReason.PREEMPTED, None),)
    waits = [
        msgspec.structs.replace(
            step(3 + n, 30 + 10 * n, 40 + 10 * n, [], lost, preempted=(1,) if n == 0 else ()),
            waiting=1,
        )
        for n in range(3)
    ]
    return [
        accepted(), parsed(), tokenized(), submitted(), queued(),
        step(2, 20, 30, [prefill(sampled=decoded)]),
        *waits,
        step(6, 60, 70, [prefill()]),
    ]  # fmt: skip


def test_they_wait_as_running_sequences_until_they_have_a_row() -> None:
    """A sequence that lost its blocks before its first token waits in the queue."""
    for decoded in (True, False):
        aggregator = Aggregator()
        aggregator.on_facts(preempted(decoded))
        counts = aggregator.counts(0, 10 * SECOND)
        lost, queued = counts.skipped_ns, counts.waited_ns

        assert lost[WaitReason.PREEMPTED] == (30_000_000 if decoded else 0)
        assert queued[WaitReason.PREEMPTED] == (0 if decoded else 30_000_000)
        assert stage_stats(counts).stopped_ns == counts.preempted_ns == 30_000_000


def test_a_replayed_head_of_the_queue_has_the_reason_that_the_hooks_give() -> None:
    """One that lost its blocks waits to be computed again, others for their first blocks."""
    lost: set[int] = set()
    found: set[WaitReason] = set()
    for one in steps_in(recorded()):
        lost |= set(one.preempted)
        if one.skips and one.waiting and one.skips[-1].reason is not WaitReason.SEQS:
            head = one.skips[-1]
            found.add(head.reason)
            assert (head.reason is WaitReason.PREEMPTED) == (head.seq_id in lost)

    assert WaitReason.PREEMPTED in found
