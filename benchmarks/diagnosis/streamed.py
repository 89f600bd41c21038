"""The baseline classifiers under live conditions: asked every second, without the onset.

Each second of an episode they get the seconds of the reference and the last ten. The reference is
complete from the start, which no live answer had.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from benchmarks.diagnosis.baselines import HEALTHY, Namer, Row, features_of, rows_between
from benchmarks.diagnosis.episodes import Kept
from benchmarks.diagnosis.score import Judged, judge_kept, quantiles, score, truth_of
from lab.drills.spec import Phase
from lab.drills.watch import VerdictChange

WINDOW_S = 10
_LEAST_S = 3  # of a server that has only begun
_LESSON_EVERY_S = 5

Example = tuple[list[float], str]


def usual_rows(kept: Kept) -> list[Row]:
    """The reference's, of the server that ran then, whose traffic began earlier."""
    episode, gauges = kept.episode, kept.usual_gauges or kept.gauges
    if gauges is None:
        return []
    begin_ns = episode.begin_ns
    if kept.usual_gauges is not None and episode.usual_begin_ns is not None:
        begin_ns = episode.usual_begin_ns
    return rows_between(gauges, begin_ns, *episode.phases.span_s(Phase.REFERENCE))


def windows(kept: Kept) -> Iterator[tuple[float, list[Row]]]:
    """At each second from the reference on, the rows of the last ten: of a server that took over
    when the fault was put in, only its own."""
    episode = kept.episode
    if kept.gauges is None:
        return
    first_s = episode.phases.reference_at_s
    if kept.usual_gauges is not None and episode.on_s is not None:
        first_s = episode.on_s
    for at_s in range(math.ceil(first_s) + _LEAST_S, int(episode.phases.end_s) + 1):
        rows = rows_between(kept.gauges, episode.begin_ns, max(first_s, at_s - WINDOW_S), at_s)
        if len(rows) >= _LEAST_S:
            yield at_s, rows


def turns_of(kept: Kept, name: Namer) -> list[VerdictChange]:
    """Every change of its answer."""
    usual = usual_rows(kept)
    found: list[VerdictChange] = []
    for at_s, rows in windows(kept):
        answer = name(usual, rows)
        if found and (found[-1].top or HEALTHY) == answer:
            continue
        named = () if answer == HEALTHY else ((answer, 1.0),)
        verdict = "fault" if named else HEALTHY
        found.append(VerdictChange(at_s=float(at_s), verdict=verdict, named=named))
    return found


def judged_live(kept: Sequence[Kept], name: Namer) -> list[Judged]:
    """Its answers, judged by the rules for the diagnosis."""
    found: list[Judged] = []
    for one in kept:
        episode = msgspec.structs.replace(one.episode, verdicts=turns_of(one, name))
        found.append(judge_kept(msgspec.structs.replace(one, episode=episode)))
    return found


def lessons_of(kept: Sequence[Kept]) -> list[Example]:
    """Windows of episodes with what was wrong in them, one in five seconds; none that are half in
    and half out of a fault."""
    found: list[Example] = []
    for one in kept:
        usual, episode = usual_rows(one), one.episode
        for at_s, rows in windows(one):
            if int(at_s) % _LESSON_EVERY_S:
                continue
            if episode.on_s is None or episode.off_s is None or at_s <= episode.on_s:
                found.append((features_of(usual, rows), HEALTHY))
            elif episode.on_s + WINDOW_S / 2 <= at_s <= episode.off_s:
                found.append((features_of(usual, rows), truth_of(episode)))
    return found


def figures_of(judged: Sequence[Judged], healthy: Sequence[Judged]) -> dict[str, Any]:
    """The figures of the test and of the healthy hour. A fault that is never named counts as named
    last, and a quantile that falls among those is infinite (null in JSON)."""
    found = score(judged)
    faults = [one.to_detect_s for one in judged if one.truth != HEALTHY]
    return {
        "top_1": found["top_1"],
        "macro_f1": found["macro_f1"],
        "classes_under_half": sum(one["recall"] < 0.5 for one in found["classes"].values()),
        "faults_detected": found["faults_detected"],
        "to_detect_s": quantiles(math.inf if one is None else one for one in faults),
        "false_alarms": found["false_alarms"],
        "watched_hours": found["watched_hours"],
        "false_alarms_of_healthy_hour": sum(one.alarms for one in healthy),
    }
