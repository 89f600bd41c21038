"""Latencies of the requests of a twin and contents of its steps, straight from its facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from lab.twins.simulated_run import Span
from telemetry.facts.engine_records import SequenceAdmitted, StepRecorded
from telemetry.facts.reasons import Outcome, WaitReason
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
)

Group = frozenset[str]
Measure = Callable[[list[Fact], Span, Group], float]


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    assert ordered, "nothing to measure"
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def finished(facts: list[Fact], span: Span, who: Group) -> list[tuple[int, RequestEnded]]:
    """Requests of these ids or tenants (all without) that came in the span: when, and their end."""
    came = {
        fact.request_id: fact.at_ns
        for fact in facts
        if isinstance(fact, RequestAccepted)
        and span.has(fact.at_ns)
        and (not who or who & {fact.request_id, fact.tenant})
    }
    return [
        (came[fact.request_id], fact)
        for fact in facts
        if isinstance(fact, RequestEnded)
        and fact.request_id in came
        and fact.reason.outcome is Outcome.FINISHED
    ]


def ttft(facts: list[Fact], span: Span, who: Group) -> float:
    """Median time to what was first sent."""
    return quantile(((end.first_sent_ns or 0) - at for at, end in finished(facts, span, who)), 0.5)


def e2e(facts: list[Fact], span: Span, who: Group) -> float:
    return quantile((end.at_ns - at for at, end in finished(facts, span, who)), 0.5)


def slowest(facts: list[Fact], span: Span, who: Group) -> float:
    """The 95th percentile of whole requests."""
    return quantile((end.at_ns - at for at, end in finished(facts, span, who)), 0.95)


def itl(facts: list[Fact], span: Span, who: Group) -> float:
    return quantile(_gaps(facts, span), 0.5)


def itl_tail(facts: list[Fact], span: Span, who: Group) -> float:
    return quantile(_gaps(facts, span), 0.99)


def _gaps(facts: list[Fact], span: Span) -> list[int]:
    """Between the tokens of each sequence."""
    last_ns: dict[int, int] = {}
    gaps: list[int] = []
    for step in steps(facts):
        for row in step.rows:
            if row.sampled and not row.wasted:
                if row.seq_id in last_ns and span.has(step.committed_ns):
                    gaps.append(step.committed_ns - last_ns[row.seq_id])
                last_ns[row.seq_id] = step.committed_ns
    return gaps


def steps(facts: list[Fact], span: Span | None = None) -> list[StepRecorded]:
    found = [fact for fact in facts if isinstance(fact, StepRecorded)]
    return found if span is None else [step for step in found if span.has(step.committed_ns)]


def waits(facts: list[Fact], span: Span | None = None) -> Counter[WaitReason]:
    """Time in which somebody was kept out of a step, by the reason."""
    found: Counter[WaitReason] = Counter()
    for step in steps(facts, span):
        for skip in step.skips:
            found[skip.reason] += step.committed_ns - step.begin_ns
    return found


def computed_again(facts: list[Fact]) -> float:
    """Of the prompt tokens that were computed, the share that had been before."""
    rows = [row for step in steps(facts) for row in step.rows if row.is_prefill]
    return sum(row.recompute_tokens for row in rows) / sum(row.tokens for row in rows)


def hits(facts: list[Fact], span: Span) -> float:
    """Share of the tokens of admitted prompts that were in the cache."""
    came = [f for f in facts if isinstance(f, SequenceAdmitted) and span.has(f.at_ns)]
    return sum(fact.hit_tokens for fact in came) / sum(fact.known_tokens for fact in came)


def encoding(facts: list[Fact], span: Span) -> float:
    """95th percentile of the time from a parsed body to its tokens."""
    parsed = {f.request_id: f.at_ns for f in facts if isinstance(f, RequestParsed)}
    return quantile(
        (
            fact.at_ns - parsed[fact.request_id]
            for fact in facts
            if isinstance(fact, RequestTokenized) and span.has(fact.at_ns)
        ),
        0.95,
    )


def share_of_steps(facts: list[Fact], span: Span, part: Callable[[StepRecorded], int]) -> float:
    """How much of the steps' time a part of them is."""
    found = steps(facts, span)
    return sum(map(part, found)) / sum(step.committed_ns - step.begin_ns for step in found)
