"""Symptoms that cannot be judged of the engine that runs, by name; what findings owe to that."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from diagnosis.detection.aggregator import Aggregator
from diagnosis.needs import NEEDS, NO_ADAPTER_SEES, Need
from diagnosis.symptoms import Abstention, Finding, Symptom


def unseen(aggregator: Aggregator) -> frozenset[Need]:
    """What is not seen of the engine that runs; nothing is missing of our own."""
    started = aggregator.started
    if started is None or not started.is_attached:
        return frozenset()
    found = set(NO_ADAPTER_SEES)
    found |= {need for need in Need if need.value in started.unobserved}
    if not aggregator.sees_front_end:
        found.add(Need.FRONT_END)
    if not aggregator.sees_engine_host:
        found.add(Need.ENGINE_HOST)
    return frozenset(found)


def abstentions(missing: Collection[Need], found: Collection[Symptom]) -> tuple[Abstention, ...]:
    """Symptoms that need what is missing, but for those that were found."""
    return tuple(
        Abstention(symptom, tuple(need.words for need in lacking), needs.still)
        for symptom, needs in NEEDS.items()
        if (lacking := [need for need in needs.needs if need in missing]) and symptom not in found
    )


def with_doubts(found: Sequence[Finding], abstained: Sequence[Abstention]) -> tuple[Finding, ...]:
    """The findings; each says which symptoms that were not judged may look like it, and rules none
    of those out."""
    names = frozenset(one.symptom for one in abstained)
    return tuple(_with_doubt(finding, names) for finding in found) if names else tuple(found)


def no_replay(engine: str) -> str:
    """Why there is no root cause of an attached engine, in one line."""
    return (
        f"{engine} has a scheduler of its own, and the replay runs ours: no root cause by replay. "
        "The verdict rests on what was measured"
    )


def _with_doubt(finding: Finding, abstained: frozenset[Symptom]) -> Finding:
    alike = [one for one in abstained if finding.symptom in NEEDS[one].seems]
    doubts = sorted(one.value for one in alike)
    claim = finding.claim
    if doubts:
        claim += f"; not told from {' and '.join(doubts)}, which cannot be judged here"
    excluded = tuple(one for one in finding.excluded if one.symptom not in abstained)
    return msgspec.structs.replace(finding, claim=claim, excluded=excluded)
