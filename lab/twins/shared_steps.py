"""Requests that shared a step with a culprit: victims that follow from the facts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from telemetry.facts.engine_records import StepRecorded
from telemetry.facts.records import Fact, SequenceSubmitted


def decoded_beside_prompts(facts: Sequence[Fact], culprits: Collection[str]) -> frozenset[str]:
    """Requests that decoded in a step that computed a culprit's prompt."""
    return _shared_a_step(facts, culprits, prompts_only=True)


def shared_a_step(facts: Sequence[Fact], culprits: Collection[str]) -> frozenset[str]:
    """Requests that were in a step with a culprit."""
    return _shared_a_step(facts, culprits, prompts_only=False)


def _shared_a_step(
    facts: Sequence[Fact], culprits: Collection[str], prompts_only: bool
) -> frozenset[str]:
    owners = {fact.seq_id: fact.request_id for fact in facts if isinstance(fact, SequenceSubmitted)}
    culprit_seq_ids = {seq_id for seq_id, request_id in owners.items() if request_id in culprits}
    found: set[int] = set()
    for fact in facts:
        if not isinstance(fact, StepRecorded):
            continue
        if any(
            row.seq_id in culprit_seq_ids and row.is_prefill >= prompts_only for row in fact.rows
        ):
            found |= {row.seq_id for row in fact.rows if not (prompts_only and row.is_prefill)}
    return frozenset(owners[seq_id] for seq_id in found - culprit_seq_ids)
