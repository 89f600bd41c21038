"""Alarms of a healthy server, and changes by its autopilot: which, and whether there was a reason;
pure.

An alarm stands from a verdict of fault to the next that is none. Two kinds are counted apart, as
they are not false: one that says that the machine is slow where a pacer on the engine's core saw
that, and one that the SLO is missed where the clients' own log says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from benchmarks.autopilot.running import Decided
from benchmarks.autopilot.scoring import MOST_REVERSALS, Harm
from benchmarks.diagnosis.score import HEALTHY, OF_MACHINE, UNSURE, said
from benchmarks.diagnosis.tails.figures import Figure
from benchmarks.promised import Slo
from lab.drills.client import Sent
from lab.drills.pace import MachineSpeed
from lab.drills.watch import VerdictChange
from telemetry.facts.reasons import AutopilotDecision

SLO_MISSED = "slo_missed"
MOST_FALSE, LONGEST_S, LEAST_HOURS, LEAST_STARTS = 1, 5.0, 3.0, 2
LEAST_WORKLOADS, LEAST_MINUTES = 10, 10.0
_OBJECTIVE_OVER_S = 60.0


class SoakAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """From and until when, in s of the segment; `reason` is why it is not false, or empty."""

    from_s: float
    until_s: float
    named: tuple[str, ...]
    reason: str = ""

    @property
    def length_s(self) -> float:
        return self.until_s - self.from_s


class SegmentResult(msgspec.Struct, frozen=True, kw_only=True):
    """One segment. `good` is the share of requests that met the SLO by the clients' log, `unsure_s`
    how long the verdict was that it cannot be told, `harms` the changes by the autopilot after
    which a minute's requests were worse. `discarded`: it does not count, and why. `code` is the
    digest of the code that decided (`version`), empty where it was not recorded."""

    name: str
    date: str
    cpu: object
    slo: Slo
    seed: int
    pattern: str
    load: float
    watched_s: float
    requests: int
    good: float
    ttft_p95_ms: float | None
    unsure_s: float
    alarms: list[SoakAlarm]
    decisions: list[Decided]
    harms: list[Harm]
    discarded: list[str]
    code: str = ""

    def line(self) -> str:
        named = [f"{', '.join(one.named)} for {one.length_s:.1f} s" for one in self.alarms]
        applied, back = AutopilotDecision.APPLIED, AutopilotDecision.ROLLED_BACK
        return (
            f"{self.good:.1%} good, alarms: {'; '.join(named) or 'none'}, {self.count(applied)} "
            f"changes, {self.count(back)} taken back {'; '.join(self.discarded)}"
        )

    def count(self, decision: AutopilotDecision) -> int:
        return sum(one.decision == decision for one in self.decisions)


def alarms_in(turns: Sequence[VerdictChange], begin_s: float, end_s: float) -> list[SoakAlarm]:
    """Alarms that stood in a span, cut to it."""
    found: list[SoakAlarm] = []
    ends_s = [turn.at_s for turn in turns[1:]] + [end_s]
    was_alarm = False
    for turn, turn_end_s in zip(turns, ends_s, strict=False):
        is_alarm = said(turn) not in (HEALTHY, UNSURE)
        from_s, until_s = max(begin_s, turn.at_s), min(end_s, turn_end_s)
        if is_alarm and until_s > from_s:
            named = (said(turn),)
            if was_alarm and found:
                last = found.pop()
                from_s = last.from_s
                named = tuple(dict.fromkeys([*last.named, *named]))
            found.append(SoakAlarm(from_s=round(from_s, 2), until_s=round(until_s, 2), named=named))
        was_alarm = is_alarm
    return found


def with_reason(
    alarm: SoakAlarm, machine: MachineSpeed, log: Iterable[Sent], begin_ns: int, slo: Slo
) -> SoakAlarm:
    """The same, with the reason that the machine or the clients give, if they do."""
    was_slow = machine.was_slow(alarm.from_s - 5, alarm.until_s)
    if was_slow and set(alarm.named) <= set(OF_MACHINE):
        return msgspec.structs.replace(alarm, reason="the machine was slow")
    if set(alarm.named) == {SLO_MISSED} and _is_missed(alarm, log, begin_ns, slo):
        return msgspec.structs.replace(alarm, reason="the SLO was missed")
    return alarm


def _is_missed(alarm: SoakAlarm, log: Iterable[Sent], begin_ns: int, slo: Slo) -> bool:
    """Whether fewer of the requests before the alarm met the SLO than the objective asks for."""
    first_ns = begin_ns + int((alarm.from_s - _OBJECTIVE_OVER_S) * 1e9)
    last_ns = begin_ns + int(alarm.from_s * 1e9)
    mine = [one for one in log if first_ns <= one.due_ns < last_ns]
    good = sum(slo.is_met_by(one) for one in mine)
    return bool(mine) and good < slo.objective * len(mine)


def unsure_s(turns: Sequence[VerdictChange], begin_s: float, end_s: float) -> float:
    """How long the verdict was indeterminate in a span."""
    total_s = 0.0
    last = VerdictChange(at_s=end_s, verdict="healthy")
    for turn, after in pairwise([*turns, last]):
        if said(turn) == UNSURE:
            total_s += max(0.0, min(end_s, after.at_s) - max(begin_s, turn.at_s))
    return round(total_s, 2)


def figures(results: Sequence[SegmentResult]) -> list[Figure]:
    """What must hold, over the segments that count."""
    counted = [one for one in results if not one.discarded]
    false = [alarm for one in counted for alarm in one.alarms if not alarm.reason]
    hours = sum(one.watched_s for one in counted) / 3600
    longest_s = max((alarm.length_s for alarm in false), default=0.0)
    workloads = sum(one.watched_s >= 60 * LEAST_MINUTES for one in counted)
    reversals = sum(one.count(AutopilotDecision.ROLLED_BACK) for one in counted)
    return [
        Figure("hours watched", round(hours, 3), LEAST_HOURS, True),
        Figure("starts", len(counted), LEAST_STARTS, True),
        Figure("patterns", len({one.pattern for one in counted}), 3, True),
        Figure("false alarms", len(false), MOST_FALSE, False),
        Figure("longest false alarm, s", round(longest_s, 2), LONGEST_S, False),
        Figure("workloads of ten minutes", workloads, LEAST_WORKLOADS, True),
        Figure("changes that made a class worse", sum(len(o.harms) for o in counted), 0, False),
        Figure("changes taken back", reversals, MOST_REVERSALS, False),
    ]
