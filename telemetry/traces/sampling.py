"""Which traces are kept, decided on the finished request before any span of it is built.

In mode `full` every trace is kept, in `off` none. In `sampled` these are kept, and the rest at
a rate; the first that fits is the reason:

    failed       the server's own fault
    culprit      others waited for it: their stall spans link to it
    cancelled    disconnect, delete, deadline, shutdown
    preempted    it lost its blocks on the way
    slow         it missed its class's target, or its TTFT, TPOT or largest token gap is above
                 the 99th percentile of its class's last requests
    parent       the caller records its own part of the trace
    rejected     refused requests, so many a second and no more
    rate         a share of everything else, chosen by the trace id

A caller that says "not sampled" is respected in every mode: nobody would see the rest of that
trace. Two reasons outweigh its word: nobody else records that the server failed, and a stall
span must not link to nothing. Such a root stands alone (`telemetry.traces.spans` says so on it).

Reason and ratio go on the root. The ratio is the share of its kind that was kept, so 1 / ratio
is how many requests the trace stands for: of the rejected ones itself and those passed over
since the last one kept, of the rest one over the rate. Everything here is pure.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from telemetry.facts.reasons import Outcome
from telemetry.numbers.quantiles import quantile_sorted
from telemetry.requests.phases import RequestTimeline

DEFAULT_RATE = 0.01
REJECTED_PER_S = 5
_WINDOW_REQUESTS = 1024
_LEAST_REQUESTS = 100  # before so many there is no 99th percentile
_CLASSES = 16
_RANDOM_BITS = 56  # the part of a trace id that W3C's random flag promises to be random
_SECOND_NS = 1_000_000_000


class TracingMode(StrEnum):
    """How much is traced; may be changed while the service runs."""

    OFF = "off"
    SAMPLED = "sampled"
    FULL = "full"


class Keep(StrEnum):
    """Why a trace is kept: `sampling.reason`."""

    FULL = "full"
    FAILED = "failed"
    CULPRIT = "culprit"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    SLOW = "slow"
    PARENT = "parent"
    REJECTED = "rejected"
    RATE = "rate"


class Leave(StrEnum):
    """Why a trace is not kept."""

    OFF = "off"
    PARENT = "parent_not_sampled"
    REJECTED = "rejected_limit"
    RATE = "rate"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A trace is kept; 1 / `ratio` is how many requests it stands for."""

    reason: Keep
    ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """What an operator sets: a mode, and the share of unremarkable requests in `sampled`."""

    mode: TracingMode = TracingMode.FULL
    rate: float = DEFAULT_RATE

    def __post_init__(self) -> None:
        """Raise ValueError for a rate that is no share."""
        if not 0 <= self.rate <= 1:
            raise ValueError(f"a trace rate is a share from 0 to 1, not {self.rate:g}")


class TailSampler:
    """Decides on one finished request after another; one thread decides.

    `policy` may be replaced at any moment, by any thread. `is_culprit(request_id)` says whether
    others are known to have waited for a request, None where nobody keeps that account;
    `missed_target(timeline)` whether a request broke a target of its class.
    """

    def __init__(
        self,
        policy: SamplingPolicy | None = None,
        is_culprit: Callable[[str], bool] | None = None,
        missed_target: Callable[[RequestTimeline], bool] = lambda timeline: False,
    ) -> None:
        self.policy = policy or SamplingPolicy()
        self._is_culprit = is_culprit
        self._missed_target = missed_target
        self._tails: dict[str, _Tails] = {}
        self._rejected = _Allowance(REJECTED_PER_S)

    def decide(self, timeline: RequestTimeline) -> Verdict | Leave:
        """Keep it, and why; or why not."""
        policy = self.policy
        if policy.mode is TracingMode.OFF:
            return Leave.OFF
        if timeline.accepted.trace_sampled is False:
            return self._against_the_caller(timeline)
        if policy.mode is TracingMode.FULL:
            return Verdict(Keep.FULL)
        reason = self._remarkable(timeline)
        if reason is not None:
            return Verdict(reason)
        if timeline.outcome is Outcome.REJECTED:
            ratio = self._rejected.take(timeline.ended.at_ns)
            return Leave.REJECTED if ratio is None else Verdict(Keep.REJECTED, ratio)
        if chosen(timeline.accepted.trace_id, policy.rate):
            return Verdict(Keep.RATE, policy.rate)
        return Leave.RATE

    def may_turn_out_culprit(self, leave: Leave) -> bool:
        """Whether waiting could change the verdict: a victim's gap ends after its culprit may
        have. A refused request has never been in a step."""
        return self._is_culprit is not None and leave in (Leave.RATE, Leave.PARENT)

    def reconsider(self, timeline: RequestTimeline, leave: Leave) -> Verdict | Leave:
        """The last word on a request that was left, some time later."""
        if self._is_culprit is not None and self._is_culprit(timeline.accepted.request_id):
            return Verdict(Keep.CULPRIT)
        return leave

    def _against_the_caller(self, timeline: RequestTimeline) -> Verdict | Leave:
        if timeline.outcome is Outcome.FAILED:
            return Verdict(Keep.FAILED)
        return self.reconsider(timeline, Leave.PARENT)

    def _remarkable(self, timeline: RequestTimeline) -> Keep | None:
        """The first reason to keep a trace whatever the rate is."""
        slow = self._is_slow(timeline)  # first, because it must see every finished request
        if timeline.outcome is Outcome.FAILED:
            return Keep.FAILED
        if self._is_culprit is not None and self._is_culprit(timeline.accepted.request_id):
            return Keep.CULPRIT
        if timeline.outcome is Outcome.CANCELLED:
            return Keep.CANCELLED
        if any(sequence.preempted for sequence in timeline.sequences):
            return Keep.PREEMPTED
        if slow:
            return Keep.SLOW
        return Keep.PARENT if timeline.accepted.trace_sampled else None

    def _is_slow(self, timeline: RequestTimeline) -> bool:
        if timeline.outcome is not Outcome.FINISHED:
            return False
        name = timeline.accepted.slo_class
        if name not in self._tails and len(self._tails) >= _CLASSES:
            name = "other"
        tails = self._tails.get(name)
        if tails is None:
            tails = self._tails[name] = _Tails()
        in_tail = tails.take(timeline)
        return in_tail or self._missed_target(timeline)


def chosen(trace_id: str, rate: float) -> bool:
    """Whether a trace is in the share `rate` of all: every server decides alike, and what a
    small share holds a larger one holds too. The rule is OpenTelemetry's consistent sampling:
    the last 56 bits of the id are at least the threshold."""
    threshold = (1 << _RANDOM_BITS) - round(rate * (1 << _RANDOM_BITS))
    return int(trace_id[-_RANDOM_BITS // 4 :], 16) >= threshold


def largest_gap_ns(timeline: RequestTimeline) -> int | None:
    """The longest wait between two tokens of a sequence; None when there were no two."""
    gaps = [
        max(map(operator.sub, sequence.token_ns[1:], sequence.token_ns))
        for sequence in timeline.sequences
        if len(sequence.token_ns) > 1
    ]
    return max(gaps, default=None)


class _Tails:
    """The recent values of one class's three latencies. E2E is none of them: it mostly says
    how long the answer was."""

    def __init__(self) -> None:
        self._ttft, self._tpot, self._gap = _Recent(), _Recent(), _Recent()

    def take(self, timeline: RequestTimeline) -> bool:
        """Whether any of them is in its tail; all are remembered."""
        return any(
            [
                self._ttft.take(timeline.ttft_ns),
                self._tpot.take(timeline.tpot_ns),
                self._gap.take(largest_gap_ns(timeline)),
            ]
        )


class _Recent:
    """The last values, in order of age and in order of size."""

    def __init__(self) -> None:
        self._by_age: deque[int] = deque()
        self._by_size: list[int] = []

    def take(self, value_ns: int | None) -> bool:
        """Whether the value is above the 99th percentile of those before it."""
        if value_ns is None:
            return False
        ordered = self._by_size
        count = len(ordered)
        high_ns = quantile_sorted(ordered, 0.99) if count >= _LEAST_REQUESTS else None
        is_tail = high_ns is not None and value_ns > high_ns
        if count >= _WINDOW_REQUESTS:
            del ordered[bisect_left(ordered, self._by_age.popleft())]
        self._by_age.append(value_ns)
        insort(ordered, value_ns)
        return is_tail


class _Allowance:
    """So many a second. What is passed over is remembered until the next that is not."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._second = -1
        self._taken = 0
        self._passed_over = 0

    def take(self, at_ns: int) -> float | None:
        """The ratio of one that is taken; None for one too many."""
        second = at_ns // _SECOND_NS
        if second > self._second:
            self._second, self._taken = second, 0
        if self._taken >= self._per_s:
            self._passed_over += 1
            return None
        self._taken += 1
        ratio = 1 / (1 + self._passed_over)
        self._passed_over = 0
        return ratio


class KeptTraces:
    """The ids of the last traces that were kept: what an exemplar may point to. Bounded;
    any thread may ask."""

    def __init__(self, capacity: int = 8_192) -> None:
        self._capacity = capacity
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, trace_id: str) -> bool:
        return trace_id in self._ids

    def add(self, trace_id: str) -> None:
        self._ids[trace_id] = None
        if len(self._ids) > self._capacity:
            self._ids.popitem(last=False)

    def discard(self, trace_id: str) -> None:
        """It got lost on the way."""
        self._ids.pop(trace_id, None)
