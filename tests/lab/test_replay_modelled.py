"""Replay by fitted cost: a recorded run, and the same run with other settings."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from statistics import mean

import pytest
from msgspec.structs import replace

from diagnosis.root_cause.outcomes import Outcomes, latency_of, outcomes_of
from lab.replay.iteration_cost import IterationCost, fit_iterations
from lab.replay.noise import Disturbance, DrawnNoise, RecordedNoise
from lab.replay.recorded import NotReplayable, RecordedRun
from lab.replay.replay_modelled import Change, replay_modelled
from lab.simulation.workload import Arrival
from telemetry.costs.step_load import StepLoad, load_of_step
from telemetry.facts.engine_records import EngineIdled, SequenceEnded, SequenceQueued, StepRecorded
from telemetry.facts.records import Fact, RequestEnded, fact_ns
from tests.support.worlds.replayed import CLASS, COST, close, disturbed, facts_at, run_of

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def busy() -> list[Fact]:
    """Above what the engine can do: a queue builds up."""
    return facts_at(6.0)


@pytest.fixture(scope="module")
def run(busy: list[Fact]) -> RecordedRun:
    return run_of(busy)


@pytest.fixture(scope="module")
def cost(run: RecordedRun) -> IterationCost:
    return fit_iterations([run])


# --- the fit ---


@pytest.mark.parametrize(
    "load",
    [
        StepLoad(decode_tokens=1, decode_rows=1, context_tokens=20, sampled_rows=1),
        StepLoad(decode_tokens=6, decode_rows=6, context_tokens=200, sampled_rows=6),
        StepLoad(prompt_tokens=10, pairs=50.0, sampled_rows=0),
        StepLoad(prompt_tokens=8, pairs=32.0, decode_tokens=5, decode_rows=5, context_tokens=150,
             sampled_rows=6),
    ],
)  # fmt: skip
def test_the_fit_finds_the_cost_that_steps_had(cost: IterationCost, load: StepLoad) -> None:
    true_ns = (
        COST.base_ns
        + COST.prefill_token_ns * load.prompt_tokens
        + COST.decode_row_ns * load.decode_rows
        + COST.context_token_ns * load.context_tokens
    )
    assert close(cost.step_ns(load), true_ns, 0.01)


def test_the_fit_has_no_bias(run: RecordedRun, cost: IterationCost) -> None:
    """A queue adds biases up, so their mean is none, weighted by time."""
    assert close(mean(one.ratio for one in cost.disturbances), 1.0, 0.003)
    assert cost.mean_error < 0.01
    assert cost.iterations == len(run.steps)
    assert cost.gap_ns == 50_000  # what the simulated loop takes between two steps


def test_decode_rows_beside_a_prompt_have_a_cost_of_their_own(
    busy: list[Fact],
) -> None:
    """From the second on each is half a ms cheaper there; learnt from short prompts, it holds for a
    long one."""
    spared_ns = 500_000
    cheaper: list[Fact] = []
    for fact in busy:
        if isinstance(fact, StepRecorded):
            load = load_of_step(fact)
            if load.prompt_tokens and load.decode_rows > 1:
                begin_ns = fact.begin_ns + spared_ns * (load.decode_rows - 1)
                fact = replace(fact, begin_ns=begin_ns)
        cheaper.append(fact)
    found = fit_iterations([run_of(cheaper)])
    alone = StepLoad(decode_tokens=6, decode_rows=6, context_tokens=200, sampled_rows=6)
    beside = alone._replace(prompt_tokens=400)
    true_ns = (
        COST.base_ns
        + COST.decode_row_ns * alone.decode_rows
        + COST.context_token_ns * alone.context_tokens
    )
    assert close(found.step_ns(alone), true_ns, 0.01)
    true_ns += COST.prefill_token_ns * beside.prompt_tokens - 5 * spared_ns
    assert close(found.step_ns(beside), true_ns, 0.01)


def test_a_few_stalled_steps_do_not_bend_the_fit(busy: list[Fact], cost: IterationCost) -> None:
    """One step in twenty took ten times as long."""
    stalled: list[Fact] = []
    for fact in busy:
        if isinstance(fact, StepRecorded) and fact.step_id % 20 == 7:
            longer_ns = 9 * (fact.committed_ns - fact.begin_ns)
            fact = replace(fact, begin_ns=fact.begin_ns - longer_ns)
        stalled.append(fact)
    found = fit_iterations([run_of(stalled)])
    load = StepLoad(decode_tokens=4, decode_rows=4, context_tokens=100, sampled_rows=4)
    assert close(found.step_ns(load), cost.step_ns(load), 0.02)
    stalls = sum(one.ratio > 5 for one in found.disturbances)
    assert stalls == pytest.approx(len(found.disturbances) / 20, abs=2)


def longer_where(busy: list[Fact], slow: Callable[[int], bool]) -> list[Fact]:
    """Steps of such numbers took 1.6 times as long."""
    found: list[Fact] = []
    for fact in busy:
        if isinstance(fact, StepRecorded) and slow(fact.step_id):
            more_ns = int(0.6 * (fact.committed_ns - fact.begin_ns))
            fact = replace(fact, begin_ns=fact.begin_ns - more_ns)
        found.append(fact)
    return found


def test_rare_slow_iterations_are_left_out_of_the_fit_and_frequent_ones_are_not(
    busy: list[Fact], run: RecordedRun, cost: IterationCost
) -> None:
    """One slow iteration in ten is an outlier; where the last 40 % are slow, the machine is
    slow."""
    load = StepLoad(decode_tokens=4, decode_rows=4, context_tokens=100, sampled_rows=4)
    usual_ns, last = cost.step_ns(load), max(run.steps)
    now_and_then = fit_iterations([run_of(longer_where(busy, lambda n: n % 10 == 7))])
    for_long = fit_iterations([run_of(longer_where(busy, lambda n: n > 0.6 * last))])

    assert close(now_and_then.step_ns(load), usual_ns, 0.01)
    assert 1.08 * usual_ns < for_long.step_ns(load) < 1.5 * usual_ns


def test_each_number_of_decode_rows_has_a_factor_of_its_own(
    busy: list[Fact], cost: IterationCost
) -> None:
    """Kernels that compute rows in pairs: even numbers of rows cost a tenth less, but not beside a
    prompt. Numbers seen fewer than thirty times have no factor."""
    by_twos: list[Fact] = []
    seen = Counter[int]()
    for fact in busy:
        if isinstance(fact, StepRecorded):
            rows = load_of_step(fact)
            seen[0 if rows.prompt_tokens else rows.decode_tokens] += 1
            if not rows.prompt_tokens and rows.decode_tokens % 2 == 0:
                fact = replace(
                    fact, begin_ns=fact.begin_ns + (fact.committed_ns - fact.begin_ns) // 10
                )
        by_twos.append(fact)
    found = fit_iterations([run_of(by_twos)])
    assert set(found.factors) == {tokens for tokens in seen if tokens and seen[tokens] >= 30}
    assert max(found.factors) < max(seen)
    for rows, factor in {2: 0.9, 3: 1.0, 4: 0.9, 5: 1.0}.items():
        load = StepLoad(
            decode_tokens=rows, decode_rows=rows, context_tokens=30 * rows, sampled_rows=rows
        )
        assert close(found.step_ns(load), factor * cost.step_ns(load), 0.02), rows
        beside = load._replace(prompt_tokens=64, pairs=2048.0)
        assert close(found.step_ns(beside), cost.step_ns(beside), 0.05), rows


def test_a_step_of_another_shape_costs_more_in_the_fit_and_in_the_replay(busy: list[Fact]) -> None:
    """Five ms, wherever the step before had another number of tokens."""
    dearer: list[Fact] = []
    tokens = 0
    for fact in busy:
        if isinstance(fact, StepRecorded):
            before, tokens = tokens, sum(row.tokens for row in fact.rows)
            if tokens != before:
                fact = replace(fact, begin_ns=fact.begin_ns - 5_000_000)
        dearer.append(fact)
    run = run_of(dearer)
    found = fit_iterations([run])
    load = StepLoad(decode_tokens=4, decode_rows=4, context_tokens=100, sampled_rows=4)
    assert close(found.step_ns(load.after(3)) - found.step_ns(load.after(4)), 5_000_000, 0.05)

    tokens = 0
    for fact in replay_modelled(run, found):
        if isinstance(fact, StepRecorded):
            load = load_of_step(fact).after(tokens)
            tokens = load.tokens
            assert close(fact.committed_ns - fact.begin_ns, found.step_ns(load), 0.001)


def test_an_engine_with_only_paused_sequences_is_idle_and_not_stalled() -> None:
    """A request that comes then is served at once, in the replay as in the record."""

    def slow(number: int, arrival: Arrival) -> Arrival:
        if not number % 3:
            return arrival
        return dataclasses.replace(arrival, pause_ns=60_000_000, resume_ns=3_000_000_000)

    facts = facts_at(0.8, count=90, changed=slow)
    run = run_of(facts)
    held = [fact for fact in run.others if isinstance(fact, EngineIdled) and fact.running]
    cost = fit_iterations([run])
    assert len(held) > 20
    assert {one.gap_ns for one in cost.disturbances} == {50_000}
    noise = RecordedNoise(cost.disturbances)
    again = outcomes_of(replay_modelled(run, cost, Change(noise=noise))).classes[CLASS]
    was = outcomes_of(facts).classes[CLASS]
    assert again.latency["ttft"].max_ms == pytest.approx(was.latency["ttft"].max_ms, rel=0.02)


def test_too_few_steps_are_not_fitted() -> None:
    with pytest.raises(NotReplayable, match="needs 30"):
        fit_iterations([run_of(facts_at(1.0, count=1))])


# --- as it was ---


def test_a_replay_by_fitted_cost_is_like_the_recorded_run(
    busy: list[Fact], run: RecordedRun, cost: IterationCost
) -> None:
    was, found = outcomes_of(busy), outcomes_of(replay_modelled(run, cost))
    assert found.classes[CLASS].requests == was.classes[CLASS].requests
    for measure, latency in was.classes[CLASS].latency.items():
        replayed = found.classes[CLASS].latency[measure]
        assert replayed.count == latency.count, measure
        if measure != "queue":  # of which most are nearly nothing
            assert close(replayed.p50_ms, latency.p50_ms, 0.03), measure
            assert close(replayed.p99_ms, latency.p99_ms, 0.03), measure


def test_a_replay_is_a_journal_like_any_other(run: RecordedRun, cost: IterationCost) -> None:
    """In the order of time, every request ended once, with as many tokens as it had."""
    facts = replay_modelled(run, cost)
    stamps = [fact_ns(fact) for fact in facts]
    assert stamps == sorted(stamps)
    ended = [fact for fact in facts if isinstance(fact, RequestEnded)]
    assert len({fact.request_id for fact in ended}) == len(ended)
    assert {
        seq_id: sequence.end.output_tokens
        for seq_id, sequence in run.sequences.items()
        if sequence.end is not None
    } == {fact.seq_id: fact.output_tokens for fact in facts if isinstance(fact, SequenceEnded)}
    again = run_of(facts)
    assert replay_modelled(again, cost) == facts


def test_the_replay_is_a_function_of_its_inputs(run: RecordedRun, cost: IterationCost) -> None:
    def drawn(seed: int) -> list[Fact]:
        return replay_modelled(run, cost, Change(noise=DrawnNoise(disturbed(0.9, 1.1, 1.3), seed)))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


# --- as it would have been ---


def mean_ttft_ms(outcomes: Outcomes) -> float:
    return outcomes.classes[CLASS].latency["ttft"].p50_ms


def test_a_larger_batch_removes_the_queue(run: RecordedRun, cost: IterationCost) -> None:
    """And the world, run with the larger batch, agrees with what the replay predicted."""
    small = facts_at(6.0, max_seqs=2)
    small_run = run_of(small)
    limits = dataclasses.replace(small_run.limits, max_seqs=8)
    predicted = outcomes_of(
        replay_modelled(small_run, fit_iterations([small_run]), Change(limits=limits))
    )
    true = outcomes_of(facts_at(6.0, max_seqs=8))
    assert mean_ttft_ms(true) < 0.5 * mean_ttft_ms(outcomes_of(small))
    assert close(mean_ttft_ms(predicted), mean_ttft_ms(true), 0.25)


def test_a_smaller_cache_preempts(run: RecordedRun, cost: IterationCost) -> None:
    limits = dataclasses.replace(run.limits, blocks_total=20)
    facts = replay_modelled(run, cost, Change(limits=limits))
    steps = [fact for fact in facts if isinstance(fact, StepRecorded)]
    assert sum(len(step.preempted) for step in steps) > 0
    assert {step.blocks_total for step in steps} == {20}


def test_a_removed_sequence_delays_no_other(run: RecordedRun, cost: IterationCost) -> None:
    half = frozenset(seq_id for seq_id in run.sequences if seq_id % 2)
    facts = replay_modelled(run, cost, Change(without=half))
    came = {fact.seq_id for fact in facts if isinstance(fact, SequenceQueued)}
    assert came == set(run.sequences) - half
    found = outcomes_of(facts)
    assert found.classes[CLASS].counted == len(came)
    assert mean_ttft_ms(found) < mean_ttft_ms(outcomes_of(replay_modelled(run, cost)))


def test_the_gateway_follows_the_tokens_as_closely_as_it_did(
    run: RecordedRun, cost: IterationCost
) -> None:
    """Text and last byte come as long after the last token, which itself comes much earlier."""

    def delays(facts: list[Fact]) -> dict[str, tuple[int, int]]:
        ends = {f"r{f.seq_id}": f.at_ns for f in facts if isinstance(f, SequenceEnded)}
        return {
            fact.request_id: (
                fact.at_ns - ends[fact.request_id],
                (fact.detokenized_ns or 0) - ends[fact.request_id],
            )
            for fact in facts
            if isinstance(fact, RequestEnded) and fact.request_id in ends
        }

    half = frozenset(seq_id for seq_id in run.sequences if seq_id % 2)
    facts = replay_modelled(run, cost, Change(without=half))
    was, now = delays([*run.facts, *run.others]), delays(facts)
    assert len(now) == len(run.sequences) - len(half)
    assert {name: was[name] for name in now} == now


def test_prompts_and_outputs_can_be_cut(run: RecordedRun, cost: IterationCost) -> None:
    """Of those sequences that are named, and never made longer."""
    one, two, *_ = sorted(run.sequences)
    was = run.sequences[two].entry
    facts = replay_modelled(run, cost, Change(prompts={one: 5, two: 9_999}, outputs={one: 2}))
    queued = {fact.seq_id: fact for fact in facts if isinstance(fact, SequenceQueued)}

    assert (queued[one].prompt_tokens, queued[one].max_tokens) == (5, 2)
    assert (queued[two].prompt_tokens, queued[two].max_tokens) == (
        was.prompt_tokens,
        was.max_tokens,
    )


def test_a_stall_that_was_recorded_stalls_the_replay(run: RecordedRun, cost: IterationCost) -> None:
    """Half a second after one iteration: some token comes that much later."""
    calm = [one._replace(ratio=1.0, gap_ns=50_000) for one in cost.disturbances]
    place = len(calm) // 3
    stalled = [*calm]
    stalled[place] = calm[place]._replace(gap_ns=500_000_000)

    def longest_gap_ms(known: list[Disturbance]) -> float:
        facts = replay_modelled(run, cost, Change(noise=RecordedNoise(known)))
        return outcomes_of(facts).classes[CLASS].latency["itl"].max_ms

    assert longest_gap_ms(stalled) >= longest_gap_ms(calm) + 400


def test_quantiles_are_of_the_nearest_rank() -> None:
    latency = latency_of([ms * 1_000_000 for ms in range(100, 0, -1)])
    assert (latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.max_ms) == (50, 90, 99, 100)
