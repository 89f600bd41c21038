"""Which tokens are late: above the target of their class, or far above the baseline."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.detection.counts import Stage
from diagnosis.detection.late import NEVER_NS, LateKind, LateLog, Tails
from diagnosis.detection.request_state import RequestState
from diagnosis.detection.steps import StepLog, StepRow, Steps
from diagnosis.detection.tail_thresholds import LATE_RATIO, LEAST_SAMPLES

MS = 1_000_000
SECOND = 1_000_000_000
NO_STEPS = Steps(np.zeros((0, len(StepRow._fields))))


def request(number: int, begun_ns: int = 0, slo_class: str = "") -> RequestState:
    return RequestState(
        request_id=f"req-{number}", trace_id=f"{number:032x}", tenant="amber", begun_ns=begun_ns,
        stage=Stage.FIRST, entered_ns=begun_ns, read_ns=begun_ns, slo_class=slo_class,
        gap_target_ns=100 * MS, submitted_ns=begun_ns + MS,
    )  # fmt: skip


def learnt(spent_ms: list[int], slo_class: str = "") -> LateLog:
    """A log with the first tokens of a baseline, and its limits."""
    log = LateLog()
    for number, spent in enumerate(spent_ms):
        begun_ns = number * SECOND
        log.first(request(number, begun_ns, slo_class), begun_ns + spent * MS)
    log.tails = log.fit(0, (len(spent_ms) + 9) * SECOND, NO_STEPS)
    return log


def steps_of(turns_ms: list[int], rows: int = 4) -> Steps:
    log = StepLog()
    at_ns = 0
    for turn_ms in turns_ms:
        at_ns += turn_ms * MS
        zeros = dict.fromkeys(StepRow._fields, 0)
        log.append(
            StepRow(**(zeros | {"end_ns": at_ns, "turn_ns": turn_ms * MS, "decode_rows": rows}))
        )
    return log.between(0, at_ns + 1)


def test_before_there_is_a_baseline_only_gaps_above_the_target_are_late() -> None:
    log = LateLog()
    log.first(request(0), 9 * SECOND)
    log.delivery(request(1), 0, 9 * SECOND)
    log.gap(request(2), 0, 101 * MS)
    log.gap(request(3), 0, 100 * MS)

    assert [(one.kind, one.request.request_id) for one in log.late] == [(LateKind.GAP, "req-2")]
    assert log.late[0].above_ns == MS


def test_a_first_token_is_late_far_above_the_95th_percentile_of_its_class() -> None:
    log = learnt([100] * 40, "voice")
    log.first(request(90, slo_class="voice"), 140 * MS)
    log.first(request(91, slo_class="voice"), 160 * MS)

    assert [one.request.request_id for one in log.late] == ["req-91"]
    assert log.late[0].limit_ns == LATE_RATIO * 100 * MS


def test_of_too_few_requests_no_percentile_is_made() -> None:
    log = learnt([100] * (LEAST_SAMPLES - 1))

    assert log.tails.first_high_ns == {}
    assert log.tails.first_limit_ns("voice") == NEVER_NS


def test_where_all_gaps_miss_the_target_only_longer_ones_are_late() -> None:
    """That the promise is broken is another finding."""
    tails = LateLog().fit(0, SECOND, steps_of([150] * 60))

    assert tails.gap_high_ns == 150 * MS
    assert tails.gap_limit_ns(100 * MS) == 225 * MS
    assert tails.gap_limit_ns(400 * MS) == 400 * MS


def test_percentiles_of_gaps_are_weighted_by_rows() -> None:
    """One long step of nobody is no gap."""
    quick, long = steps_of([20] * 98), steps_of([300] * 2, rows=0)
    both = Steps(np.vstack((quick.table, long.table)))

    assert LateLog().fit(0, SECOND, both).gap_high_ns == 20 * MS


@given(st.lists(st.integers(1, 5_000), min_size=LEAST_SAMPLES, max_size=60))
def test_hardly_anything_of_the_baseline_itself_is_late(spent_ms: list[int]) -> None:
    log = learnt(spent_ms)
    for number, spent in enumerate(spent_ms):
        log.first(request(1_000 + number), spent * MS)

    assert len(log.late) <= 0.05 * len(spent_ms)


def test_late_tokens_are_given_for_a_stretch_whatever_writer_was_first() -> None:
    log = LateLog()
    log.tails = Tails(delivery_high_ns=MS)
    log.gap(request(1), 0, 3 * SECOND)
    log.delivery(request(2), 0, 2 * SECOND)
    log.gap(request(3), 0, 4 * SECOND)

    assert [o.request.request_id for o in log.between(SECOND, 3 * SECOND + 1)] == ["req-2", "req-1"]
