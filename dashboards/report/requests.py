"""The requests of a journal, a line each, and the groups of them that were hit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec

from dashboards.report.incident import GroupImpact
from telemetry.facts.reasons import Outcome
from telemetry.facts.records import Fact, RequestAccepted, RequestEnded
from telemetry.numbers.quantiles import quantile
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import SloClass, SloPolicy
from telemetry.stats.slo import allowed_late, judge
from telemetry.stats.slo_report import Verdict

IN_FLIGHT = "in flight"
_TAIL = 0.95
_DEFAULT_TENANT = "(none)"


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """What the report keeps of one request. `verdict` is that on its SLO; of one in flight it is
    what it has missed already, or UNMEASURED."""

    request_id: str
    tenant: str
    slo_class: str
    accepted_ns: int
    ended_ns: int
    is_live: bool
    outcome: str
    verdict: Verdict
    e2e_ns: int
    ttft_ns: int | None
    gap_max_ns: int | None
    prompt_tokens: int | None
    output_tokens: int

    @property
    def is_hit(self) -> bool:
        return self.verdict.is_miss


class RequestLines:
    """A listener to timelines, and a fold that knows which requests are in flight."""

    def __init__(self, policy: SloPolicy) -> None:
        self.lines: dict[str, RequestLine] = {}
        self.live: dict[str, RequestAccepted] = {}
        self.is_over = False
        self._policy = policy

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, RequestAccepted):
                self.live[fact.request_id] = fact
            elif isinstance(fact, RequestEnded):
                self.live.pop(fact.request_id, None)

    def on_timeline(self, timeline: RequestTimeline) -> None:
        accepted = timeline.accepted
        if timeline.outcome is Outcome.LOST:
            self.live.pop(accepted.request_id, None)
        target = self._policy.of(accepted.slo_class)
        line = RequestLine(
            request_id=accepted.request_id,
            tenant=accepted.tenant or _DEFAULT_TENANT,
            slo_class=target.name,
            accepted_ns=accepted.at_ns,
            ended_ns=timeline.ended.at_ns,
            is_live=self.is_over,
            outcome=IN_FLIGHT if self.is_over else timeline.outcome.value,
            verdict=_so_far(timeline, target) if self.is_over else judge(timeline, target),
            e2e_ns=timeline.e2e_ns,
            ttft_ns=timeline.ttft_ns,
            gap_max_ns=_longest_gap_ns(timeline),
            prompt_tokens=timeline.tokenized.prompt_tokens if timeline.tokenized else None,
            output_tokens=max(timeline.ended.output_tokens, timeline.token_count),
        )
        self.lines[line.request_id] = line


def _so_far(timeline: RequestTimeline, target: SloClass) -> Verdict:
    """Whether a request that has not ended is beyond a target already."""
    ttft_ns = timeline.ttft_ns
    if (timeline.e2e_ns if ttft_ns is None else ttft_ns) > target.ttft_ns:
        return Verdict.LATE_FIRST_TOKEN
    gaps_ns = [gap for sequence in timeline.sequences for gap in _gaps_ns(sequence.token_ns)]
    gaps_ns += [timeline.ended.at_ns - s.token_ns[-1] for s in timeline.sequences if s.token_ns]
    late = sum(gap_ns > target.itl_ns for gap_ns in gaps_ns)
    return Verdict.SLOW_TOKENS if late > allowed_late(len(gaps_ns)) else Verdict.UNMEASURED


def _gaps_ns(stamps: Sequence[int]) -> list[int]:
    return [b - a for a, b in pairwise(stamps)]


def _longest_gap_ns(timeline: RequestTimeline) -> int | None:
    return max((gap for s in timeline.sequences for gap in _gaps_ns(s.token_ns)), default=None)


def groups(
    lines: Iterable[RequestLine],
    key: Callable[[RequestLine], str],
    begin_ns: int,
    end_ns: int,
    policy: SloPolicy | None = None,
) -> tuple[GroupImpact, ...]:
    """The requests that ended in [begin, end), or are in flight, by `key`: the worst hit first.
    With a policy the groups are its classes, and have targets."""
    during: dict[str, list[RequestLine]] = {}
    before: dict[str, list[RequestLine]] = {}
    for line in lines:
        if line.ended_ns < begin_ns:
            before.setdefault(key(line), []).append(line)
        elif line.accepted_ns < end_ns and line.ended_ns <= end_ns:
            during.setdefault(key(line), []).append(line)
    found = [
        _group(name, mine, before.get(name, []), policy.of(name) if policy is not None else None)
        for name, mine in during.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.hit, -one.requests, one.name)))


def _group(
    name: str,
    during: Sequence[RequestLine],
    before: Sequence[RequestLine],
    target: SloClass | None,
) -> GroupImpact:
    ended = [line for line in during if not line.is_live]
    live = [line for line in during if line.is_live]
    return GroupImpact(
        name=name,
        requests=len(during),
        missed=sum(line.is_hit for line in ended),
        in_flight=len(live),
        overdue=sum(line.is_hit for line in live),
        verdicts=dict(Counter(line.verdict.value for line in during if line.is_hit).most_common()),
        ttft_p95_ms=_tail_ms(_waits_ns(during)),
        gap_p95_ms=_tail_ms([line.gap_max_ns for line in during]),
        before_requests=len(before),
        before_missed=sum(line.is_hit for line in before),
        before_ttft_p95_ms=_tail_ms(_waits_ns(before)),
        before_gap_p95_ms=_tail_ms([line.gap_max_ns for line in before]),
        ttft_target_ms=None if target is None else target.ttft_ns / 1e6,
        itl_target_ms=None if target is None else target.itl_ns / 1e6,
    )


def _waits_ns(lines: Iterable[RequestLine]) -> list[int | None]:
    """Time to the first token; of those in flight without one, how long they have waited."""
    return [
        line.e2e_ns if line.is_live and line.ttft_ns is None else line.ttft_ns for line in lines
    ]


def _tail_ms(values_ns: Iterable[int | None]) -> float | None:
    found = quantile([value for value in values_ns if value is not None], _TAIL)
    return None if found is None else found / 1e6
