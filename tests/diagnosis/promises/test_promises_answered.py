"""What a replay under other settings says of a missed promise stands in its finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.diagnosis.promises import search_of
from diagnosis.root_cause.root import root_cause
from diagnosis.settings_search.answer import ClassForecast, SettingsAnswer, Trial
from diagnosis.settings_search.answered import answered
from diagnosis.symptoms import MissForm, Symptom
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.facts.clock import MonotonicClock
from telemetry.journal.journal import write_journal
from telemetry.journal.journal_reader import open_journal
from tests.support.worlds.twins.cases import judged_once, twin


def said_of(form: str) -> Diagnosis:
    _, said = judged_once("slo_missed", form).verdicts[-1]
    return said


def answer_of(good_share: float, capacity: int | None) -> SettingsAnswer:
    def trial(share: float, replicas: int = 1) -> Trial:
        one = ClassForecast(
            requests=50, good_share=share, ttft_p95_ms=1.0, itl_p99_ms=1.0,
            output_tokens_per_s=1.0, late_first_tokens=0, slow_tokens=0,
        )  # fmt: skip
        return Trial(settings=(), replicas=replicas, classes={"chat": one})

    return SettingsAnswer(
        window_s=30, present=trial(good_share), recorded=trial(good_share).classes, noise={},
        best_runtime=None, best=None, impossible={}, tried=1, cpu_s=0.1,
        capacity=None if capacity is None else trial(1.0, capacity),
    )  # fmt: skip


def test_replays_confirm_or_correct_the_form() -> None:
    """Here the record had said that a setting binds, and replays that only replicas help."""
    said = said_of("misconfigured")
    assert said.findings[-1].promises[0].form is MissForm.MISCONFIGURED
    (finding,) = [
        one
        for one in answered(said, answer_of(0.2, 3)).findings
        if one.symptom is Symptom.SLO_MISSED
    ]

    assert finding.promises[0].form is MissForm.AT_ITS_LIMIT
    assert "3 replicas" in finding.answer
    assert "the record had said misconfigured" in finding.answer


def test_a_replay_that_meets_the_promise_corrects_no_form() -> None:
    finding = answered(said_of("misconfigured"), answer_of(1.0, None)).findings[-1]

    assert finding.promises[0].form is MissForm.MISCONFIGURED
    assert finding.answer == "every class meets its objective"


def test_other_findings_are_left_as_they_are() -> None:
    said = Diagnosis((), 1, 1, True)
    assert answered(said, answer_of(0.2, 3)) == said


@pytest.mark.parametrize(("form", "is_met"), [("misconfigured", True), ("impossible", None)])
def test_the_search_comes_to_the_same_form_and_its_settings_are_enough(
    form: str, is_met: bool | None
) -> None:
    """On a rerun with them the same server is said to miss nothing."""
    assert search_of(twin("slo_missed", form)) == (form, is_met)


def test_the_root_cause_has_the_answer_in_its_finding(tmp_path: Path) -> None:
    one = twin("slo_missed", "misconfigured")
    path = tmp_path / "dump.journal"
    write_journal(path, one.facts, MonotonicClock(), "test", one.policy)
    found = root_cause(open_journal(path), policy=one.policy)
    assert found.diagnosis is not None
    finding = found.diagnosis.findings[-1]

    assert finding.symptom is Symptom.SLO_MISSED
    assert finding.answer.startswith("misconfigured: ")
