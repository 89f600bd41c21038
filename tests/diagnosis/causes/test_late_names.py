"""What late tokens are called: by whom a long prompt makes late, and by what the host measured."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from diagnosis.attribution.charges import Blame, Charges
from diagnosis.attribution.late_tokens import LateCharger
from diagnosis.attribution.slow_steps import off_cpu_symptom
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import BUCKET_NS, Counts
from diagnosis.detection.excess import ChangeDetector
from diagnosis.detection.host_time import HostTime
from diagnosis.detection.learning import BaselineLearner
from diagnosis.detection.reference import slo_baseline
from diagnosis.detection.step_cost import Cost
from diagnosis.detection.steps import FEATURES, StepRow, Steps
from diagnosis.detection.window import Window
from diagnosis.symptoms import Finding, Symptom
from diagnosis.thresholds import SUM_CEILING, UNEXPLAINED_NS
from diagnosis.verdicts.mean_harm import MeanHarm
from diagnosis.verdicts.tail_findings import named_by_late
from telemetry.costs.cost_model import BASELINE

S = Symptom
MS = 1_000_000
_NONE = (0.0,) * len(FEATURES)
TEN_MS = Cost(
    forward=(10.0 * MS, *_NONE), step_terms=(0.0,) * len(BASELINE.knots), sample=(0.0, *_NONE),
    host=(0.0, *_NONE), most=(1e9,) * len(FEATURES), longest_chunk=0.0,
)  # fmt: skip


def finding(symptom: Symptom, blows: int = 0) -> Finding:
    return Finding(symptom=symptom, confidence=0.9, claim="", harm_ms=1.0, evidence=(), blows=blows)


def names(*found: Finding) -> list[Symptom]:
    return [one.symptom for one in named_by_late(found, 0)]


def test_a_long_prompt_has_the_name_that_its_own_late_tokens_give_it() -> None:
    beside, own, other = S.PREFILL_INTERFERENCE, S.LONG_PROMPTS, S.HOST_STALL

    assert names(finding(other), finding(beside), finding(own, 3)) == [other, own]
    assert names(finding(beside), finding(other), finding(own, 3)) == [own, other]
    assert names(finding(beside), finding(own)) == [beside, own]
    assert names(finding(own), finding(beside, 3)) == [own, beside]


def window(run_ns: int, wait_ns: int) -> Window:
    """Five seconds of steps of 10 ms, every fifth of which takes 60; the host says how long the
    engine's thread ran, and waited for a CPU."""
    blank = StepRow(*[0] * len(StepRow._fields))
    lengths = [60 * MS if number % 5 == 0 else 10 * MS for number in range(250)]
    rows = [
        blank._replace(turn_ns=one, forward_ns=one, decode_rows=1, decode_tokens=1)
        for one in lengths
    ]
    host = HostTime(sum(lengths), sum(lengths), run_ns, wait_ns)
    steps = Steps(np.array(rows, dtype=np.float64))
    return Window(sum(lengths) / 1e9, Counts(), Counts(), steps, None, host=host)


@pytest.mark.parametrize(
    ("ran_ms", "waited_ms", "cause"),
    [
        (5_000, 0, None),  # it ran all the time: what it read was slow
        (2_500, 0, S.THROTTLED),
        (2_500, 2_500, S.CPU_STARVATION),
        (4_500, 500, None),
        (0, 0, None),  # nothing is measured
    ],
)
def test_steps_that_are_slow_now_and_then_are_told_by_what_the_host_measured(
    ran_ms: int, waited_ms: int, cause: Symptom | None
) -> None:
    usual = msgspec.structs.replace(slo_baseline(), seconds=60.0, cost=TEN_MS)
    seen = window(ran_ms * MS, waited_ms * MS)

    assert off_cpu_symptom(seen, usual, TEN_MS) is cause


def test_a_cause_is_said_when_two_ticks_in_a_row_have_it() -> None:
    """One tick of a burst may look like anything; what stands is not withdrawn for one quiet
    tick."""
    harm = MeanHarm(Aggregator(), BaselineLearner(Aggregator()))
    harm.excess = 3.0
    stall, starved = finding(S.HOST_STALL), finding(S.CPU_STARVATION)

    assert harm._settled([stall]) == []
    assert harm._settled([starved]) == []
    assert harm._settled([starved]) == [starved]
    assert harm._settled([]) == [starved]
    assert harm._settled([stall]) == [stall]


def test_a_cause_is_withdrawn_after_as_many_ticks_without_it_as_it_was_charged() -> None:
    """A burst that chance explains in the end is said no longer than it looked like a fault."""
    harm = MeanHarm(Aggregator(), BaselineLearner(Aggregator()))
    harm.excess = 3.0
    starved = finding(S.CPU_STARVATION)
    said = [bool(harm._settled([starved])) for _ in range(5)]
    said += [bool(harm._settled([])) for _ in range(6)]

    assert said == [False, *[True] * 4, *[True] * 4, False, False]
    assert [bool(harm._settled([starved])) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(("rows", "is_slow"), [(3, True), (9, True), (16, False)])
def test_of_steps_far_larger_than_the_baseline_knows_nobody_says_that_they_are_slow(
    rows: int, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cost that was learnt from batches of three rows prices one of sixteen far too low."""
    aggregator = Aggregator()
    blank = StepRow(*[0] * len(StepRow._fields))
    one = blank._replace(
        turn_ns=15 * MS, forward_ns=15 * MS, decode_rows=rows, decode_tokens=rows, end_ns=20 * MS
    )
    steps = Steps(np.array([one], dtype=np.float64))
    monkeypatch.setattr(aggregator, "steps", lambda *_: steps)
    cost = msgspec.structs.replace(TEN_MS, most=(3.0,) * len(FEATURES))
    usual = msgspec.structs.replace(slo_baseline(), cost=cost)
    charged = LateCharger(aggregator, usual)._charge_steps(0, 20 * MS)

    assert sum(charged.values()) == (5 * MS if is_slow else 0)


@pytest.mark.parametrize("is_said", [False, True])
def test_a_burst_in_two_parts_is_over_when_it_drains_unless_the_first_part_was_named(
    is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregator = Aggregator()
    harm = MeanHarm(aggregator, BaselineLearner(aggregator))
    falls = [1.5 - 0.1 * tick for tick in range(10)]
    monkeypatch.setattr(ChangeDetector, "add", lambda *_: None)
    for tick, level in enumerate([*falls, 1.2, 1.4, *falls]):
        monkeypatch.setattr(ChangeDetector, "levels", (level,))
        harm._detector.onset_ns = 0
        harm._standing = [finding(S.QUEUE_OVERLOAD)] if is_said or tick >= 12 else []
        aggregator._at(tick * BUCKET_NS).first_tokens += 1
        harm.on_tick(tick * BUCKET_NS)

    assert harm._one_blow.has_passed is not is_said


def test_a_tick_tells_the_blow_how_many_are_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregator = Aggregator()
    harm = MeanHarm(aggregator, BaselineLearner(aggregator))
    monkeypatch.setattr(ChangeDetector, "add", lambda *_: None)
    found = list[bool]()
    for tick, delayed in enumerate((30.0, 30.0, 12.0)):
        monkeypatch.setattr(
            "diagnosis.verdicts.mean_harm.excess_in_flight", lambda *_, n=delayed: (n,)
        )
        harm._detector.onset_ns = 0
        aggregator._at(tick * BUCKET_NS).first_tokens += 1
        harm.on_tick(tick * BUCKET_NS)
        found.append(harm._one_blow.is_draining)

    assert found == [False, False, True]


@pytest.mark.parametrize("cause", [S.QUEUE_OVERLOAD, S.LONG_PROMPTS])
def test_of_a_burst_that_drains_its_queue_is_not_said_and_leaves_nothing_unexplained(
    cause: Symptom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a queue held up is served; long prompts pause, and come back."""
    aggregator = Aggregator()
    harm = MeanHarm(aggregator, BaselineLearner(aggregator))
    blame = Blame(1.0, 9e9, {}, Charges(), {}, None)
    monkeypatch.setattr(MeanHarm, "_charge", lambda *_: (blame, [finding(cause)]))
    monkeypatch.setattr("diagnosis.verdicts.mean_harm.is_in_danger", lambda *_, **__: True)
    monkeypatch.setattr(ChangeDetector, "levels", (SUM_CEILING,))
    harm._detector.onset_ns = -UNEXPLAINED_NS - 1
    said, unexplained = [], []
    for delayed in (30.0, 30.0, 12.0, 20.0):
        harm._one_blow.add(harm._detector.levels, delayed, is_said=True)
        harm.excess = delayed
        said.append(bool(harm.findings(0, is_whole=True)))
        unexplained.append(harm.is_unexplained(0))

    is_queue = cause is S.QUEUE_OVERLOAD
    assert said == [False, True, not is_queue, True]
    assert unexplained == [True, True, not is_queue, True]
