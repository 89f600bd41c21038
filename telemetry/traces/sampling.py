"""Tail sampling: which traces are kept, decided on the ended request before its spans are built.

In mode `full` every trace is kept, in `off` none. In `sampled` these are kept, and the rest at
a rate; the first that fits is the reason:

    failed       the server's own fault
    culprit      it made tokens of others late: their stall spans link to it
    cancelled    disconnect, delete, deadline, shutdown
    preempted    it was preempted
    slow         it missed its class's target, or its TTFT, TPOT or largest token gap is above
                 the 99th percentile of its class's last requests
    parent       the caller samples its own part of the trace
    rejected     a refused request, up to REJECTED_PER_S
    rate         a share of everything else, passes_rate by the trace id

A caller's "not sampled" is respected in every mode, because the rest of that trace is missing.
There are two exceptions: a failure of the server is recorded nowhere else, and the stall span of
another request may link to a culprit. Such a root has no parent span (`telemetry.traces.spans`).

Reason and ratio are attributes of the root. 1 / ratio is the number of requests that the trace
stands for: of rejected requests, itself and those not kept since the last one; of the rest, one
over the rate. Everything here is pure.
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


class SampledReason(StrEnum):
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


class NotSampledReason(StrEnum):
    """Why a trace is not kept."""

    OFF = "off"
    PARENT = "parent_not_sampled"
    REJECTED = "rejected_limit"
    RATE = "rate"


@dataclass(frozen=True, slots=True)
class Sampled:
    """The trace is kept; it stands for 1 / `ratio` requests."""

    reason: SampledReason
    ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """Set by the operator: the mode, and the share of other requests that `sampled` keeps."""

    mode: TracingMode = TracingMode.FULL
    rate: float = DEFAULT_RATE

    def __post_init__(self) -> None:
        """Raises ValueError for a rate outside [0, 1]."""
        if not 0 <= self.rate <= 1:
            raise ValueError(f"a trace rate is a share from 0 to 1, not {self.rate:g}")


class TailSampler:
    """Decides on ended requests; one thread calls it.

    `policy` may be replaced at any moment, by any thread. `is_culprit(request_id)` says whether a
    request made tokens of others late (None: there is no ledger); `missed_target(timeline)`
    whether it missed a target of its SLO class.
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
        self._rejected = _RateLimit(REJECTED_PER_S)

    def decide(self, timeline: RequestTimeline) -> Sampled | NotSampledReason:
        """Why the trace is kept, or why it is not."""
        policy = self.policy
        if policy.mode is TracingMode.OFF:
            return NotSampledReason.OFF
        if timeline.accepted.trace_sampled is False:
            return self._parent_not_sampled(timeline)
        if policy.mode is TracingMode.FULL:
            return Sampled(SampledReason.FULL)
        reason = self._always_sampled(timeline)
        if reason is not None:
            return Sampled(reason)
        if timeline.outcome is Outcome.REJECTED:
            ratio = self._rejected.take(timeline.ended.at_ns)
            return (
                NotSampledReason.REJECTED
                if ratio is None
                else Sampled(SampledReason.REJECTED, ratio)
            )
        if passes_rate(timeline.accepted.trace_id, policy.rate):
            return Sampled(SampledReason.RATE, policy.rate)
        return NotSampledReason.RATE

    def may_become_culprit(self, reason: NotSampledReason) -> bool:
        """Whether a later decision may differ: the late token may come after its culprit has ended.
        A rejected request cannot be a culprit, because it was never in a step."""
        return self._is_culprit is not None and reason in (
            NotSampledReason.RATE,
            NotSampledReason.PARENT,
        )

    def reconsider(
        self, timeline: RequestTimeline, reason: NotSampledReason
    ) -> Sampled | NotSampledReason:
        """The final decision on a request that was not sampled, some time later."""
        if self._is_culprit is not None and self._is_culprit(timeline.accepted.request_id):
            return Sampled(SampledReason.CULPRIT)
        return reason

    def _parent_not_sampled(self, timeline: RequestTimeline) -> Sampled | NotSampledReason:
        if timeline.outcome is Outcome.FAILED:
            return Sampled(SampledReason.FAILED)
        return self.reconsider(timeline, NotSampledReason.PARENT)

    def _always_sampled(self, timeline: RequestTimeline) -> SampledReason | None:
        """The first reason to keep a trace at any rate; None if there is none."""
        slow = self._is_slow(timeline)  # first, because it must see every finished request
        if timeline.outcome is Outcome.FAILED:
            return SampledReason.FAILED
        if self._is_culprit is not None and self._is_culprit(timeline.accepted.request_id):
            return SampledReason.CULPRIT
        if timeline.outcome is Outcome.CANCELLED:
            return SampledReason.CANCELLED
        if any(sequence.preempted for sequence in timeline.sequences):
            return SampledReason.PREEMPTED
        if slow:
            return SampledReason.SLOW
        return SampledReason.PARENT if timeline.accepted.trace_sampled else None

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


def passes_rate(trace_id: str, rate: float) -> bool:
    """Whether a trace is in the share `rate` of all. Every server decides alike, and a larger share
    contains each smaller one. This is OpenTelemetry's consistent probability sampling: the last 56
    bits of the trace id are at least the threshold."""
    threshold = (1 << _RANDOM_BITS) - round(rate * (1 << _RANDOM_BITS))
    return int(trace_id[-_RANDOM_BITS // 4 :], 16) >= threshold


def largest_gap_ns(timeline: RequestTimeline) -> int | None:
    """The longest gap between two tokens of a sequence; None without two tokens."""
    gaps = [
        max(map(operator.sub, sequence.token_ns[1:], sequence.token_ns))
        for sequence in timeline.sequences
        if len(sequence.token_ns) > 1
    ]
    return max(gaps, default=None)


class _Tails:
    """Recent TTFT, TPOT and largest gaps of one class. Not E2E: it mostly depends on the length of
    the answer."""

    def __init__(self) -> None:
        self._ttft, self._tpot, self._gap = _Recent(), _Recent(), _Recent()

    def take(self, timeline: RequestTimeline) -> bool:
        """Whether any of the three is in its tail; all are added."""
        return any(
            [
                self._ttft.take(timeline.ttft_ns),
                self._tpot.take(timeline.tpot_ns),
                self._gap.take(largest_gap_ns(timeline)),
            ]
        )


class _Recent:
    """The last _WINDOW_REQUESTS values, in order of age and in order of size."""

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


class _RateLimit:
    """At most `per_s` a second. Counts those refused since the last one taken."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._second = -1
        self._taken = 0
        self._refused = 0

    def take(self, at_ns: int) -> float | None:
        """The sampling ratio if one may be taken; None if the limit is reached."""
        second = at_ns // _SECOND_NS
        if second > self._second:
            self._second, self._taken = second, 0
        if self._taken >= self._per_s:
            self._refused += 1
            return None
        self._taken += 1
        ratio = 1 / (1 + self._refused)
        self._refused = 0
        return ratio


class KeptTraces:
    """The ids of the last kept traces: those that an exemplar may point to. Bounded; any thread may
    read."""

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
        """The trace was not delivered."""
        self._ids.pop(trace_id, None)
