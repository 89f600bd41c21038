"""What clients got, and whether the autopilot made it better or worse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt

import msgspec

from benchmarks.autopilot.running import Decided, Seen
from benchmarks.promised import Slo
from lab.drills.client import Sent
from telemetry.numbers.quantiles import quantile

NEAR = 0.05  # of the best by hand
WITHIN_S = 60.0
MOST_REVERSALS = 2
AROUND_S = 60.0  # before and after a change, when its harm is judged
NOISE_SD = 3.0
OBJECTIVE = 0.95


class Got(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests that were due in some seconds got."""

    requests: int
    good: int
    good_per_s: float
    ttft_p95_ms: float | None
    gap_p99_ms: float | None

    @property
    def share(self) -> float:
        return self.good / self.requests if self.requests else 0.0


def due_in(seen: Seen, begin_s: float, end_s: float) -> list[Sent]:
    """Without a culprit's requests."""
    return due_between(seen.log, seen.begin_ns, begin_s, end_s)


def due_between(log: Sequence[Sent], begin_ns: int, begin_s: float, end_s: float) -> list[Sent]:
    """The same of any log of traffic that began at `begin_ns`."""
    span = (begin_ns + int(begin_s * 1e9), begin_ns + int(end_s * 1e9))
    return [one for one in log if span[0] <= one.due_ns < span[1] and not one.is_culprit]


def got(log: Sequence[Sent], slo: Slo, seconds: float) -> Got:
    waits_ms = [one.ttft_ns / 1e6 for one in log if one.ttft_ns is not None]
    gaps_ms = [gap / 1e3 for one in log for gap in one.gaps_us]
    good = sum(slo.is_met_by(one) for one in log)
    return Got(
        requests=len(log),
        good=good,
        good_per_s=round(good / seconds, 3),
        ttft_p95_ms=_rounded(quantile(waits_ms, 0.95)),
        gap_p99_ms=_rounded(quantile(gaps_ms, 0.99)),
    )


def promise_of(log: Sequence[Sent], room: float = 1.5) -> Slo | None:
    """What the best setting keeps, with room; None without replies."""
    waits_ms = [one.ttft_ns / 1e6 for one in log if one.is_good and one.ttft_ns is not None]
    gaps_ms = [max(one.gaps_us) / 1e3 for one in log if one.is_good and one.gaps_us]
    wait_ms, gap_ms = quantile(waits_ms, 0.95), quantile(gaps_ms, 0.95)
    if wait_ms is None or gap_ms is None:
        return None
    return Slo(
        ttft_ms=float(round(room * wait_ms)),
        itl_ms=float(round(room * gap_ms)),
        objective=OBJECTIVE,
    )


class DrillResult(msgspec.Struct, frozen=True, kw_only=True):
    """One drill: the requests due after WITHIN_S, under the autopilot and by hand."""

    name: str
    date: str
    slo: Slo
    by_hand: Got
    wrong: Got
    piloted: Got
    decisions: list[Decided]
    limits: dict[str, object]
    search_cpu_s: float
    searches: int

    @property
    def applied_s(self) -> float | None:
        return next((one.at_s for one in self.decisions if one.decision == "applied"), None)

    @property
    def of_best(self) -> float:
        """Goodput as a share of that by hand."""
        best = self.by_hand.good_per_s
        return self.piloted.good_per_s / best if best else 0.0

    @property
    def holds(self) -> bool:
        return self.of_best >= 1 - NEAR

    def line(self) -> str:
        at = "never applied" if self.applied_s is None else f"applied at {self.applied_s:.0f} s"
        return (
            f"{self.name}: {100 * self.of_best:.0f} % of the goodput by hand "
            f"({self.wrong.share:.0%} good at first, then {self.piloted.share:.0%}; by hand "
            f"{self.by_hand.share:.0%}), {at}: {'holds' if self.holds else 'DOES NOT HOLD'}"
        )


class Harm(msgspec.Struct, frozen=True, kw_only=True):
    """A change after which fewer requests were good than before, beyond noise."""

    at_s: float
    before: float
    after: float


class WorkloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One workload of shifting traffic."""

    name: str
    date: str
    slo: Slo
    whole: Got
    decisions: list[Decided]
    harms: list[Harm]
    search_cpu_s: float
    searches: int

    def count(self, *decisions: str) -> int:
        return sum(one.decision in decisions for one in self.decisions)

    @property
    def actions(self) -> int:
        return self.count("applied")

    @property
    def reversals(self) -> int:
        return self.count("rolled_back")

    def line(self) -> str:
        return (
            f"{self.name}: {self.whole.share:.1%} good, {self.actions} actions, "
            f"{self.reversals} reversals, {len(self.harms)} made it worse, "
            f"{self.searches} searches ({self.search_cpu_s:.1f} s of CPU)"
        )


def harms_of(
    decisions: Iterable[Decided], log: Sequence[Sent], begin_ns: int, slo: Slo
) -> list[Harm]:
    """Changes that made it worse: the good share of requests due in the minute after, against that
    of the minute before."""
    found: list[Harm] = []
    for one in decisions:
        if one.decision != "applied":
            continue
        before = due_between(log, begin_ns, one.at_s - AROUND_S, one.at_s)
        after = due_between(log, begin_ns, one.at_s, one.at_s + AROUND_S)
        was, is_now = got(before, slo, AROUND_S), got(after, slo, AROUND_S)
        if was.requests and is_now.requests and is_now.share < was.share - _noise(was, is_now):
            harm = Harm(at_s=one.at_s, before=round(was.share, 4), after=round(is_now.share, 4))
            found.append(harm)
    return found


def _noise(one: Got, other: Got) -> float:
    """Shares that differ by less differ for no reason."""
    share = (one.good + other.good) / (one.requests + other.requests)
    share = min(0.98, max(0.02, share))
    return NOISE_SD * sqrt(share * (1 - share) * (1 / one.requests + 1 / other.requests))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
