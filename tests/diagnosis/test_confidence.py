"""How sure a finding is was measured, and the measurement is in the repository."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.diagnosis.calibrate import RESULTS, Sample, calibration_error, fit, told
from diagnosis.symptoms import Finding
from diagnosis.thresholds import FITTED
from diagnosis.verdicts.confidence import confidence
from lab.twins.registry import TWINS
from tests.support.worlds.twins.cases import during, judged_once, twin

SHARES = st.floats(0, 1)
SECONDS = st.floats(0.5, 30)


@given(SHARES, SHARES, SECONDS)
def test_a_cause_of_more_of_the_harm_is_surer(one: float, other: float, seconds: float) -> None:
    """And no cause is certain."""
    low, high = sorted((one, other))

    assert 0 < confidence(low, seconds) <= confidence(high, seconds) <= 0.99


@pytest.mark.long
def test_findings_on_servers_that_fitted_nothing_are_right_as_often_as_they_say() -> None:
    """What the diagnosis tells of faults of a seed that no constant was fitted on; a tick at a
    time. Two of these classes have findings beside the true one."""
    said: list[Finding] = []
    was_so: list[bool] = []
    for name in ("ingest_backlog", "cancellation_leak", "unfairness", "kv_thrash", "host_stall"):
        one = twin(name, TWINS[name][0])
        assert not range(*json.loads(RESULTS.read_text())["seeds"]).count(one.seed)
        found = judged_once(name, TWINS[name][0]).verdicts
        findings = [finding for now in during(one, found) for finding in now.findings]
        said += findings
        was_so += [finding.symptom.value == name for finding in findings]

    right = np.array(was_so, float)
    by_confidence = calibration_error(np.array([one.confidence for one in said]), right)
    by_share = calibration_error(np.array([one.share for one in said]), right)
    assert by_confidence < 0.08
    assert by_confidence < by_share / 2


def test_what_is_in_use_is_what_was_checked() -> None:
    """The constants are those that the committed run checked on seeds that fitted nothing."""
    found = json.loads(RESULTS.read_text())

    assert tuple(found["in_use"]) == FITTED
    assert found["error_in_use"] < found["error_of_the_share"]
    assert found["error_in_use"] < 0.03


def test_a_fit_finds_how_often_findings_are_right() -> None:
    """Made-up findings that are right as often as a known curve says."""
    draw = np.random.default_rng(4)
    shares = draw.uniform(0.1, 1.0, 4000)
    right = draw.random(4000) < 1 / (1 + np.exp(-(1.0 + 0.5 * np.log(shares / (1.001 - shares)))))
    samples = [
        Sample(float(share), 10.0, bool(was_so), 0)
        for share, was_so in zip(shares, right, strict=True)
    ]
    weights = fit(samples)

    assert weights[1] == pytest.approx(0.5, abs=0.1)
    assert calibration_error(told(samples, weights), right.astype(float)) < 0.02
