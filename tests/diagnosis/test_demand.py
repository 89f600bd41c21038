"""Demand beyond the baseline is told from chance, from bursts, and from other demand."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest

from diagnosis.attribution.demand import demand_delta
from diagnosis.detection.counts import Counts, Stage
from diagnosis.detection.excess import slow_step_excess
from diagnosis.detection.reference import Reference, fit_cost, slo_baseline
from diagnosis.detection.steps import StepRow, Steps
from diagnosis.detection.window import Window
from diagnosis.symptoms import Symptom

S = Symptom
SECONDS = 8.0


def baseline(tenants: dict[str, float] | None = None, **more: object) -> Reference:
    """Ten requests a second of three tenants, prompts of 30 tokens."""
    return msgspec.structs.replace(
        slo_baseline(),
        seconds=30.0,
        requests_per_s=10.0,
        tenants_per_s=tenants or {"red": 4.0, "green": 3.0, "blue": 3.0},
        prompt_tokens=30.0,
        prompt_spread=10.0,
        longest_prompt=50,
        output_tokens=30.0,
        output_spread=10.0,
        **more,
    )


def came(requests: dict[str, int], prompts: list[int] | None = None, waits: str = "") -> Counts:
    """So many requests by tenant; all but the tenants in `waits` waited a second each."""
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


def test_more_requests_are_demand_only_while_they_go_on() -> None:
    """What came at once and is over was a burst, which a queue is for."""
    many = came({"red": 70, "green": 60, "blue": 60})
    lasting, over = came({"red": 35, "green": 30, "blue": 30}), came({"red": 12, "green": 14})

    assert demand_delta(window(many, lasting), baseline()).more_requests == 190 - 80
    assert demand_delta(window(many, over), baseline()).more_requests == 0


def test_a_rate_is_less_certain_after_a_short_reference() -> None:
    """Forty seconds of ten a second may have been nine or eleven, ten seconds eight or twelve."""
    many, half = came({"red": 60, "green": 40, "blue": 40}), came({"red": 30, "green": 40})
    surely, perhaps = baseline(), msgspec.structs.replace(baseline(), seconds=10.0)

    assert demand_delta(window(many, half), surely).more_requests == 140 - 80
    assert demand_delta(window(many, half), perhaps).more_requests == 0


def test_without_a_baseline_a_burst_is_no_demand_until_it_lasts() -> None:
    some = came({"red": 30, "green": 30})

    assert demand_delta(window(some, came({"red": 30})), slo_baseline()).more_requests == 0
    assert demand_delta(window(some, came({"red": 30}), 10.0), slo_baseline()).more_requests == 60


def test_what_is_no_demand_at_nine_seconds_is_none_at_eleven() -> None:
    """The certainty that is asked for falls by and by: a step down would ring for what has been
    there all the time."""
    grown = {seconds: int(10 * seconds + 4.6 * (12 * seconds) ** 0.5) for seconds in (9, 11, 20)}
    found = {
        seconds: demand_delta(
            window(came({"red": count}), came({"red": count // 2 + 5}), float(seconds)),
            baseline(tenants={"red": 10.0}),
        ).more_requests
        for seconds, count in grown.items()
    }

    assert found[9] == found[11] == 0
    assert found[20] == grown[20] - 200


def test_beside_a_fault_that_is_told_a_second_needs_to_be_less_sure() -> None:
    """Chance has been ruled out for the alarm already."""
    count = int(80 + 4.6 * 96**0.5)
    some, later = came({"red": count}), came({"red": count // 2 + 5})
    reference = baseline(tenants={"red": 10.0})

    assert demand_delta(window(some, later), reference).more_requests == 0
    assert (
        demand_delta(window(some, later, has_finding=True), reference).more_requests == count - 80
    )


def test_a_burst_of_one_tenant_that_others_wait_for_is_his() -> None:
    """Though it is over: the others have paid."""
    counts = came({"red": 150, "green": 25, "blue": 24})
    found = demand_delta(window(counts, came({"red": 10, "green": 12, "blue": 12})), baseline())

    assert (found.demand, found.tenant) == (S.UNFAIRNESS, "red")
    assert found.more_requests > 100


def test_a_tenant_who_grew_as_all_did_is_not_unfair() -> None:
    """He has most of the growth because he has most of the requests."""
    tenants = {"red": 8.0, "green": 1.0, "blue": 1.0}
    counts = came({"red": 150, "green": 18, "blue": 18})
    found = demand_delta(
        window(counts, came({"red": 75, "green": 9, "blue": 9})), baseline(tenants=tenants)
    )

    assert (found.demand, found.tenant) == (S.QUEUE_OVERLOAD, None)


def test_choices_are_those_that_were_asked_for() -> None:
    """Sequences come to the engine later than their request to the gateway: more of the one than
    of the other in a short time are no choices."""
    counts = came({"red": 4}, [30] * 6)
    counts.choices_requested = [1] * 4
    several = came({"red": 4}, [30] * 12)
    several.choices_requested = [3] * 4

    assert demand_delta(window(counts, counts), baseline()).choices == 0
    assert demand_delta(window(several, several), baseline()).choices == 8


def test_a_few_requests_with_more_choices_are_chance_where_these_vary() -> None:
    varying = msgspec.structs.replace(baseline(), choices=2.0, choices_spread=1.5)
    few, many = came({"red": 4}), came({"red": 40})
    few.choices_requested, many.choices_requested = [4, 4, 2, 4], [4, 4, 2, 4] * 10

    assert demand_delta(window(few, few), varying).choices == 0
    assert demand_delta(window(many, many), varying).choices == 1.5 * 40


def test_what_a_young_alarm_may_owe_to_chance_is_believed_once_it_lasts() -> None:
    """Of an hour many moments are looked at, and the one with the longest prompts rings."""
    counts = came({"red": 9}, [42] * 9)
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


def test_one_request_with_more_choices_is_no_habit() -> None:
    """Where hardly anybody asks for two, one who does is far from the mean."""
    rare = msgspec.structs.replace(baseline(), choices=1.02, choices_spread=0.14)
    one, three = came({"red": 3}), came({"red": 12})
    one.choices_requested, three.choices_requested = [1, 1, 2], [1] * 3 + [2] * 9

    assert demand_delta(window(one, one, 12.0), rare).choices == 0
    assert demand_delta(window(three, three, 12.0), rare).choices > 8


def test_three_in_twelve_who_want_more_choices_may_be_chance() -> None:
    """Where one in fifty does; three of four are not."""
    rare = baseline(choices=1.02, choices_spread=0.14, several_share=0.02)
    some, most = came({"red": 12}), came({"red": 4})
    some.choices_requested, most.choices_requested = [1] * 9 + [2] * 3, [1, 2, 2, 2]

    assert demand_delta(window(some, some, 4.0), rare).choices == 0
    assert demand_delta(window(most, most, 4.0), rare).choices > 2


def test_of_thousands_of_requests_the_mean_tells_who_wants_more_choices() -> None:
    """The chance of so many is no number any more."""
    rare = baseline(choices=1.02, choices_spread=0.14, several_share=0.02)
    crowd = came({"red": 4000})
    crowd.choices_requested = [1, 3] * 2000

    assert demand_delta(window(crowd, crowd, 4.0), rare).choices == pytest.approx(0.98 * 4000)


def test_a_tenant_for_whom_nobody_else_waits_is_nobody_s_trouble() -> None:
    counts = came({"red": 150, "green": 25, "blue": 24}, waits="green blue")
    found = demand_delta(window(counts, came({"red": 75, "green": 12, "blue": 12})), baseline())

    assert found.tenant is None


def test_a_few_prompts_longer_than_any_was_are_seen_among_many_short_ones() -> None:
    """Their mean hides them; two of them may be chance."""
    lengths = [30] * 300
    counts = came({"red": 100, "green": 100, "blue": 100}, [*lengths, 400, 500, 600])
    few = came({"red": 100, "green": 100, "blue": 100}, [*lengths, 400, 500])

    found = demand_delta(window(counts, counts), baseline())
    assert found.prompt_tokens[S.PREFILL_INTERFERENCE] == 1500 - 3 * 30
    assert S.PREFILL_INTERFERENCE not in demand_delta(window(few, few), baseline()).prompt_tokens


def steps_of(rows: int, forward_ms: float, count: int) -> np.ndarray:
    """Decodes only."""
    table = np.zeros((count, len(StepRow._fields)))
    table[:, StepRow._fields.index("turn_ns")] = forward_ms * 1e6
    table[:, StepRow._fields.index("forward_ns")] = forward_ms * 1e6
    for name in ("decode_tokens", "decode_rows", "sampled_rows"):
        table[:, StepRow._fields.index(name)] = rows
    table[:, StepRow._fields.index("context_tokens")] = 100 * rows
    return table


def test_prices_hold_for_batches_as_large_as_were_often_seen() -> None:
    """Five rows were met three times in a thousand: what eight cost is not known from them, and
    is not called slow."""
    seen = Steps(np.vstack([steps_of(1, 10, 600), steps_of(2, 10, 400), steps_of(5, 10, 3)]))
    cost = fit_cost(seen)
    assert cost is not None
    reference = baseline(cost=cost)

    assert slow_step_excess(Steps(steps_of(8, 22, 20)), reference) == 0
    assert slow_step_excess(Steps(steps_of(2, 20, 20)), reference) > 0.5
    assert abs(slow_step_excess(Steps(steps_of(2, 10, 20)), reference)) < 0.05


def test_prices_hold_for_batches_as_small_as_were_often_seen() -> None:
    """Where three rows and four were all that was met, what one costs is not known from them."""
    seen = Steps(np.vstack([steps_of(3, 10, 100), steps_of(4, 11, 400)]))
    reference = baseline(cost=fit_cost(seen))

    assert slow_step_excess(Steps(steps_of(1, 20, 20)), reference) == 0
    assert slow_step_excess(Steps(steps_of(3, 20, 20)), reference) > 0.5
