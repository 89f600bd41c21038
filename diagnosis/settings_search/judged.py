"""Requests of a window judged by their class' SLO, at the end of the window.

A request that has not ended by then is late if it is already beyond a target: its first token has
not come, or came, after the TTFT target, or more gaps are above the ITL target than its whole
output may have. Else it is not counted, since nobody knows how it would end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from diagnosis.settings_search.answer import ClassForecast
from diagnosis.spans import Span
from lab.replay.recorded import RecordedRun
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestEnded,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)
from telemetry.numbers.quantiles import quantile
from telemetry.requests.assumed_end import assumed_end
from telemetry.requests.phase_fold import PhaseFold
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import SloClass, SloPolicy
from telemetry.stats.slo import allowed_late, judge
from telemetry.stats.slo_report import Verdict

_TTFT_QUANTILE, _ITL_QUANTILE = 0.95, 0.99


@dataclass(frozen=True, slots=True)
class Judged:
    """The judged requests by class, and the ids of the requests that missed."""

    classes: dict[str, ClassForecast]
    missed: frozenset[str]


def judged(
    facts: Iterable[Fact],
    window: Span,
    policy: SloPolicy,
    expected_tokens: Mapping[str, int],
    given_up: Collection[str] = (),
) -> Judged:
    """The verdicts on the requests accepted in the window; `facts` are in the order of time.
    `expected_tokens` are the outputs that a request will have in the end. Requests in `given_up` do
    not count unless they end."""
    ended: list[RequestTimeline] = []
    live: dict[str, None] = {}
    fold = PhaseFold([ended.append])
    for fact in facts:
        if fact_ns(fact) >= window.end_ns:
            break
        if isinstance(fact, RequestAccepted) and window.has(fact.at_ns):
            live[fact.request_id] = None
        elif isinstance(fact, RequestEnded):
            live.pop(fact.request_id, None)
        fold.on_facts((fact,))
    waited = [request_id for request_id in live if request_id not in given_up]
    unfinished = [
        fold.provisional(assumed_end(request_id, window.end_ns, EndReason.MAX_TOKENS, 200))
        for request_id in waited
    ]
    fold.close()
    tallies: dict[str, _Tally] = {}
    missed: set[str] = set()
    for timeline in ended:
        if window.has(timeline.accepted.at_ns):
            target = policy.of(timeline.accepted.slo_class)
            tally = tallies.setdefault(target.name, _Tally(target))
            if tally.add(timeline, judge(timeline, target)):
                missed.add(timeline.accepted.request_id)
    for one in unfinished:
        if one is not None:
            target = policy.of(one.accepted.slo_class)
            tally = tallies.setdefault(target.name, _Tally(target))
            expected = expected_tokens.get(one.accepted.request_id, 0)
            if tally.add(one, _judge_unfinished(one, target, window.end_ns, expected)):
                missed.add(one.accepted.request_id)
    classes = {name: tally.forecast(window.seconds) for name, tally in sorted(tallies.items())}
    return Judged(classes, frozenset(missed))


def judge_recorded(run: RecordedRun, window: Span, policy: SloPolicy) -> Judged:
    """What was measured, by the same rules."""
    ranked = [(fact_ns(fact), _rank(fact), fact) for fact in [*run.others, *run.facts]]
    inside = [one for one in ranked if window.begin_ns <= one[0] < window.end_ns]
    inside.sort(key=lambda one: one[:2])
    facts = (fact for _, _, fact in inside)
    return judged(facts, window, policy, expected_tokens(run))


def expected_tokens(run: RecordedRun) -> dict[str, int]:
    """The outputs that the sequences of each request have had, or may have."""
    found: dict[str, int] = {}
    for seq_id, request_id in run.owners.items():
        sequence = run.sequences.get(seq_id)
        if sequence is not None:
            tokens = sequence.entry.max_tokens
            if sequence.end is not None:
                tokens = sequence.end.output_tokens
            found[request_id] = found.get(request_id, 0) + tokens
    return found


def given_up(run: RecordedRun) -> frozenset[str]:
    """The requests whose clients left, in the record."""
    left = (EndReason.DISCONNECT, EndReason.DELETED)
    return frozenset(
        fact.request_id
        for fact in run.others
        if isinstance(fact, RequestEnded) and fact.reason in left
    )


def _rank(fact: Fact) -> int:
    """The order of facts of one moment: what came in, the engine's, what went out."""
    if isinstance(fact, RequestAccepted | RequestTokenized | SequenceSubmitted):
        return 0
    return 2 if isinstance(fact, RequestEnded) else 1


def _judge_unfinished(
    timeline: RequestTimeline, target: SloClass, now_ns: int, expected: int
) -> Verdict:
    """UNMEASURED where it may yet be good."""
    ttft_ns = timeline.ttft_ns
    waited_ns = now_ns - timeline.accepted.at_ns if ttft_ns is None else ttft_ns
    if waited_ns > target.ttft_ns:
        return Verdict.LATE_FIRST_TOKEN
    late = sum(gap > target.itl_ns for gap in _gaps_ns(timeline))
    if late > allowed_late(max(expected, timeline.token_count)):
        return Verdict.SLOW_TOKENS
    return Verdict.UNMEASURED


def _gaps_ns(timeline: RequestTimeline) -> list[int]:
    return [b - a for sequence in timeline.sequences for a, b in pairwise(sequence.token_ns)]


@dataclass(slots=True)
class _Tally:
    """Counts of one class."""

    target: SloClass
    good: int = 0
    counted: int = 0
    late_first_tokens: int = 0
    tokens: int = 0
    ttft_ns: list[int] = field(default_factory=list)
    gaps_ns: list[int] = field(default_factory=list)

    def add(self, timeline: RequestTimeline, verdict: Verdict) -> bool:
        """Returns whether it missed."""
        self.good += verdict is Verdict.GOOD
        self.counted += verdict is Verdict.GOOD or verdict.is_miss
        ttft_ns = timeline.ttft_ns
        if ttft_ns is None and verdict is Verdict.LATE_FIRST_TOKEN:
            ttft_ns = timeline.e2e_ns  # it waits still, and so long already
        if ttft_ns is not None:
            self.ttft_ns.append(ttft_ns)
            self.late_first_tokens += ttft_ns > self.target.ttft_ns
        self.tokens += timeline.token_count
        self.gaps_ns += _gaps_ns(timeline)
        return verdict.is_miss

    def forecast(self, seconds: float) -> ClassForecast:
        return ClassForecast(
            requests=self.counted,
            good_share=self.good / self.counted if self.counted else 1.0,
            ttft_p95_ms=_ms(quantile(self.ttft_ns, _TTFT_QUANTILE)),
            itl_p99_ms=_ms(quantile(self.gaps_ns, _ITL_QUANTILE)),
            output_tokens_per_s=self.tokens / seconds,
            late_first_tokens=self.late_first_tokens,
            slow_tokens=sum(gap > self.target.itl_ns for gap in self.gaps_ns),
            objective=self.target.objective,
        )


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e6
