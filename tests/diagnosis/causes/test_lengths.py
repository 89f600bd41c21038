"""Lengths and blows that are usual are learnt over minutes, of normal time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.attribution.demand import demand_delta
from diagnosis.attribution.late_tokens import ChargedLate
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.blows import UsualBlows, usual_rate
from diagnosis.detection.counts import Counts, Stage
from diagnosis.detection.excess import StageStats
from diagnosis.detection.late import Late, LateKind
from diagnosis.detection.learning import BaselineLearner
from diagnosis.detection.lengths import LengthMemory
from diagnosis.detection.reference import Reference, fit_baseline
from diagnosis.detection.request_state import RequestState
from diagnosis.symptoms import Symptom
from diagnosis.thresholds import LENGTHS_NS, MOST_LENGTHS, REFERENCE_NS
from diagnosis.verdicts.mean_harm import MeanHarm
from diagnosis.verdicts.tail_harm import TailHarm
from telemetry.facts.engine_records import SequenceQueued
from tests.diagnosis.causes.test_chance import NO_STEPS, seen

S = Symptom
SECOND = 1_000_000_000
STRETCH_NS = 40 * SECOND


def counted(prompts: list[int], outputs: list[int] | None = None) -> Counts:
    counts = Counts(requests=len(prompts), admitted=len(prompts))
    counts.prompt_lengths += prompts
    counts.output_lengths += outputs or []
    counts.choices_requested += [1] * len(prompts)
    return counts


def lived(stretches: list[list[int]]) -> Reference:
    """The baseline after these stretches of prompts, 40 s each."""
    memory = LengthMemory()
    for number, prompts in enumerate(stretches):
        begin_ns = number * STRETCH_NS
        memory.add(begin_ns, begin_ns + STRETCH_NS, counted(prompts))
        memory.forget_other(begin_ns)
    return fit_baseline(40.0, counted(stretches[-1]), NO_STEPS, None, lengths=memory.known())


def charged(prompts: list[int], usual: Reference) -> float:
    found = seen(prompts, known_tokens=0)
    return demand_delta(found, usual).prompt_tokens.get(S.PREFILL_INTERFERENCE, 0.0)


def test_long_prompts_that_came_minutes_ago_are_usual_now() -> None:
    """Eight of 24 prompts are long, of which the last forty seconds had one in 65 and the minutes
    before one in twelve."""
    quiet = [16 + number % 24 for number in range(64)] + [120]
    usual = [16 + number % 24 for number in range(59)] + [120, 124, 126, 110, 105, 100]
    burst = [16 + number % 24 for number in range(16)] + [120, 126, 126, 110]
    burst += [118, 102, 100, 110]

    assert charged(burst, lived([quiet])) > 300
    assert charged(burst, lived([*[usual] * 5, quiet])) == 0


def test_a_running_server_learns_its_lengths_over_minutes() -> None:
    """A prompt of 200 tokens a minute is known, also where the last forty seconds had none."""
    aggregator = Aggregator()
    learner = BaselineLearner(aggregator)
    for number in range(2_400):
        at_ns = (10 + number // 10) * SECOND
        prompt_tokens = 200 if number % 600 == 0 else 30
        aggregator.on_fact(SequenceQueued(number, at_ns, 0, prompt_tokens, 16, ""))
        aggregator._at(at_ns).first_tokens += 1
        if number % 5 == 0:
            learner.add(at_ns, StageStats((0.0, SECOND / 2, 0.0, 0.0), (0.0,) * 4))
            learner.learn(at_ns, is_elevated=False)
    found = learner.reference

    assert found is not None
    assert learner.fit(249 * SECOND) == learner.fit(249 * SECOND)  # a question changes nothing
    assert found.seconds == REFERENCE_NS / SECOND
    assert found.prompts > 2_000
    assert found.prompt_tokens == pytest.approx(30 + 170 / 600, abs=0.1)
    assert found.prompt_spread > 5


def test_lengths_of_other_traffic_are_forgotten() -> None:
    """People send documents now: the questions of before say nothing of what is usual."""
    questions = [20 + number % 20 for number in range(60)]
    documents = [400 + number % 200 for number in range(60)]
    found = lived([*[questions] * 6, documents])

    assert found.prompts == 60
    assert found.prompt_tokens > 400


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=40))
def test_the_memory_is_bounded_in_time_and_number(each: list[int]) -> None:
    """The last stretch is always known, and no more than it and MOST_LENGTHS."""
    memory = LengthMemory()
    for number, count in enumerate(each):
        begin_ns = number * STRETCH_NS
        memory.add(begin_ns, begin_ns + STRETCH_NS, counted([30] * count))
    known = memory.known()
    kept = LENGTHS_NS // STRETCH_NS

    assert each[-1] <= len(known.prompts) <= max(each[-1], MOST_LENGTHS + max(each))
    assert len(known.prompts) >= min(MOST_LENGTHS, sum(each[-kept:]))
    assert len(known.prompts) <= sum(each[-kept:])


def test_blows_that_come_once_in_minutes_are_usual() -> None:
    """Between two bursts a baseline of forty seconds has none of them."""
    usual = UsualBlows()
    for number in range(10):
        begin_ns = number * STRETCH_NS
        blows = [begin_ns + SECOND, begin_ns + 9 * SECOND] if number % 2 == 0 else []
        usual.add((begin_ns, begin_ns + STRETCH_NS), {"queue_overload": blows})

    assert usual.rates_per_s() == {"queue_overload": usual_rate(10, 400.0)}


def test_no_blow_is_counted_twice_where_stretches_overlap() -> None:
    usual = UsualBlows()
    blows = {"host_stall": [39 * SECOND]}
    usual.add((0, STRETCH_NS), blows)
    usual.add((3 * SECOND, STRETCH_NS + 3 * SECOND), blows)
    usual.add((3 * SECOND, STRETCH_NS + 3 * SECOND), blows)

    assert usual.rates_per_s() == {"host_stall": usual_rate(1, 43.0)}


def test_blows_are_forgotten_after_ten_minutes() -> None:
    usual = UsualBlows()
    usual.add((0, STRETCH_NS), {"host_stall": [SECOND]})
    for number in range(1, 1 + LENGTHS_NS // STRETCH_NS):
        usual.add((number * STRETCH_NS, (number + 1) * STRETCH_NS), {})

    assert usual.rates_per_s() == {}


def test_the_number_of_admissions_says_how_well_hits_are_known() -> None:
    """Not the number of prompts, which is of minutes: most hit now, and did not before."""
    usual = msgspec.structs.replace(
        fit_baseline(40.0, counted([100] * 60), NO_STEPS, None),
        hit_share=0.9, hit_requests_share=0.95, prompts=4_000,
    )  # fmt: skip
    assert usual.admissions == 60
    few = seen([100] * 20, known_tokens=2_000, hit_tokens=900, admitted=20, hit_requests=10)

    assert S.PREFIX_CACHE_COLD in demand_delta(few, usual).prompt_tokens
    unknown = msgspec.structs.replace(usual, admissions=4)
    assert S.PREFIX_CACHE_COLD not in demand_delta(few, unknown).prompt_tokens


def test_what_made_requests_late_minutes_ago_is_usual_where_the_last_seconds_had_none() -> None:
    aggregator = Aggregator()
    learner = BaselineLearner(aggregator)
    harm = TailHarm(aggregator, learner, MeanHarm(aggregator, learner))
    usual = fit_baseline(40.0, counted([30] * 40), NO_STEPS, None)
    request = RequestState("r", "", "", 0, Stage.DECODE, 0, 0, "", 10**8)
    for at_s in (1, 9, 17, 25):
        late = Late(LateKind.GAP, request, at_s * SECOND - 1, at_s * SECOND, 0)
        harm._charged.append(ChargedLate(late, S.QUEUE_OVERLOAD, at_s * SECOND))
    for number in range(3):
        learner.span_ns = (number * STRETCH_NS, (number + 1) * STRETCH_NS)
        harm._learn_rates(usual)

    assert harm.usual_per_s == {"queue_overload": usual_rate(4, 120.0)}
