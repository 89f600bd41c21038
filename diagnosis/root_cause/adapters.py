"""What a replay changes so that no adapter makes room for another."""

from __future__ import annotations

from diagnosis.root_cause.question import Question
from telemetry.facts.adapter_records import AdapterEvicted


def room_for_adapters(question: Question) -> dict[str, object] | None:
    """Limits with memory for all adapters at once; None where none was evicted in the window."""
    run, window = question.run, question.window
    if not any(
        isinstance(fact, AdapterEvicted) and window.begin_ns <= fact.at_ns < window.end_ns
        for fact in run.facts
    ):
        return None
    sizes = [read.bytes for one in run.adapters.values() for read in one.reads]
    limits, count = run.limits, len(run.adapters)
    return {
        "adapter_bytes": max(limits.adapter_bytes, max(sizes, default=0) * count),
        "max_adapters": max(limits.max_adapters, count),
    }
