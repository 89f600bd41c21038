"""Findings from charged time, and findings from counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from diagnosis.attribution.blame import Blame, _lost_blocks
from diagnosis.attribution.charges import Charges
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import Counts, Stage
from diagnosis.detection.steps import StepRow, Steps
from diagnosis.detection.window import Window
from diagnosis.symptoms import Finding, Symptom
from diagnosis.verdicts.checks import leaked
from diagnosis.verdicts.mean_harm import MeanHarm
from diagnosis.verdicts.rules import findings_of
from diagnosis.verdicts.tail_harm import TailHarm
from lab.twins.registry import TWINS
from tests.support.worlds.twins.cases import SECOND, first_found, judged_once, twin, verdicts

pytestmark = pytest.mark.long

S = Symptom


def charged(seconds: float, share: float) -> list[Finding]:
    """Findings where one cause has that share of the delay of ten requests."""
    total_ns = 10 * seconds * SECOND
    harm_ns = Charges({S.HOST_STALL: share * total_ns})
    stages_ns = dict.fromkeys(Stage, 0.0) | {Stage.DECODE: total_ns}
    baseline_ns = dict.fromkeys(Stage, 0.0)
    return findings_of(Blame(seconds, total_ns, baseline_ns, harm_ns, stages_ns, None), 0, (), ())


def test_a_cause_of_low_confidence_is_not_a_finding() -> None:
    """A quarter of the harm gives little confidence after a second, and much after ten."""
    assert charged(1.0, 0.25) == []
    assert [one.symptom for one in charged(10.0, 0.25)] == [S.HOST_STALL]
    assert [one.symptom for one in charged(1.0, 0.9)] == [S.HOST_STALL]


@pytest.mark.parametrize(
    ("recomputed", "cause"), [(24, S.KV_EXHAUSTION), (26, S.KV_THRASH)], ids=str
)
def test_kv_thrash_is_found_when_a_quarter_of_prompt_tokens_is_recomputed(
    recomputed: int, cause: Symptom
) -> None:
    row = StepRow(*[0] * len(StepRow._fields))._replace(
        prompt_tokens=100, recompute_tokens=recomputed
    )
    steps = Steps(np.array([row] * 10, dtype=np.float64))
    window = Window(seconds=5.0, counts=Counts(), later_half=Counts(), steps=steps, started=None)

    assert _lost_blocks(window) is cause


def test_two_sequences_that_run_on_after_a_disconnect_are_a_leak() -> None:
    """A cancel takes a step or two, and a single lost one may be an accident."""
    aborted = leaked(Counts(zombie_rows_by_sequence=Counter({1: 2, 2: 3, 3: 7})), Aggregator())
    one_lost = leaked(Counts(zombie_rows_by_sequence=Counter({1: 500, 2: 7})), Aggregator())
    found = leaked(Counts(zombie_rows_by_sequence=Counter({1: 8, 2: 9, 3: 2})), Aggregator())

    assert aborted is None
    assert one_lost is None
    assert found is not None
    assert (found.symptom, found.claim) == (
        S.CANCELLATION_LEAK, "2 sequences had 17 rows after their clients had disconnected",
    )  # fmt: skip


def test_a_leak_is_found_once_and_before_requests_are_delayed() -> None:
    for mechanism in TWINS["cancellation_leak"]:
        said = [said for _, said in judged_once("cancellation_leak", mechanism).verdicts]
        named = [[one.symptom for one in diagnosis.findings] for diagnosis in said]
        assert all(len(set(names)) == len(names) for names in named)
        first = next(diagnosis for diagnosis in said if diagnosis.findings)
        assert first.findings[0].claim.endswith("after their clients had disconnected")
        assert any(one.findings and one.findings[0].harm_ms > 0 for one in said)


def test_an_alarm_lasts_as_long_as_the_harm_also_without_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that a later finding covers all the time since the onset."""
    one = twin("throttled", TWINS["throttled"][0])
    charge = MeanHarm._charge

    def slowly(self: MeanHarm, begin_ns: int, end_ns: int, onset_ns: int) -> object:
        charged, found = charge(self, begin_ns, end_ns, onset_ns)
        return charged, found if end_ns - onset_ns > 6 * SECOND else []

    monkeypatch.setattr(MeanHarm, "_charge", slowly)
    _, first = first_found(one)

    assert one.onset_ns is not None
    assert first.onset_ns is not None
    assert abs(first.onset_ns - one.onset_ns) < 3 * SECOND


def test_an_alarm_without_a_cause_is_cleared_after_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be the new normal load; otherwise the alarm fires again."""
    one = twin("throttled", TWINS["throttled"][0])
    charge = MeanHarm._charge
    monkeypatch.setattr(MeanHarm, "_charge", lambda self, *span: (charge(self, *span)[0], []))
    monkeypatch.setattr(TailHarm, "on_tick", lambda self, begin_ns: None)

    def longest_alarm(ticks: int) -> int:
        monkeypatch.setattr("diagnosis.verdicts.mean_harm.GIVEN_UP_TICKS", ticks)
        onsets = Counter(said.onset_ns for _, said in verdicts(one) if said.onset_ns is not None)
        return max(onsets.values())

    assert longest_alarm(20) <= 20 < longest_alarm(10**9)
