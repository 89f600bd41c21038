"""Goodput: which requests met the SLO of their class, how fast the error budget burns, and what a
million tokens cost. `BurnWatch` calls back when a class burns its budget fast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from telemetry.facts.reasons import EndReason, Outcome
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import SloClass, SloPolicy
from telemetry.stats.slo_report import Cost, SloReport, SloStatus, SloWindow, Verdict, burn_of

WINDOWS_S = (60, 300, 3600)
_SLOT_NS = 10_000_000_000
_SLOTS_KEPT = max(WINDOWS_S) * 1_000_000_000 // _SLOT_NS + 1
_GAPS_PER_LATE_ONE = 100  # 99 of 100 gaps must be in time

FAST_BURN = 14.4  # times the pace that lasts the period: the page alert of the SRE workbook
BURN_LEAST_REQUESTS = 10  # with fewer in a window its burn rate is not judged
_BURN_WINDOWS_S = (60, 300)  # the journal holds the last five minutes
_BURN_LARGEST_SHARE = 0.5
_BURN_CHECK_NS = 1_000_000_000


def judge(timeline: RequestTimeline, target: SloClass) -> Verdict:
    """Whether an ended request met `target`, and what it missed.

    A finished request is good when its first token came in time and the 99th percentile of
    its gaps (nearest rank) is within the ITL target: of fewer than 100 gaps, all of them.
    """
    unfinished = judge_unfinished(timeline.ended.reason)
    return _judge_finished(timeline, target) if unfinished is None else unfinished


def judged_by(policy: SloPolicy) -> Callable[[RequestTimeline], dict[str, Any]]:
    """What `/debug/requests/{id}` says of the promise to an ended request."""

    def judged(timeline: RequestTimeline) -> dict[str, Any]:
        target = policy.of(timeline.accepted.slo_class)
        return {
            "slo": {
                "class": target.name,
                "verdict": judge(timeline, target).value,
                "ttft_target_ns": target.ttft_ns,
                "itl_target_ns": target.itl_ns,
            }
        }

    return judged


def judge_unfinished(reason: EndReason) -> Verdict | None:
    """The verdict on a request that ended for this reason; None where it finished, so that its
    latencies decide."""
    match reason.outcome:
        case Outcome.FINISHED:
            return None
        case Outcome.FAILED:
            return Verdict.FAILED
        case Outcome.REJECTED:
            return _judge_rejected(reason)
        case Outcome.CANCELLED:
            return _judge_cancelled(reason)
        case Outcome.LOST:
            return Verdict.UNMEASURED


def allowed_late(gaps: int) -> int:
    """How many of so many gaps between tokens may be longer than the ITL target."""
    return gaps // _GAPS_PER_LATE_ONE


def _judge_finished(timeline: RequestTimeline, target: SloClass) -> Verdict:
    ttft_ns = timeline.ttft_ns
    if ttft_ns is None or timeline.is_incomplete:
        return Verdict.UNMEASURED
    gaps = late = 0
    for sequence in timeline.sequences:
        gaps += max(0, len(sequence.token_ns) - 1)
        late += sum(b - a > target.itl_ns for a, b in pairwise(sequence.token_ns))
    return judge_latencies(ttft_ns, gaps, late, target)


def judge_latencies(ttft_ns: int, gaps: int, late: int, target: SloClass) -> Verdict:
    """The verdict on a finished request, of whose `gaps` between tokens `late` were longer than the
    target."""
    if ttft_ns > target.ttft_ns:
        return Verdict.LATE_FIRST_TOKEN
    return Verdict.SLOW_TOKENS if late > allowed_late(gaps) else Verdict.GOOD


def _judge_rejected(reason: EndReason) -> Verdict:
    """A request that no server could have served is not a miss."""
    wrong = (
        EndReason.INVALID,
        EndReason.INVALID_TOKEN,
        EndReason.GRAMMAR_INVALID,
        EndReason.KV_TOO_SMALL,
    )
    return Verdict.INVALID if reason in wrong else Verdict.REJECTED


def _judge_cancelled(reason: EndReason) -> Verdict:
    if reason in (EndReason.DEADLINE, EndReason.TIMEOUT):
        return Verdict.EXPIRED
    return Verdict.SHUTDOWN if reason is EndReason.SHUTDOWN else Verdict.CLIENT_CANCELLED


def _begin_ns(now_ns: int, window_s: int) -> int:
    """The begin of the slot that contains now minus `window_s`."""
    return (now_ns - window_s * 1_000_000_000) // _SLOT_NS * _SLOT_NS


@dataclass(slots=True)
class _Slot:
    """Ten seconds of one class."""

    attempted: int = 0
    good: int = 0
    tokens: int = 0
    good_tokens: int = 0
    all_tokens: int = 0


@dataclass(slots=True)
class _Class:
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    tokens: int = 0
    good_tokens: int = 0
    newest: int = 0
    slots: dict[int, _Slot] = field(default_factory=dict)

    def slot(self, at_ns: int) -> _Slot:
        number = at_ns // _SLOT_NS
        found = self.slots.get(number)
        if found is None:
            found = self.slots[number] = _Slot()
            self.newest = max(self.newest, number)
            for old in [n for n in self.slots if n < self.newest - _SLOTS_KEPT]:
                del self.slots[old]
        return found

    def sum(self, now_ns: int, window_s: int) -> _Slot:
        """The sum over the last `window_s` seconds and at most ten more."""
        newest, oldest = now_ns // _SLOT_NS, _begin_ns(now_ns, window_s) // _SLOT_NS
        whole = _Slot()
        for number, slot in self.slots.items():
            if oldest <= number <= newest:
                whole.attempted += slot.attempted
                whole.good += slot.good
                whole.tokens += slot.tokens
                whole.good_tokens += slot.good_tokens
                whole.all_tokens += slot.all_tokens
        return whole


class SloFold:
    """A listener of the phase fold. `started_ns` is when the service started, which is when its
    cost begins."""

    def __init__(
        self, policy: SloPolicy, started_ns: int, price_per_hour: float | None = None
    ) -> None:
        self._policy = policy
        self._started_ns = started_ns
        self._price_per_hour = price_per_hour
        self._unknown = 0
        self._classes = {name: _Class() for name in policy.classes}

    def on_timeline(self, timeline: RequestTimeline) -> None:
        stated = timeline.accepted.slo_class
        self._unknown += self._policy.is_unknown(stated)
        target = self._policy.of(stated)
        verdict = judge(timeline, target)
        found, tokens = self._classes[target.name], timeline.ended.output_tokens
        found.verdicts[verdict] += 1
        slot = found.slot(timeline.ended.at_ns)
        slot.all_tokens += tokens
        if verdict is Verdict.GOOD:
            slot.good += 1
            slot.good_tokens += tokens
            found.good_tokens += tokens
        if verdict is Verdict.GOOD or verdict.is_miss:
            slot.attempted += 1
            slot.tokens += tokens
            found.tokens += tokens

    def report(self, now_ns: int) -> SloReport:
        return SloReport(
            default_class=self._policy.default,
            unknown_class_requests=self._unknown,
            price_per_hour=self._price_per_hour,
            classes=tuple(self._status(name, now_ns) for name in self._policy.classes),
            cost=self._cost(now_ns),
        )

    def _covered_s(self, now_ns: int, window_s: int) -> float:
        return max(0, now_ns - max(self._started_ns, _begin_ns(now_ns, window_s))) / 1e9

    def _status(self, name: str, now_ns: int) -> SloStatus:
        target, found = self._policy.classes[name], self._classes[name]
        return SloStatus(
            name=name,
            ttft_target_ns=target.ttft_ns,
            itl_target_ns=target.itl_ns,
            objective=target.objective,
            requests={verdict.value: found.verdicts[verdict] for verdict in Verdict},
            tokens=found.tokens,
            good_tokens=found.good_tokens,
            windows=tuple(
                _window(found.sum(now_ns, w), w, self._covered_s(now_ns, w), target.objective)
                for w in WINDOWS_S
            ),
        )

    def _cost(self, now_ns: int) -> tuple[Cost, ...]:
        if self._price_per_hour is None:
            return ()
        found: list[Cost] = []
        for window_s in WINDOWS_S:
            sums = [one.sum(now_ns, window_s) for one in self._classes.values()]
            paid = self._price_per_hour * self._covered_s(now_ns, window_s) / 3600
            tokens = sum(one.all_tokens for one in sums)
            good_tokens = sum(one.good_tokens for one in sums)
            cost = Cost(
                window_s=window_s,
                tokens=tokens,
                good_tokens=good_tokens,
                per_million_tokens=paid / tokens * 1e6 if tokens else None,
                per_million_good_tokens=paid / good_tokens * 1e6 if good_tokens else None,
            )
            found.append(cost)
        return tuple(found)


def _window(whole: _Slot, window_s: int, covered_s: float, objective: float) -> SloWindow:
    return SloWindow(
        window_s=window_s,
        covered_s=covered_s,
        attempted=whole.attempted,
        good=whole.good,
        tokens=whole.tokens,
        good_tokens=whole.good_tokens,
        good_requests_per_s=whole.good / covered_s if covered_s else 0.0,
        good_tokens_per_s=whole.good_tokens / covered_s if covered_s else 0.0,
        burn=burn_of(whole.attempted, whole.good, objective),
    )


class BurnWatch:
    """A listener of the phase fold, after the SLO fold: calls `on_burn` when a class burns fast in
    the last minute and in the last five. It is called once, until the last minute is back at the
    pace of the budget."""

    def __init__(self, slo: SloFold, on_burn: Callable[[], None]) -> None:
        self._slo = slo
        self._on_burn = on_burn
        self._burning: set[str] = set()
        self._checked_ns: int | None = None

    def on_timeline(self, timeline: RequestTimeline) -> None:
        now_ns = timeline.ended.at_ns
        if self._checked_ns is not None and now_ns - self._checked_ns < _BURN_CHECK_NS:
            return
        self._checked_ns = now_ns
        for status in self._slo.report(now_ns).classes:
            self._check(status)

    def _check(self, status: SloStatus) -> None:
        windows = {window.window_s: window for window in status.windows}
        short, long = (windows[window_s] for window_s in _BURN_WINDOWS_S)
        if status.name in self._burning:
            if (short.burn or 0.0) <= 1.0:
                self._burning.discard(status.name)
        elif _is_fast(short, status.objective) and _is_fast(long, status.objective):
            self._burning.add(status.name)
            self._on_burn()


def _is_fast(window: SloWindow, objective: float) -> bool:
    """Whether a window has enough requests and burns at FAST_BURN; for a class with a low
    objective, whether half of its requests missed."""
    least_burn = min(FAST_BURN, _BURN_LARGEST_SHARE / (1 - objective))
    if window.attempted < BURN_LEAST_REQUESTS or window.burn is None:
        return False
    return window.burn >= least_burn
