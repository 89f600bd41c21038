"""What chance can do is told from what has a cause, by how much of the usual was seen."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.attribution.blame import blame
from diagnosis.attribution.chance import binomial_tail, predictive_tail, standard_error
from diagnosis.attribution.demand import demand_delta
from diagnosis.detection.counts import Counts, Stage
from diagnosis.detection.host_time import HostTime
from diagnosis.detection.reference import Reference, fit_baseline
from diagnosis.detection.steps import StepRow, Steps
from diagnosis.detection.window import Window
from diagnosis.symptoms import Symptom
from telemetry.facts.reasons import WaitReason
from tests.diagnosis.test_engine_time import MS, SECOND, baseline, charged, decodes

S = Symptom
NO_STEPS = Steps(np.zeros((0, len(StepRow._fields))))


@given(total=st.integers(0, 60), least=st.integers(0, 61))
def test_without_any_knowledge_every_number_is_as_likely(total: int, least: int) -> None:
    expected = max(0, total + 1 - least) / (total + 1)
    assert predictive_tail(least, total, 0, 0) == pytest.approx(expected, abs=1e-9)


@given(least=st.integers(0, 12), total=st.integers(1, 40), share=st.floats(0.02, 0.98))
def test_of_a_share_that_is_well_known_the_tail_is_binomial(
    least: int, total: int, share: float
) -> None:
    known = 100_000_000
    assert predictive_tail(least, total, share * known, known) == pytest.approx(
        binomial_tail(least, total, share), abs=1e-4
    )


@given(total=st.integers(3, 200), known=st.integers(0, 500), more=st.integers(1, 500))
def test_the_longer_something_was_not_seen_the_less_chance_brings_it(
    total: int, known: int, more: int
) -> None:
    assert predictive_tail(3, total, 0, known + more) < predictive_tail(3, total, 0, known)


def test_a_mean_is_compared_with_one_that_is_an_estimate_too() -> None:
    assert standard_error(3.0, 9, 0) == 1.0
    assert standard_error(3.0, 9, 9) == pytest.approx(2**0.5)


def learnt(prompts: list[int], outputs: list[int], **more: object) -> Reference:
    """The baseline of a minute with these sequences, one a request."""
    counts = Counts(requests=len(prompts), admitted=len(prompts))
    counts.prompt_lengths += prompts
    counts.output_lengths += outputs
    counts.choices_requested += [1] * len(prompts)
    return msgspec.structs.replace(fit_baseline(60.0, counts, NO_STEPS, None), **more)


def seen(prompts: list[int], running: list[int] | None = None, **more: int) -> Window:
    counts = Counts(requests=len(prompts), **more)
    counts.prompt_lengths += prompts
    counts.open_lengths += running or []
    return Window(5.0, counts, counts, NO_STEPS, None)


def longer_prompts(found: Window, usual: Reference) -> float:
    return demand_delta(found, usual).prompt_tokens.get(S.PREFILL_INTERFERENCE, 0.0)


def test_three_long_prompts_after_few_short_ones_are_no_growth() -> None:
    """Sixty-three requests say little of what one in twenty is; two hundred of them do."""
    short = [16 + number % 33 for number in range(63)]
    burst = [16 + number % 33 for number in range(38)] + [120, 130, 150]

    assert longer_prompts(seen(burst), learnt(short, [])) == 0
    assert longer_prompts(seen(burst), learnt(short * 6, [])) > 300
    assert longer_prompts(seen([*short, *[130] * 20]), learnt(short, [])) > 1_000


def test_of_very_many_prompts_a_few_long_ones_are_chance_and_a_share_of_them_is_not() -> None:
    """Clients choose how many come: the tail of thousands is a sum over columns, not a loop."""
    usual = learnt([20, 30, 40] * 100, [])
    crowd, few = [30] * 17_000 + [130] * 800, [30] * 17_000 + [130] * 3

    assert longer_prompts(seen(crowd), usual) > 60_000
    assert longer_prompts(seen(few), usual) == 0
    assert predictive_tail(8_000, 16_000, 0, 300) < 1e-9


def test_long_answers_that_run_are_those_that_always_run() -> None:
    """A sequence that runs now is longer than the mean, since long ones run for longer."""
    draw = np.random.default_rng(2)
    lengths = (1 + draw.exponential(100, 4_000)).astype(int)
    usual = learnt([30] * 400, lengths[:400].tolist())
    # the tokens so far of a sequence that runs: a part of its length, drawn by the length
    running = draw.choice(lengths, 3_000, p=lengths / lengths.sum()) * draw.random(3_000)
    grown = 0
    for begin in range(0, 3_000, 60):
        found = seen([30] * 60, running[begin : begin + 60].astype(int).tolist())
        grown += demand_delta(found, usual).output_tokens > 0

    assert grown <= 1
    many = seen([30] * 60, [700] * 15 + [50] * 45)
    assert demand_delta(many, usual).output_tokens > 5_000


def test_growth_is_beyond_what_a_short_baseline_leaves_open() -> None:
    """A hundred prompts that are half as long again: after ten of very different lengths that may
    be chance, after a thousand it is none."""
    odd, now = [10, 90, 20, 80, 30, 70, 40, 60, 50, 50], [75] * 60 + [70] * 20 + [85] * 20

    assert longer_prompts(seen(now), learnt(odd, [])) == 0
    assert longer_prompts(seen(now), learnt(odd * 100, [])) > 2_000


def test_first_turns_that_come_together_are_no_cold_cache() -> None:
    """Sixty requests of the baseline hit the cache, and one in thirty of all misses it."""
    usual = learnt([100] * 60, [], hit_share=0.9, hit_requests_share=1.0)
    some = seen([100] * 20, admitted=20, known_tokens=2_000, hit_tokens=1_530, hit_requests=17)
    most = seen([100] * 20, admitted=20, known_tokens=2_000, hit_tokens=540, hit_requests=6)

    assert S.PREFIX_CACHE_COLD not in demand_delta(some, usual).prompt_tokens
    assert demand_delta(most, usual).prompt_tokens[S.PREFIX_CACHE_COLD] > 1_000


def test_a_cause_is_charged_its_part_of_a_queue_that_chance_made() -> None:
    """Twice as many requests came as usual, which two seconds leave open; a tenth of the engine's
    time beyond the usual goes to a garbage collection."""
    usual = msgspec.structs.replace(
        baseline(), requests_per_s=2.0, prompt_tokens=10.0, output_tokens=20.0
    )
    table = decodes(2, 10, 190, more_ms=0)
    counts = Counts(requests=8, admitted=8)
    counts.prompt_lengths += [10] * 8
    counts.waited_ns[WaitReason.SEQS] = 4 * SECOND
    counts.live_ns[Stage.FIRST] = 6 * SECOND
    counts.pauses["engine", "gc"] = 300 * MS
    for name in ("forward_ns", "turn_ns"):
        table[:30, StepRow._fields.index(name)] += 10 * MS
    window = Window(2.2, counts, counts, Steps(table), None)

    found = blame(window, usual)

    assert found.engine is not None
    assert found.engine.by_chance_ns > 0
    assert 0 < found.harm_ns[S.HOST_STALL] < 0.8 * found.excess_ns


def test_a_little_slowness_that_the_machine_has_by_itself_is_not_throttling() -> None:
    """Steps take 1.13 times as long for three seconds, and the thread slept for most of the rest:
    on a machine whose speed varies by a tenth that says nothing; half as slow again does."""

    def lost_ns(factor: float, speed_spread: float) -> float:
        table = decodes(2, 10 * factor, round(300 / factor))
        ran = HostTime(3 * SECOND, 3 * SECOND, 3 * SECOND / factor)
        return charged(table, speed_spread=speed_spread, host=ran).taken_ns[S.THROTTLED]

    assert lost_ns(1.13, 0.1) == 0
    assert lost_ns(1.5, 0.1) > 0.9 * SECOND
    assert lost_ns(1.3, 0.01) > 0.6 * SECOND


def test_slow_steps_have_lost_no_more_than_the_time_in_which_there_were_steps() -> None:
    """A quarter slower for eight seconds: of a busy engine that is 1.6 s, of one that has work for
    a fifth of the time 0.3 s."""
    busy = decodes(2, 12.5, 900)
    seldom = decodes(2, 12.5, 180)
    seldom[:, StepRow._fields.index("end_ns")] *= 5

    def lost_ns(table: np.ndarray) -> float:
        found = charged(table).taken_ns
        return found[S.THROTTLED] + found[S.MEMORY_BANDWIDTH]

    assert lost_ns(busy) > SECOND
    assert lost_ns(seldom) == 0
