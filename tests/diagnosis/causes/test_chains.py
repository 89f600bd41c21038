"""Chains of causes: the first link is named, and each link has its proof."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import msgspec
import numpy as np
import pytest

from benchmarks.diagnosis.chains.twins import chain_of as chain_said
from benchmarks.diagnosis.chains.twins import judge_chain
from diagnosis.attribution.charges import Blame, Charges, EngineTime
from diagnosis.attribution.first_links import (
    block_holders,
    charge_first_links,
    held_facts,
    wave_ns,
)
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import Counts, Stage
from diagnosis.detection.learning import BaselineLearner
from diagnosis.detection.reference import slo_baseline
from diagnosis.detection.steps import StepRow, Steps
from diagnosis.detection.window import Window
from diagnosis.evidence import Measurement
from diagnosis.symptoms import Finding, Link, Symptom
from diagnosis.verdicts.chains import LINKS, FirstLinks, chain_of
from diagnosis.verdicts.classifier import Diagnoser
from diagnosis.verdicts.rules import findings_of
from lab.twins.chains import CHAINS, build_chain, has_come_about
from telemetry.facts.engine_records import Row, SequencePaused
from telemetry.facts.reasons import WaitReason
from telemetry.facts.records import fact_ns
from telemetry.facts.step_parts import Skip
from tests.support.worlds.facts import step

S, M = Symptom, Measurement
SECOND = 1_000_000_000


def steps_of(**columns: float) -> Steps:
    """Ten steps of a tenth of a second with these columns."""
    row = StepRow(*[0] * len(StepRow._fields))._replace(turn_ns=SECOND // 10, **columns)
    return Steps(np.array([row] * 10, dtype=np.float64))


def window_of(steps: Steps, counts: Counts | None = None) -> Window:
    counts = counts or Counts()
    return Window(seconds=1.0, counts=counts, later_half=counts, steps=steps, started=None)


def charged(harm: dict[Symptom, float], window: Window) -> Blame:
    """Seconds of harm, moved to first links."""
    found = Blame(
        1.0, SECOND * sum(harm.values()), dict.fromkeys(Stage, 0.0),
        Charges({symptom: s * SECOND for symptom, s in harm.items()}),
        dict.fromkeys(Stage, 0.0) | {Stage.DECODE: SECOND * sum(harm.values())}, EngineTime(),
    )  # fmt: skip
    charge_first_links(found, window, slo_baseline())
    return found


def links(chain: tuple[Link, ...]) -> tuple[Symptom, ...]:
    return tuple(link.symptom for link in chain)


def test_blocks_held_for_slow_clients_make_them_the_first_link() -> None:
    """All of the wait moves, although others hold more: those were there before."""
    window = window_of(steps_of(blocks_total=100, slow_blocks=40, short=True))
    found = charged({S.KV_EXHAUSTION: 2.0, S.KV_THRASH: 3.0}, window)
    chain = chain_of(found, S.SLOW_CLIENT)

    assert found.harm_ns[S.KV_THRASH] == found.harm_ns[S.KV_EXHAUSTION] == 0
    assert links(chain) == (S.SLOW_CLIENT, S.KV_EXHAUSTION, S.KV_THRASH)
    assert [link.harm_ms for link in chain] == [5000, 5000, 3000]
    assert ("slow_blocks_share", 0.4) in [(e.name, e.value) for e in chain[1].evidence]


@pytest.mark.parametrize(
    "columns",
    [
        {"blocks_total": 100, "slow_blocks": 10, "short": True},
        {"blocks_total": 100, "slow_blocks": 60, "short": False},
    ],
    ids=["few blocks", "nobody waits"],
)
def test_without_the_proof_the_effect_keeps_its_harm(columns: dict[str, float]) -> None:
    found = charged({S.KV_EXHAUSTION: 2.0}, window_of(steps_of(**columns)))

    assert found.harm_ns[S.KV_EXHAUSTION] == 2 * SECOND
    assert chain_of(found, S.SLOW_CLIENT) == ()


def test_a_pool_that_became_smaller_is_the_cause_itself() -> None:
    one = build_chain("leak_then_cache", 1000)
    diagnoser = Diagnoser()
    diagnoser.on_facts(one.facts[:2000])
    started = diagnoser._aggregator.started
    assert started is not None
    larger = msgspec.structs.replace(started, blocks_total=2 * started.blocks_total)
    steps = steps_of(blocks_total=100, zombie_blocks=50, short=True)
    window = replace(window_of(steps), started=started)
    found = Blame(
        1.0, SECOND, dict.fromkeys(Stage, 0.0), Charges({S.KV_EXHAUSTION: SECOND}),
        dict.fromkeys(Stage, 0.0), EngineTime(),
    )  # fmt: skip
    reference = msgspec.structs.replace(slo_baseline(), started=larger)
    charge_first_links(found, window, reference)

    assert found.harm_ns[S.KV_EXHAUSTION] == SECOND


def test_who_holds_blocks_is_not_measured_while_nobody_waits_for_some() -> None:
    taken = held_facts(window_of(steps_of(blocks_total=100, slow_blocks=60)))

    assert set(taken.values()) == {None}
    assert not block_holders(taken)


def test_what_a_paused_sequence_holds_is_derived_from_its_rows() -> None:
    """It keeps 40 tokens in three blocks while it has no row, and none once it is preempted."""
    counted = Aggregator()
    skip = Skip(9, WaitReason.KV, None)
    counted.on_fact(step(1, 0, 10, [Row(1, False, 1, 39, 0, 1, False)]))
    counted.on_fact(SequencePaused(1, 11_000_000, 2))
    counted.on_fact(step(2, 20, 30, [Row(1, False, 1, 39, 0, 1, False)]))
    counted.on_fact(step(3, 30, 40, [], skips=(skip,)))
    counted.on_fact(step(4, 40, 50, [], preempted=(1,)))
    counted.on_fact(step(5, 50, 60, []))
    steps = counted.steps(0, SECOND)

    assert steps.slow_blocks.tolist() == [0, 3, 3, 3, 0]
    assert steps.short.tolist() == [0, 0, 1, 1, 0]


def test_requests_held_up_before_the_engine_and_those_behind_them_are_a_wave() -> None:
    """One was held up for a second and waits for two; one comes while it waits, one later."""
    held = (0, 10, 12)
    behind, later = (11, 11, 14), (20, 20, 21)

    assert wave_ns([later, held, behind], 5) == (2, 5)
    assert wave_ns([later, held, behind], inf) == (0, 0)


def test_a_link_that_was_said_stays_with_half_of_its_proof() -> None:
    found = Blame(
        10.0, 10 * SECOND, {}, Charges({S.HOST_STALL: 10.0 * SECOND}), {}, None,
        through={(S.HOST_STALL, S.QUEUE_OVERLOAD): 1.2 * SECOND},
    )  # fmt: skip

    assert chain_of(found, S.HOST_STALL) == ()
    assert links(chain_of(found, S.HOST_STALL, was_said=True)) == (S.HOST_STALL, S.QUEUE_OVERLOAD)


def test_a_finding_says_what_its_first_link_led_to() -> None:
    window = window_of(steps_of(blocks_total=100, zombie_blocks=90, short=True))
    found = charged({S.KV_EXHAUSTION: 3.0}, window)
    (said,) = findings_of(found, 0, (), ())

    assert said.symptom is S.CANCELLATION_LEAK
    assert said.runbook.endswith("cancellation_leak.md")
    assert "clients that have gone keep blocks" in said.claim
    assert said.chain_text == "cancellation_leak 3,000 ms -> kv_exhaustion 3,000 ms"


def test_late_tokens_are_named_by_who_holds_the_blocks() -> None:
    """And a finding that is a link of another one's chain is not beside it."""
    counted = Aggregator()
    counted._steps._table[:5] = steps_of(
        end_ns=SECOND, blocks_total=10, slow_blocks=5, short=True
    ).table[:5]
    counted._steps._size = 5
    named = FirstLinks(counted, BaselineLearner(counted))
    late = Finding(
        symptom=S.KV_THRASH, confidence=0.9, claim="late", harm_ms=70.0, evidence=(),
        onset_ns=0, period_s=2.0, blows=3,
    )  # fmt: skip
    (said,) = named([late], 2 * SECOND)
    reader = msgspec.structs.replace(said, blows=0, period_s=None)

    assert links(said.chain) == (S.SLOW_CLIENT, S.KV_EXHAUSTION, S.KV_THRASH)
    assert said.symptom is S.SLOW_CLIENT
    assert [one.symptom for one in named([reader, late], 2 * SECOND)] == [S.SLOW_CLIENT]


def test_every_link_is_possible_once_and_has_evidence() -> None:
    ends = [(link.cause, link.effect) for link in LINKS]

    assert len(ends) == len(set(ends))
    assert all(link.cause is not link.effect and link.evidence and link.claim for link in LINKS)


@pytest.mark.long
@pytest.mark.parametrize("name", CHAINS)
def test_the_chain_of_a_compound_is_right(name: str) -> None:
    judged = judge_chain((name, 1004))

    assert judged.is_right or judged.absent, judged


def test_the_links_of_a_twin_are_seen_in_its_facts_and_not_before() -> None:
    one = build_chain("bodies_then_wave", 1000)
    assert one.onset_ns is not None
    said = Diagnoser()
    said.on_facts([fact for fact in one.facts if fact_ns(fact) < one.onset_ns])

    assert has_come_about("queue_overload", one)
    assert chain_said(said.diagnosis()) == ()
