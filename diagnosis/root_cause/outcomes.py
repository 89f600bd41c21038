"""Outcomes of a run by SLO class: the figures in which two runs are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from telemetry.facts.records import Fact
from telemetry.numbers.quantiles import rank
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import Measure, Measured, RequestTimeline
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy
from telemetry.stats.slo import judge
from telemetry.stats.slo_report import Verdict

MEASURES = (Measure.TTFT, Measure.ITL, Measure.TPOT, Measure.E2E, Measure.QUEUE)
QUANTILES = (0.5, 0.9, 0.99)


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of one latency, in ms."""

    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


class ClassOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One SLO class over a whole run: `good` of the `counted` requests met their SLO."""

    requests: int
    counted: int
    good: int
    output_tokens: int
    good_requests_per_s: float
    good_tokens_per_s: float
    verdicts: dict[str, int]
    latency: dict[str, Latency]


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """All classes that had requests. Rates are over `span_s`."""

    span_s: float
    classes: dict[str, ClassOutcome]


def outcomes_of(
    facts: Iterable[Fact],
    policy: SloPolicy = DEFAULT_POLICY,
    cut: frozenset[str] = frozenset(),
    span_s: float | None = None,
) -> Outcomes:
    """Fold the facts of a run, in order. Requests in `cut` are recorded without their beginning and
    have no latency. Rates are over `span_s`; without it, over the time from the first request
    accepted to the last end, since an engine may have been idle before and after. Runs that are
    compared need the same."""
    timelines: list[RequestTimeline] = []
    measured: list[Measured] = []
    fold = PhaseFold([timelines.append], [measured.append], cut=cut)
    for fact in facts:
        fold.on_facts((fact,))
    fold.close()
    if span_s is None:
        span_s = _span_ns(timelines, cut) / 1e9
    by_class: dict[str, list[RequestTimeline]] = {}
    for timeline in timelines:
        name = policy.of(timeline.accepted.slo_class).name
        by_class.setdefault(name, []).append(timeline)
    values: dict[str, dict[Measure, list[int]]] = {}
    for one in measured:
        name = policy.of(one.workload.slo_class).name
        values.setdefault(name, {}).setdefault(one.measure, []).append(one.value_ns)
    return Outcomes(
        span_s=span_s,
        classes={
            name: _outcome(mine, values.get(name, {}), span_s, policy)
            for name, mine in sorted(by_class.items())
        },
    )


def _span_ns(timelines: Sequence[RequestTimeline], cut: frozenset[str]) -> int:
    """Requests in `cut` were accepted before the record begins, with others that it does not have,
    so they do not begin the span where there are others."""
    if not timelines:
        return 0
    begun = [t.accepted.at_ns for t in timelines if t.accepted.request_id not in cut]
    begin_ns = min(begun or [t.accepted.at_ns for t in timelines])
    return max(t.ended.at_ns for t in timelines) - begin_ns


def _outcome(
    timelines: Sequence[RequestTimeline],
    values: dict[Measure, list[int]],
    span_s: float,
    policy: SloPolicy,
) -> ClassOutcome:
    verdicts: Counter[Verdict] = Counter()
    good_tokens = tokens = 0
    for timeline in timelines:
        verdict = judge(timeline, policy.of(timeline.accepted.slo_class))
        verdicts[verdict] += 1
        tokens += timeline.ended.output_tokens
        good_tokens += timeline.ended.output_tokens if verdict is Verdict.GOOD else 0
    good = verdicts[Verdict.GOOD]
    return ClassOutcome(
        requests=len(timelines),
        counted=good + sum(count for verdict, count in verdicts.items() if verdict.is_miss),
        good=good,
        output_tokens=tokens,
        good_requests_per_s=good / span_s if span_s else 0.0,
        good_tokens_per_s=good_tokens / span_s if span_s else 0.0,
        verdicts={verdict.value: count for verdict, count in sorted(verdicts.items())},
        latency={
            measure.value: latency_of(values[measure]) for measure in MEASURES if measure in values
        },
    )


def latency_of(values_ns: Sequence[int]) -> Latency:
    """Quantiles of at least one value."""
    ordered = sorted(values_ns)
    p50, p90, p99 = (ordered[rank(share, len(ordered)) - 1] / 1e6 for share in QUANTILES)
    return Latency(count=len(ordered), p50_ms=p50, p90_ms=p90, p99_ms=p99, max_ms=ordered[-1] / 1e6)
