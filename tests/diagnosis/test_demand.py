"""Demand beyond the baseline is distinguished from chance, from bursts, and from other demand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.attribution.demand import demand_delta, share_grew
from diagnosis.attribution.thresholds import SIGMAS
from diagnosis.detection.counts import Counts, Stage
from diagnosis.detection.excess import slow_step_excess
from diagnosis.detection.reference import Reference, fit_baseline, slo_baseline
from diagnosis.detection.step_cost import fit_cost
from diagnosis.detection.steps import StepRow, Steps
from diagnosis.detection.window import Window
from diagnosis.symptoms import Symptom

S = Symptom
SECONDS = 8.0


def baseline(
    tenants: dict[str, float] | None = None, requests_per_s: float = 10.0, **more: object
) -> Reference:
    """Ten requests a second of three tenants, prompts of 30 tokens."""
    return msgspec.structs.replace(
        slo_baseline(),
        seconds=30.0,
        requests_per_s=requests_per_s,
        tenants_per_s=tenants or {"red": 4.0, "green": 3.0, "blue": 3.0},
        prompt_tokens=30.0,
        prompt_spread=10.0,
        longest_prompt=50,
        output_tokens=30.0,
        output_spread=10.0,
        **more,
    )


def arrived(requests: dict[str, int], prompts: list[int] | None = None, waits: str = "") -> Counts:
    """Requests by tenant; those of every tenant but the ones in `waits` waited a second each."""
    counts = Counts(requests=sum(requests.values()), tenant_requests=Counter(requests))
    counts.prompt_lengths += prompts or [30] * counts.requests
    counts.first_ns += Counter({t: n * 10**9 for t, n in requests.items() if t not in waits})
    counts.live_ns[Stage.FIRST] = counts.first_ns.total()
    return counts


def window(
    counts: Counts, later: Counts, seconds: float = SECONDS, has_finding: bool = False
) -> Window:
    steps = Steps(np.zeros((0, len(StepRow._fields))))
    return Window(seconds, counts, later, steps, started=None, has_finding=has_finding)


def test_more_requests_are_demand_only_while_they_keep_coming() -> None:
    """Requests that came at once and are over were a burst, which a queue is meant for."""
    many = arrived({"red": 70, "green": 60, "blue": 60})
    lasting, over = arrived({"red": 35, "green": 30, "blue": 30}), arrived({"red": 12, "green": 14})

    assert demand_delta(window(many, lasting), baseline()).more_requests == 190 - 80
    assert demand_delta(window(many, over), baseline()).more_requests == 0


def test_a_rate_is_less_certain_after_a_short_reference() -> None:
    """Forty seconds of ten a second may have been nine or eleven, ten seconds eight or twelve."""
    many, half = arrived({"red": 60, "green": 40, "blue": 40}), arrived({"red": 30, "green": 40})
    surely, perhaps = baseline(), msgspec.structs.replace(baseline(), seconds=10.0)

    assert demand_delta(window(many, half), surely).more_requests == 140 - 80
    assert demand_delta(window(many, half), perhaps).more_requests == 0


def test_without_a_baseline_a_burst_is_not_demand_until_it_lasts() -> None:
    some = arrived({"red": 30, "green": 30})

    assert demand_delta(window(some, arrived({"red": 30})), slo_baseline()).more_requests == 0
    assert (
        demand_delta(window(some, arrived({"red": 30}), 10.0), slo_baseline()).more_requests == 60
    )


def test_the_required_certainty_falls_without_steps() -> None:
    """What is not demand after nine seconds is not demand after eleven: a step in the threshold
    would raise an alarm for a load that has not changed."""
    grown = {seconds: int(10 * seconds + 4.6 * (12 * seconds) ** 0.5) for seconds in (9, 11, 20)}
    found = {
        seconds: demand_delta(
            window(arrived({"red": count}), arrived({"red": count // 2 + 5}), float(seconds)),
            baseline(tenants={"red": 10.0}),
        ).more_requests
        for seconds, count in grown.items()
    }

    assert found[9] == found[11] == 0
    assert found[20] == grown[20] - 200


@pytest.mark.parametrize(
    ("lengths", "is_longer"),
    [
        ([28, 35, 240], False),
        ([28, 35, 40, 110, 117], False),
        ([240, 260], False),
        ([28, 35, 240, 230, 260], True),
        ([90, 100, 110], True),
    ],
)
def test_one_or_two_long_requests_are_no_growth(lengths: list[int], is_longer: bool) -> None:
    """They come now and then, and a baseline of a minute need not have had any. Of three on their
    lengths count, of prompts and of answers."""
    came = arrived({"red": len(lengths)}, prompts=lengths)
    came.output_lengths += lengths
    usual = msgspec.structs.replace(baseline(), longest_prompt=400)

    found = demand_delta(window(came, Counts(), seconds=1.5), usual)

    assert (S.PREFILL_INTERFERENCE in found.prompt_tokens) is is_longer
    assert (found.output_tokens > 0) is is_longer


def test_while_a_finding_is_active_a_second_cause_needs_less_certainty() -> None:
    """The alarm has already ruled out chance."""
    count = int(80 + 4.6 * 96**0.5)
    some, later = arrived({"red": count}), arrived({"red": count // 2 + 5})
    reference = baseline(tenants={"red": 10.0})

    assert demand_delta(window(some, later), reference).more_requests == 0
    assert (
        demand_delta(window(some, later, has_finding=True), reference).more_requests == count - 80
    )


def test_a_burst_of_one_tenant_that_delays_others_is_attributed_to_it() -> None:
    """Also when the burst is over, because the others were delayed."""
    counts = arrived({"red": 150, "green": 25, "blue": 24})
    found = demand_delta(window(counts, arrived({"red": 10, "green": 12, "blue": 12})), baseline())

    assert (found.demand, found.tenant) == (S.UNFAIRNESS, "red")
    assert found.more_requests > 100


def test_a_tenant_that_grew_in_proportion_to_all_is_not_unfair() -> None:
    """It has most of the growth because it has most of the requests."""
    tenants = {"red": 8.0, "green": 1.0, "blue": 1.0}
    counts = arrived({"red": 150, "green": 18, "blue": 18})
    found = demand_delta(
        window(counts, arrived({"red": 75, "green": 9, "blue": 9})), baseline(tenants=tenants)
    )

    assert (found.demand, found.tenant) == (S.QUEUE_OVERLOAD, None)


def test_the_tenant_that_sends_most_in_a_surge_is_not_unfair_by_chance() -> None:
    """All send more, and how many each sends of them is drawn anew."""
    tenants = {"red": 5.0, "green": 5.0}
    surge, flood = arrived({"red": 34, "green": 16}), arrived({"red": 60, "green": 11})
    later = arrived({"red": 17, "green": 8})

    by_chance = demand_delta(window(surge, later, 2.0), baseline(tenants=tenants))
    by_one = demand_delta(window(flood, later, 2.0), baseline(tenants=tenants))

    assert (by_chance.demand, by_chance.tenant) == (S.QUEUE_OVERLOAD, None)
    assert (by_one.demand, by_one.tenant) == (S.UNFAIRNESS, "red")


def test_once_a_queue_has_been_named_a_flood_needs_no_more_certainty_than_other_demand() -> None:
    """After a short baseline the share of a tenant is known badly: by what a young window asks for,
    even a flood would not count."""
    counts = arrived({"red": 91, "green": 21, "blue": 21})
    tenants = {"red": 0.56, "green": 0.53, "blue": 0.47}
    usual = msgspec.structs.replace(
        baseline(tenants=tenants, requests_per_s=1.56), seconds=36.0, dispersion=1.0
    )
    young = demand_delta(window(counts, counts, 10.0), usual)
    standing = demand_delta(window(counts, counts, 25.0, has_finding=True), usual)

    assert (young.demand, young.tenant) == (S.QUEUE_OVERLOAD, None)
    assert (standing.demand, standing.tenant) == (S.UNFAIRNESS, "red")


def test_answers_that_have_become_longer_are_seen_before_they_end() -> None:
    """Three that run have more tokens already than any had; two may be chance."""
    counts = arrived({"red": 40})
    counts.output_lengths = [30] * 20
    two, three = (
        replace(counts, open_lengths=[61, 61, 40]),
        replace(counts, open_lengths=[61, 61, 61]),
    )

    assert demand_delta(window(two, two), baseline()).output_tokens == 0
    assert demand_delta(window(three, three), baseline()).output_tokens == 3 * 61 - 3 * 30
    unknown = msgspec.structs.replace(baseline(), seconds=0.0, output_spread=0.0)
    assert demand_delta(window(three, three), unknown).output_tokens == 0


@given(st.integers(1, 40), st.floats(0.1, 10.0))
def test_however_large_a_surge_is_usual_shares_are_no_news(times: int, per_s: float) -> None:
    reference = baseline(tenants={"red": 7 * per_s, "green": 3 * per_s}, requests_per_s=10 * per_s)
    surge = arrived({"red": 7 * times, "green": 3 * times})
    batch = arrived({"red": 7 * times, "green": 30 * times + 20})

    assert not share_grew(surge, reference, "red", SIGMAS)
    assert not share_grew(surge, reference, "green", SIGMAS)
    assert share_grew(batch, reference, "green", SIGMAS)


def test_choices_are_counted_from_requests_and_not_from_sequences() -> None:
    """Sequences reach the engine later than requests reach the gateway: more sequences than
    requests in a short time do not mean several choices."""
    counts = arrived({"red": 4}, [30] * 6)
    counts.choices_requested = [1] * 4
    several = arrived({"red": 4}, [30] * 12)
    several.choices_requested = [3] * 4

    assert demand_delta(window(counts, counts), baseline()).choices == 0
    assert demand_delta(window(several, several), baseline()).choices == 8


def test_a_few_requests_with_more_choices_are_chance_where_these_vary() -> None:
    varying = msgspec.structs.replace(baseline(), choices=2.0, choices_spread=1.5)
    few, many = arrived({"red": 4}), arrived({"red": 40})
    few.choices_requested, many.choices_requested = [4, 4, 2, 4], [4, 4, 2, 4] * 10

    assert demand_delta(window(few, few), varying).choices == 0
    assert demand_delta(window(many, many), varying).choices == 1.5 * 40


def test_a_new_alarm_needs_more_certainty_than_one_that_lasts() -> None:
    """Of the many windows of an hour, the one with the longest prompts by chance would fire."""
    counts = arrived({"red": 9}, [42] * 9)
    counts.output_lengths = [42] * 9
    counts.admitted, counts.known_tokens = 60, 6000
    counts.hit_requests, counts.hit_tokens = 6, 500
    reference = baseline(hit_requests_share=0.3, hit_share=0.25)
    young = demand_delta(window(counts, counts, 4.0), reference)
    aging = demand_delta(window(counts, counts, 11.0), reference)
    lasting = demand_delta(window(counts, counts, 20.0), reference)

    assert young.output_tokens == aging.output_tokens == 0
    assert not young.prompt_tokens
    assert lasting.output_tokens == 9 * 12
    assert lasting.prompt_tokens[S.PREFILL_INTERFERENCE] > 0
    assert lasting.prompt_tokens[S.PREFIX_CACHE_COLD] == pytest.approx(1000)


def test_of_longer_prompts_what_another_engine_computes_is_no_work_here() -> None:
    counts = arrived({"red": 9}, [42] * 9)
    all_here, half_here = (
        demand_delta(window(counts, counts, 20.0), baseline(received_share=share))
        for share in (0.0, 0.5)
    )

    longer = all_here.prompt_tokens[S.PREFILL_INTERFERENCE]
    assert longer > 0
    assert half_here.prompt_tokens[S.PREFILL_INTERFERENCE] == pytest.approx(longer / 2)


def test_one_request_with_more_choices_is_not_a_change_of_demand() -> None:
    """Where almost no request has two choices, a single one is far from the mean."""
    rare = msgspec.structs.replace(baseline(), choices=1.02, choices_spread=0.14)
    one, three = arrived({"red": 3}), arrived({"red": 12})
    one.choices_requested, three.choices_requested = [1, 1, 2], [1] * 3 + [2] * 9

    assert demand_delta(window(one, one, 12.0), rare).choices == 0
    assert demand_delta(window(three, three, 12.0), rare).choices > 8


def test_three_of_twelve_requests_with_more_choices_may_be_chance() -> None:
    """Where one in fifty has them; three of four are not chance."""
    rare = baseline(choices=1.02, choices_spread=0.14, several_share=0.02)
    some, most = arrived({"red": 12}), arrived({"red": 4})
    some.choices_requested, most.choices_requested = [1] * 9 + [2] * 3, [1, 2, 2, 2]

    assert demand_delta(window(some, some, 4.0), rare).choices == 0
    assert demand_delta(window(most, most, 4.0), rare).choices > 2


def test_of_thousands_of_requests_the_mean_shows_more_choices() -> None:
    """The probability of so many is too small for a float."""
    rare = baseline(choices=1.02, choices_spread=0.14, several_share=0.02)
    crowd = arrived({"red": 4000})
    crowd.choices_requested = [1, 3] * 2000

    assert demand_delta(window(crowd, crowd, 4.0), rare).choices == pytest.approx(0.98 * 4000)


def test_a_tenant_that_delays_no_other_tenant_is_not_unfair() -> None:
    counts = arrived({"red": 150, "green": 25, "blue": 24}, waits="green blue")
    found = demand_delta(window(counts, arrived({"red": 75, "green": 12, "blue": 12})), baseline())

    assert found.tenant is None


def test_a_few_prompts_longer_than_any_before_are_found_among_many_short_ones() -> None:
    """Their mean hides them; two of them may be chance."""
    lengths = [30] * 300
    counts = arrived({"red": 100, "green": 100, "blue": 100}, [*lengths, 400, 500, 600])
    few = arrived({"red": 100, "green": 100, "blue": 100}, [*lengths, 400, 500])

    found = demand_delta(window(counts, counts), baseline())
    assert found.prompt_tokens[S.PREFILL_INTERFERENCE] == 1500 - 3 * 30
    assert S.PREFILL_INTERFERENCE not in demand_delta(window(few, few), baseline()).prompt_tokens


FEW_LONG = [20, 25, 30, 35, 40, 45] * 40 + [140, 145, 150, 155] * 2  # one in thirty-one


def few_long_prompts() -> Reference:
    """The baseline of a minute in which few prompts were long."""
    counts = arrived({"red": len(FEW_LONG)}, FEW_LONG)
    learnt = fit_baseline(60.0, counts, Steps(np.zeros((0, len(StepRow._fields)))), None)
    return msgspec.structs.replace(learnt, requests_per_s=4.0)


def test_three_long_prompts_of_twelve_may_be_chance_where_few_are_long() -> None:
    """Few are long, and sometimes they come together; most of them long is no chance."""
    usual = few_long_prompts()
    short = [21, 35, 36, 38, 39, 42, 43, 47, 48]
    some = arrived({"red": 12}, [*short, 141, 151, 155])
    most = arrived({"red": 12}, [*short[:5], *[141, 151, 155] * 3])

    found = demand_delta(window(some, some, 2.0), usual).prompt_tokens
    assert S.PREFILL_INTERFERENCE not in found
    found = demand_delta(window(most, most, 2.0), usual).prompt_tokens
    assert found[S.PREFILL_INTERFERENCE] > 500


@pytest.mark.parametrize("of_window", [4, 8, 16, 40])
def test_chance_in_which_prompts_come_together_is_not_longer_prompts(of_window: int) -> None:
    """Of ten thousand windows drawn from the baseline itself, at most two."""
    usual, draw = few_long_prompts(), np.random.default_rng(of_window)
    drawn = draw.choice(FEW_LONG, (10_000, of_window)).tolist()
    named = 0
    for lengths in drawn:
        counts = arrived({"red": of_window}, lengths)
        found = demand_delta(window(counts, counts, 2.0), usual).prompt_tokens
        named += S.PREFILL_INTERFERENCE in found

    assert named <= 2


def steps_of(rows: int, forward_ms: float, count: int) -> np.ndarray:
    """Decodes only."""
    table = np.zeros((count, len(StepRow._fields)))
    table[:, StepRow._fields.index("turn_ns")] = forward_ms * 1e6
    table[:, StepRow._fields.index("forward_ns")] = forward_ms * 1e6
    for name in ("decode_tokens", "decode_rows", "sampled_rows"):
        table[:, StepRow._fields.index(name)] = rows
    table[:, StepRow._fields.index("context_tokens")] = 100 * rows
    return table


def test_fitted_costs_hold_up_to_the_batch_sizes_of_the_baseline() -> None:
    """Three steps in a thousand had five rows, so the cost of eight rows is unknown and never
    slow."""
    seen = Steps(np.vstack([steps_of(1, 10, 600), steps_of(2, 10, 400), steps_of(5, 10, 3)]))
    cost = fit_cost(seen)
    assert cost is not None
    reference = baseline(cost=cost)

    assert slow_step_excess(Steps(steps_of(8, 22, 20)), reference) == 0
    assert slow_step_excess(Steps(steps_of(2, 20, 20)), reference) > 0.5
    assert abs(slow_step_excess(Steps(steps_of(2, 10, 20)), reference)) < 0.05


def test_fitted_costs_hold_down_to_the_batch_sizes_of_the_baseline() -> None:
    """Where all steps had three or four rows, the cost of one row is unknown."""
    seen = Steps(np.vstack([steps_of(3, 10, 100), steps_of(4, 11, 400)]))
    reference = baseline(cost=fit_cost(seen))

    assert slow_step_excess(Steps(steps_of(1, 20, 20)), reference) == 0
    assert slow_step_excess(Steps(steps_of(3, 20, 20)), reference) > 0.5
