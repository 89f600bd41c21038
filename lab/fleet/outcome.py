"""What became of each request of a simulated fleet, and the fleet's goodput."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lab.fleet.traffic import MAX_TOKENS, Session
from telemetry.facts.fleet.routing_records import RouteRefusal
from telemetry.facts.reasons import EndReason
from telemetry.numbers.quantiles import quantile
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloClass
from telemetry.stats.slo import judge_latencies, judge_unfinished
from telemetry.stats.slo_report import Verdict

TARGET = DEFAULT_POLICY.of("chat")


@dataclass(slots=True)
class Asked:
    """One request, as its client sees it: stamps are those of the gateway.

    `engines` are those that it was sent to, one after the other. `seq_id` is that of the last try.
    The text ends after `wanted_tokens`, which no router and no engine is told. Targets of None are
    not asked for; its promise is that of the class `judged_by`.
    """

    session: Session
    turn: int
    at_ns: int
    prompt: list[int]
    wanted_tokens: int
    max_tokens: int = MAX_TOKENS
    ttft_target_ns: int | None = TARGET.ttft_ns
    itl_target_ns: int | None = TARGET.itl_ns
    judged_by: SloClass = TARGET
    seq_id: int = -1
    engines: list[str] = field(default_factory=list)
    first_ns: int | None = None
    last_ns: int = 0
    tokens: int = 0
    late: int = 0
    end: EndReason | RouteRefusal | None = None

    def got_token(self, at_ns: int) -> None:
        self.tokens += 1
        if self.first_ns is None:
            self.first_ns = at_ns
        elif at_ns - self.last_ns > self.judged_by.itl_ns:
            self.late += 1
        self.last_ns = at_ns

    @property
    def verdict(self) -> Verdict:
        """Whether the promise of its class was kept (`telemetry.stats.slo`)."""
        if not isinstance(self.end, EndReason):
            return Verdict.REJECTED
        unfinished = judge_unfinished(self.end)
        if unfinished is not None:
            return unfinished
        assert self.first_ns is not None
        ttft_ns = self.first_ns - self.at_ns
        return judge_latencies(ttft_ns, self.tokens - 1, self.late, self.judged_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the requests that came in a window. `good_per_s` is goodput; `hit_share` of
    all prompt tokens were in a prefix cache."""

    requests: int
    good: int
    good_per_s: float
    verdicts: dict[str, int]
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    hit_share: float


def outcome_of(asked: list[Asked], begin_ns: int, end_ns: int, hit_share: float) -> Outcome:
    """Over the requests that came in [begin_ns, end_ns)."""
    counted = [one for one in asked if begin_ns <= one.at_ns < end_ns]
    verdicts = Counter(one.verdict for one in counted)
    ttft_ms = sorted(
        (one.first_ns - one.at_ns) / 1e6 for one in counted if one.first_ns is not None
    )
    good = verdicts[Verdict.GOOD]
    return Outcome(
        requests=len(counted),
        good=good,
        good_per_s=good / ((end_ns - begin_ns) / 1e9),
        verdicts={verdict.value: count for verdict, count in sorted(verdicts.items())},
        ttft_p50_ms=quantile(ttft_ms, 0.5),
        ttft_p99_ms=quantile(ttft_ms, 0.99),
        hit_share=hit_share,
    )
