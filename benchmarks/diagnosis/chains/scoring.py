"""How the diagnosis did on faults that bring about another one; pure.

The answer of an episode is the chain that stood longest in the second half of the fault; a finding
without a chain answers with its own class. It is right when it begins with the injected fault and
has the links that this led to, in their order. An episode counts only if these links came about,
which its own gauges show: a queue, a full cache, preemptions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from benchmarks.diagnosis.answers import said
from benchmarks.diagnosis.episodes import Kept
from benchmarks.diagnosis.gauges import GAUGES, Gauges
from benchmarks.diagnosis.tails.figures import Figure
from lab.drills.outcome.result import EpisodeResult
from lab.drills.registry import find
from lab.drills.watch import VerdictChange

LEAST_RIGHT, COMPOUNDS = 8, 10
"""So many of so many that count, and of more as large a part."""
_FULL = 0.9  # of the cache
_LONG_FULL = 0.1  # of the seconds, above the reference: so long the cache is full while some wait
_QUEUE = 1.0  # requests that wait in the second half of the fault, above the reference

Chain = tuple[str, ...]


class ChainRow(msgspec.Struct, frozen=True, kw_only=True):
    """One episode. `first_right` says whether at least the first link is right."""

    name: str
    date: str
    cpu: object
    truth: Chain
    answer: Chain
    right: bool
    first_right: bool
    why_not: list[str]


def chain_said(turn: VerdictChange) -> Chain:
    return turn.chain or (said(turn),)


def stood_longest(turns: Sequence[VerdictChange], begin_s: float, end_s: float) -> Chain:
    """The chain that stood longest in a span; empty where nothing was said."""
    times: dict[Chain, float] = defaultdict(float)
    ends_s = [turn.at_s for turn in turns[1:]] + [end_s]
    for turn, turn_end_s in zip(turns, ends_s, strict=False):
        length_s = min(end_s, turn_end_s) - max(begin_s, turn.at_s)
        if length_s > 0:
            times[chain_said(turn)] += length_s
    return max(times, key=lambda chain: times[chain]) if times else ()


def is_right(answer: Chain, truth: Chain) -> bool:
    """The same first link, and all others of the truth in their order; more links do no harm."""
    if not answer or answer[0] != truth[0]:
        return False
    rest = iter(answer)
    return all(link in rest for link in truth)


def row_of(kept: Kept) -> ChainRow:
    """Raises ValueError for an episode of another series."""
    episode = kept.episode
    truth = find(episode.symptom, episode.mechanism).chain
    if not truth or episode.on_s is None or episode.off_s is None:
        raise ValueError(f"{episode.name} is no episode of chains")
    middle_s = (episode.on_s + episode.off_s) / 2
    answer = stood_longest(episode.verdicts, middle_s, episode.off_s)
    absent = [link for link in truth[1:] if not came_about(link, episode, kept.gauges)]
    return ChainRow(
        name=episode.name,
        date=kept.date,
        cpu=kept.machine["cpu"],
        truth=truth,
        answer=answer,
        right=is_right(answer, truth),
        first_right=answer[:1] == truth[:1],
        why_not=[*episode.discarded, *(f"{link} did not come about" for link in absent)],
    )


def came_about(link: str, episode: EpisodeResult, gauges: Gauges | None) -> bool:
    """Whether the gauges show a link in the fault; one that they cannot show counts as there."""
    if gauges is None or episode.on_s is None or episode.off_s is None:
        return False
    first_s = (gauges.begin_ns - episode.begin_ns) / 1e9
    rows = list(enumerate(gauges.rows))
    on_s, off_s = episode.on_s - first_s, episode.off_s - first_s
    fault = [row for at_s, row in rows if on_s <= at_s < off_s]
    late = [row for at_s, row in rows if (on_s + off_s) / 2 <= at_s < off_s]
    before = [row for at_s, row in rows if on_s - episode.phases.reference_s <= at_s < on_s]
    match link:
        case "queue_overload":
            return _mean(late, "waiting") >= _QUEUE + _mean(before, "waiting")
        case "kv_exhaustion":
            return _full(fault) >= _LONG_FULL + _full(before)
        case "kv_thrash":
            return _mean(fault, "preemptions") > _mean(before, "preemptions")
        case _:
            return True


def _mean(rows: Sequence[tuple[float, ...]], gauge: str) -> float:
    place = GAUGES.index(gauge)
    return sum(row[place] for row in rows) / len(rows) if rows else 0.0


def _full(rows: Sequence[tuple[float, ...]]) -> float:
    """The share of seconds in which the cache was full and a request waited."""
    used, waiting = GAUGES.index("kv_used"), GAUGES.index("waiting")
    full = sum(row[used] >= _FULL and row[waiting] > 0 for row in rows)
    return full / len(rows) if rows else 0.0


def acceptance(rows: Sequence[ChainRow]) -> list[Figure]:
    counted = [one for one in rows if not one.why_not]
    right = sum(one.right for one in counted)
    return [
        Figure("compounds that count", len(counted), COMPOUNDS, True),
        Figure("chains right", right, -(-LEAST_RIGHT * len(counted) // COMPOUNDS), True),
    ]
