"""Prefix hits of the reference, restored where prompts no longer have them.

Prompts that begin differently (another salt, a time of day in the system prompt) miss the cache
although nothing was flushed. Restored is their beginning: as many of those that miss as are beyond
the reference's share begin, in the replay, with the blocks that their tenant's requests hit most
often. Whether these are still cached at that time, the replayed cache decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from diagnosis.attribution.thresholds import MISSED_SHARE, SIGMAS
from diagnosis.root_cause.question import Question, arrivals
from lab.replay.recorded import RecordedSequence
from telemetry.facts.engine_records import SequenceAdmitted

Names = tuple[int, ...]


def restored_prefixes(question: Question) -> dict[int, Names]:
    """The names of the blocks with which each sequence's prompt is to begin; empty where as many
    hit the cache as in the reference."""
    if question.reference is None:
        return {}
    hits = _first_hits(question)
    before = [one for one in arrivals(question.run, question.reference) if one.seq_id in hits]
    now = [one for one in arrivals(question.run, question.window) if one.seq_id in hits]
    if not before or not now:
        return {}
    share = sum(hits[one.seq_id] > 0 for one in before) / len(before)
    expected = share * len(now)
    misses_beyond = expected - sum(hits[one.seq_id] > 0 for one in now)
    chance = SIGMAS * math.sqrt(max(1.0, expected * (1 - share)))
    if misses_beyond < max(chance, MISSED_SHARE * len(now)):
        return {}
    return _restored(question, hits, before, now, misses_beyond)


def _first_hits(question: Question) -> dict[int, int]:
    """Cached tokens of each sequence at its first admission."""
    found: dict[int, int] = {}
    for fact in question.run.facts:
        if isinstance(fact, SequenceAdmitted):
            found.setdefault(fact.seq_id, fact.hit_tokens)
    return found


def _restored(
    question: Question,
    hits: Mapping[int, int],
    before: list[RecordedSequence],
    now: list[RecordedSequence],
    misses_beyond: float,
) -> dict[int, Names]:
    """Spread evenly over the sequences that miss and are long enough for their tenant's blocks."""
    size = question.run.limits.block_tokens
    baseline = _most_hit(before, hits, size)
    missing = [
        one
        for one in now
        if not hits[one.seq_id]
        and one.is_cacheable
        and len(baseline.get(one.entry.tenant, ())) * size < one.entry.prompt_tokens
        and one.entry.tenant in baseline
    ]
    step = max(1.0, len(missing) / misses_beyond)
    chosen = [missing[int(place * step)] for place in range(int(len(missing) / step))]
    return {one.seq_id: baseline[one.entry.tenant] for one in chosen}


def _most_hit(
    before: list[RecordedSequence], hits: Mapping[int, int], size: int
) -> dict[str, Names]:
    """The block names that were hit most often, by tenant."""
    by_tenant: dict[str, Counter[Names]] = {}
    for one in before:
        names = tuple(one.block_aliases[: hits[one.seq_id] // size])
        if names:
            by_tenant.setdefault(one.entry.tenant, Counter())[names] += 1
    return {tenant: found.most_common(1)[0][0] for tenant, found in by_tenant.items()}
