"""What a replay changes of an engine's limits: to those of the reference, or of a baseline.

Limits that may change while an engine runs keep, from the end of the reference on, the value that
they had then: the engine starts as it did, and what was set before the reference is set again. All
other limits, and those of a baseline, hold from the start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from diagnosis.root_cause.question import Question
from diagnosis.root_cause.thresholds import MORE_BLOCKS
from lab.replay.noise import RecordedNoise
from lab.replay.recorded import NotReplayable
from lab.replay.replay_modelled import Change, check_limits
from service.engine.limits_record import LimitError, limits_of
from telemetry.facts.engine_start import RuntimeLimits

_RUNTIME = frozenset(RuntimeLimits.__struct_fields__)

# each returns None where nothing differs


def chunked_prefill(question: Question) -> dict[str, object] | None:
    chunked = question.run.limits.chunked_prefill
    return None if chunked else {"chunked_prefill": True}


def more_blocks(question: Question) -> dict[str, object]:
    """Limits with as many blocks as in the baseline, or many more: the replay says whether that
    helps."""
    blocks, baseline = question.run.limits.blocks_total, question.baseline
    if baseline is not None and baseline.blocks_total > blocks:
        return {"blocks_total": baseline.blocks_total}
    return {"blocks_total": MORE_BLOCKS * blocks}


def fewer_slots(question: Question) -> dict[str, object] | None:
    before, now = question.limits_before, question.limits_now
    if before is None or before.max_seqs >= max(one.max_seqs for one in now):
        return None
    return {"max_seqs": before.max_seqs}


def larger_budget(question: Question) -> dict[str, object] | None:
    before, now = question.limits_before, question.limits_now
    if before is None or before.budget_tokens <= min(one.budget_tokens for one in now):
        return None
    limits: dict[str, object] = {"budget_tokens": before.budget_tokens}
    if any(one.auto_budget != before.auto_budget for one in now):
        limits["auto_budget"] = before.auto_budget
    return limits


def with_limits(question: Question, limits: Mapping[str, object]) -> Change:
    """A replay with these limits. Raises AssertionError where no engine can start with them."""
    from_ns, at_start = 0, dict(limits)
    if question.reference is not None and question.baseline is None:
        from_ns = question.reference.end_ns
        at_start = {name: value for name, value in limits.items() if name not in _RUNTIME}
    return Change(
        limits=dataclasses.replace(question.run.limits, **at_start),  # type: ignore[arg-type]
        pinned=frozenset(limits),
        pinned_from_ns=from_ns,
    )


def is_possible(question: Question, limits: Mapping[str, object]) -> bool:
    """Whether an engine could have run with these limits and the recorded changes of others."""
    try:
        check_limits(question.run, with_limits(question, limits))
    except (AssertionError, LimitError):
        return False
    return True


def as_the_baseline(question: Question) -> Change:
    """A replay with all limits of the baseline, whatever was set. Raises NotReplayable."""
    baseline = question.baseline
    assert baseline is not None, "a question without a baseline"
    try:
        limits = limits_of(baseline)
    except (AssertionError, ValueError) as error:
        raise NotReplayable(f"the baseline is of an engine with other limits: {error}") from error
    noise = RecordedNoise(question.cost.disturbances)
    return Change(limits=limits, pinned=_RUNTIME, noise=noise)
