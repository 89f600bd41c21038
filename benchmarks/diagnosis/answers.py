"""What was said over the time of an episode: which answer, since when, for how long; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from lab.drills.watch import VerdictChange

HEALTHY, UNSURE, SILENT = "healthy", "indeterminate", "no answer"
THIN = "telemetry_degraded"


def said(turn: VerdictChange) -> str:
    """A fault by its first finding, and so a record that is too thin; else the verdict."""
    if turn.verdict == "fault" or turn.top == THIN:
        return turn.top or UNSURE
    return turn.verdict


def spans(turns: Sequence[VerdictChange], begin_s: float, end_s: float) -> list[tuple[float, str]]:
    """How long each answer stood in a span."""
    found: list[tuple[float, str]] = []
    ends_s = [turn.at_s for turn in turns[1:]] + [end_s]
    for turn, turn_end_s in zip(turns, ends_s, strict=False):
        until_s = min(end_s, turn_end_s)
        length_s = until_s - max(begin_s, turn.at_s)
        if length_s > 0:
            found.append((length_s, said(turn)))
    return found


def named_most(turns: Sequence[VerdictChange], begin_s: float, end_s: float) -> str:
    """The answer that stood longest."""
    times: dict[str, float] = defaultdict(float)
    for length_s, answer in spans(turns, begin_s, end_s):
        times[answer] += length_s
    return max(times, key=lambda answer: times[answer]) if times else SILENT


def first_named(
    turns: Sequence[VerdictChange], truth: str, on_s: float, off_s: float
) -> VerdictChange | None:
    """The first change to the right answer while the fault lasted. One that stood before is not
    about it, until something else was said."""
    stood = False
    for turn in turns:
        if said(turn) != truth:
            stood = False
        elif turn.at_s < on_s:
            stood = True
        elif not stood and turn.at_s < off_s:
            return turn
    return None


def cleared_s(turns: Sequence[VerdictChange], off_s: float) -> float | None:
    """From the end of the fault to the healthy verdict that then stood to the end."""
    last: float | None = None
    for turn in turns:
        if turn.verdict != "healthy":
            last = None
        elif last is None:
            last = turn.at_s
    return None if last is None else max(0.0, last - off_s)
