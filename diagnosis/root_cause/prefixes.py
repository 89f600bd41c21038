"""What a prefix cache used to find, put back where prompts began to miss it.

Prompts that begin otherwise (another salt, a time of day in the system prompt) find nothing, and
nothing was emptied. Put back is how they began before: as many of those that miss as are beyond
the reference's share begin, in the replay, with the blocks that their tenant's requests found most
often. Whether those are still there then is for the replayed cache to say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from diagnosis.root_cause.question import Question, arrivals
from lab.replay.recorded import RecordedSequence
from telemetry.facts.engine_records import SequenceAdmitted

Names = tuple[int, ...]

# of the requests; fewer that miss are chance
_LEAST_LACKING = 0.1
_SIGMAS = 2.5


def found_as_before(question: Question) -> dict[int, Names]:
    """By sequence, the names of the blocks with which its prompt is to begin; empty where as many
    find something as before."""
    if question.reference is None:
        return {}
    hits = _first_hits(question)
    before = [one for one in arrivals(question.run, question.reference) if one.seq_id in hits]
    now = [one for one in arrivals(question.run, question.window) if one.seq_id in hits]
    if not before or not now:
        return {}
    share = sum(hits[one.seq_id] > 0 for one in before) / len(before)
    expected = share * len(now)
    lacking = expected - sum(hits[one.seq_id] > 0 for one in now)
    chance = _SIGMAS * math.sqrt(max(1.0, expected * (1 - share)))
    if lacking < max(chance, _LEAST_LACKING * len(now)):
        return {}
    return _begun_as_before(question, hits, before, now, lacking)


def _first_hits(question: Question) -> dict[int, int]:
    """Tokens that each sequence found when it was admitted first."""
    found: dict[int, int] = {}
    for fact in question.run.facts:
        if isinstance(fact, SequenceAdmitted):
            found.setdefault(fact.seq_id, fact.hit_tokens)
    return found


def _begun_as_before(
    question: Question,
    hits: Mapping[int, int],
    before: list[RecordedSequence],
    now: list[RecordedSequence],
    lacking: float,
) -> dict[int, Names]:
    """Evenly among those that miss and could hold what their tenant's used to find."""
    size = question.run.limits.block_tokens
    usual = _most_found(before, hits, size)
    missing = [
        one
        for one in now
        if not hits[one.seq_id]
        and one.is_cacheable
        and len(usual.get(one.entry.tenant, ())) * size < one.entry.prompt_tokens
        and one.entry.tenant in usual
    ]
    step = max(1.0, len(missing) / lacking)
    chosen = [missing[int(place * step)] for place in range(int(len(missing) / step))]
    return {one.seq_id: usual[one.entry.tenant] for one in chosen}


def _most_found(
    before: list[RecordedSequence], hits: Mapping[int, int], size: int
) -> dict[str, Names]:
    """By tenant, the blocks that were found most often."""
    by_tenant: dict[str, Counter[Names]] = {}
    for one in before:
        names = tuple(one.block_aliases[: hits[one.seq_id] // size])
        if names:
            by_tenant.setdefault(one.entry.tenant, Counter())[names] += 1
    return {tenant: found.most_common(1)[0][0] for tenant, found in by_tenant.items()}
