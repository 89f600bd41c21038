"""How the diagnosis did on faults of the tail; pure.

An episode is *named* when its class stands first, from the first harmed request on; *held* is the
share of the rest of the fault for which it then stands first; *right* is the answer that stood
longest in the second half of the fault. Named counts before the first harm too, as 0 seconds, but
not what stood before the onset. A fault that is never named counts as named later than all others,
and is not held at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from benchmarks.diagnosis.answers import first_named, spans
from benchmarks.diagnosis.episodes import Kept
from benchmarks.diagnosis.score import harmed_s, judge, machine_speed
from benchmarks.diagnosis.tails.figures import Figure, nth
from lab.drills.harm import Level
from lab.drills.watch import VerdictChange

NAMED_WITHIN_S, HELD, TOP_1, CLASS_LEAST = 10.0, 0.80, 0.90, 0.5


class TailRow(msgspec.Struct, frozen=True, kw_only=True):
    """One episode; seconds, and shares of 1. `why_not` says why it does not count."""

    name: str
    symptom: str
    mechanism: str
    level: Level
    intensity: float
    unit: str
    measure: str
    aim: float | None
    reached: float | None
    date: str
    cpu: object
    answer: str
    right: bool
    to_name_s: float | None
    held: float
    false_alarms: int
    why_not: list[str]


def held_share(
    turns: Sequence[VerdictChange], truth: str, on_s: float, off_s: float
) -> tuple[float | None, float]:
    """When the class came to stand first after the onset, and its share of the time from there to
    the end of the fault."""
    first = first_named(turns, truth, on_s, off_s)
    if first is None:
        return None, 0.0
    stood = spans(turns, first.at_s, off_s)
    held_s = sum(length_s for length_s, answer in stood if answer == truth)
    return first.at_s, held_s / (off_s - first.at_s)


def row_of(kept: Kept) -> TailRow:
    """Raises ValueError for an episode of another series."""
    episode, record = kept.episode, kept.tail
    if record is None or episode.on_s is None or episode.off_s is None:
        raise ValueError(f"{episode.name} is no episode of the tail")
    judged = judge(episode, machine_speed(kept))
    named_s, held = held_share(episode.verdicts, episode.symptom, episode.on_s, episode.off_s)
    first_s = harmed_s(episode, episode.on_s, episode.off_s)
    value = record.reached.value
    why_not = list(episode.discarded)
    if not record.is_of_its_level:
        seen = "nothing" if value is None else f"{value:.2f}"
        before = record.reached.reference
        why_not.append(
            f"its clients saw {record.reached.measure} {seen} after {before}: not of its level"
        )
    return TailRow(
        name=episode.name,
        symptom=episode.symptom,
        mechanism=episode.mechanism,
        level=record.level,
        intensity=episode.intensity,
        unit=episode.label.unit,
        measure=record.reached.measure,
        aim=record.calibration.value,
        reached=None if value is None else round(value, 3),
        date=kept.date,
        cpu=kept.machine["cpu"],
        answer=judged.answer,
        right=judged.is_right,
        to_name_s=None if named_s is None else round(max(0.0, named_s - first_s), 2),
        held=round(held, 3),
        false_alarms=judged.alarms,
        why_not=why_not,
    )


class ClassScore(msgspec.Struct, frozen=True, kw_only=True):
    """A class at one level, or at both. `named_s` is the median; None when it was never named."""

    episodes: int
    right: int
    named: int
    named_s: float | None
    held: float


def score_of(rows: Sequence[TailRow]) -> ClassScore:
    """The score of the rows that count, at least one."""
    times = [one.to_name_s for one in rows if one.to_name_s is not None]
    never = [float("inf")] * (len(rows) - len(times))
    middle = nth([*times, *never], 0.5)
    return ClassScore(
        episodes=len(rows),
        right=sum(one.right for one in rows),
        named=len(times),
        named_s=None if middle == float("inf") else round(middle, 2),
        held=round(sum(one.held for one in rows) / len(rows), 3),
    )


def by_class(rows: Iterable[TailRow]) -> dict[str, dict[str, ClassScore]]:
    """The scores by class, then `lower`, `upper` and `both`; only what was run."""
    found: dict[str, dict[str, ClassScore]] = {}
    counted = [one for one in rows if not one.why_not]
    for symptom in sorted({one.symptom for one in counted}):
        mine = [one for one in counted if one.symptom == symptom]
        groups = {level.value: [one for one in mine if one.level is level] for level in Level}
        groups["both"] = mine
        found[symptom] = {name: score_of(group) for name, group in groups.items() if group}
    return found


def acceptance(rows: Sequence[TailRow], classes: int) -> list[Figure]:
    """What must hold, over all episodes that count; `classes` must have been run at both levels."""
    counted = [one for one in rows if not one.why_not]
    if not counted:
        return []
    total, each = score_of(counted), by_class(counted)
    whole = sum(set(found) >= {"lower", "upper", "both"} for found in each.values())
    shares = {name: found["both"].right / found["both"].episodes for name, found in each.items()}
    worst = min(shares, key=lambda name: shares[name])
    return [
        Figure("classes run at both levels", whole, classes, True),
        Figure("median s from the first harm to the name", total.named_s, NAMED_WITHIN_S, False),
        Figure("held share of the rest of the fault", total.held, HELD, True),
        Figure("top-1", round(total.right / total.episodes, 3), TOP_1, True),
        Figure(f"right in the worst class ({worst})", round(shares[worst], 3), CLASS_LEAST, True),
    ]
