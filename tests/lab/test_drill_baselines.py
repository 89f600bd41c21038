"""The ways to name a cause that ours is compared with see what they would see, when they would."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from benchmarks.diagnosis.baselines import (
    SECOND,
    Row,
    column,
    features_of,
    largest_phase,
    n_sigma,
    thresholds,
)
from benchmarks.diagnosis.episodes import Kept
from benchmarks.diagnosis.gauges import GAUGES, Gauges
from benchmarks.diagnosis.streamed import (
    figures_of,
    judged_live,
    lessons_of,
    turns_of,
    usual_rows,
    windows,
)
from lab.drills.outcome.truth import EpisodeRecord, label_of, result_of
from lab.drills.registry import find
from lab.drills.spec import Capacity, Phases
from lab.drills.traffic import Scene
from tests.lab.test_drill_scores import episode

ON, OFF, END = 20, 30, 40


def row(**values: float) -> Row:
    """A second of gauges, quiet but for these."""
    quiet = {"queue_ms": 5.0, "decode_ms": 500.0, "ttft_p50": 50.0, "itl_p50": 20.0}
    return tuple({**quiet, **values}.get(name, 0.0) for name in GAUGES)


def kept(symptom: str, during: Row, taken_over: bool = False) -> Kept:
    """Forty seconds, the fault from 20 to 30 s. A server that took over has its own gauges, which
    begin five seconds earlier, when it was started."""
    quiet, hurt = [row()] * ON, [during] * (OFF - ON) + [row()] * (END - OFF)
    whole = Gauges(begin_ns=0, rows=(*quiet, *hurt))
    own = Gauges(begin_ns=(ON - 5) * SECOND, rows=(*[row()] * 5, *hurt))
    return Kept(
        split="test",
        date="",
        machine={},
        episode=episode(symptom, []),
        gauges=own if taken_over else whole,
        usual_gauges=whole if taken_over else None,
    )


THRASH = kept("kv_thrash", row(preemptions=2.0))


def preempted(usual: Sequence[Row], now: Sequence[Row]) -> str:
    """Exact for these episodes."""
    return "kv_thrash" if sum(column(now, "preemptions")) else "healthy"


def test_each_names_what_its_rules_or_gauges_say() -> None:
    usual = [row()] * 20
    assert thresholds(usual, [row(preemptions=1.0)] * 5) == "kv_thrash"
    assert largest_phase(usual, [row(queue_ms=400.0)] * 5) == "queue_overload"
    assert n_sigma(usual, [row(loop_lag_ms=300.0)] * 5) == "host_stall"
    for name in (thresholds, largest_phase, n_sigma):
        assert name(usual, usual[:5]) == "healthy"


def test_live_they_are_given_the_last_ten_seconds_and_no_more() -> None:
    seen = [(at_s, len(rows)) for at_s, rows in windows(THRASH)]
    assert seen == [(at_s, min(10, at_s - 10)) for at_s in range(13, END + 1)]
    hurt = {at_s for at_s, rows in windows(THRASH) if sum(column(rows, "preemptions"))}
    assert hurt == set(range(ON + 1, OFF + 10))


def test_a_server_that_took_over_is_watched_from_when_it_did() -> None:
    own = kept("kv_thrash", row(preemptions=2.0), taken_over=True)
    assert [(at_s, len(rows)) for at_s, rows in windows(own)][:2] == [(23, 3), (24, 4)]
    turns = turns_of(own, preempted)
    assert [(turn.at_s, turn.top) for turn in turns] == [(23, "kv_thrash"), (40, None)]


def test_the_reference_is_that_of_the_server_before() -> None:
    """Its traffic began a minute before that of the server which took over."""
    usual = tuple(row(running=float(at_s)) for at_s in range(ON))
    own = kept("kv_thrash", row(preemptions=2.0), taken_over=True)
    early = msgspec.structs.replace(
        own,
        usual_gauges=Gauges(begin_ns=-60 * SECOND, rows=usual),
        episode=msgspec.structs.replace(own.episode, usual_begin_ns=-60 * SECOND),
    )
    assert usual_rows(early) == list(usual[10:20])


def test_a_result_says_when_the_traffic_of_each_server_began() -> None:
    mechanism = find("kv_thrash")
    scene = Scene(
        seed=1, phases=Phases(), capacity=Capacity(requests_per_s=1.0, tokens_per_s=1.0),
        intensity=1.0, load=0.5, mix=mechanism.mix,
    )  # fmt: skip
    for logs, begins in (
        ([(5, []), (65, [])], (65, 5)),
        ([(5, [])], (5, None)),
    ):
        record = EpisodeRecord(logs=list(logs))
        label = label_of(record, scene, mechanism)
        result = result_of(record, scene, mechanism, label, "", "name", ())
        assert (result.begin_ns, result.usual_begin_ns) == begins


def test_a_right_word_counts_from_when_it_is_said() -> None:
    (judged,) = judged_live([THRASH], preempted)
    assert (judged.answer, judged.to_detect_s, judged.alarms) == ("kv_thrash", 0.0, 0)
    late = msgspec.structs.replace(
        THRASH, episode=msgspec.structs.replace(THRASH.episode, first_harmed_s=18.5)
    )
    assert judged_live([late], preempted)[0].to_detect_s == 2.5


def test_who_is_never_named_is_later_than_all_who_are() -> None:
    other = kept("throttled", row())
    healthy = kept("healthy_light", row())
    found = figures_of(judged_live([THRASH, other, healthy], preempted), [])
    assert found["faults_detected"] == [1, 2]
    assert found["to_detect_s"] == {"p50": 0.0, "p95": math.inf}  # the lower of the middle two
    assert figures_of(judged_live([THRASH], preempted), [])["to_detect_s"] == {
        "p50": 0.0,
        "p95": 0.0,
    }
    assert found["classes_under_half"] == 1


def test_what_is_seen_in_healthy_traffic_is_a_false_alarm() -> None:
    healthy = kept("healthy_light", row())
    assert (
        figures_of(judged_live([THRASH], preempted), judged_live([healthy], preempted))[
            "false_alarms_of_healthy_hour"
        ]
        == 0
    )
    alarmed = judged_live([healthy], lambda usual, now: "throttled")
    assert (
        figures_of(judged_live([THRASH], preempted), alarmed)["false_alarms_of_healthy_hour"] == 1
    )


def test_lessons_are_of_windows_that_are_wholly_well_or_mostly_not() -> None:
    usual = [row()] * 10
    lessons = lessons_of([THRASH])
    assert [truth for _, truth in lessons] == ["healthy", "healthy", "kv_thrash", "kv_thrash"]
    assert lessons[0][0] == features_of(usual, usual[:5])
    assert {truth for _, truth in lessons_of([kept("healthy_light", row())])} == {"healthy"}
