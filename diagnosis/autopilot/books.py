"""What the autopilot knows from facts: which requests met their SLO, the load, the limits in force,
and what others changed.

A request counts as a miss as soon as it has waited for its first step beyond its TTFT target, and
else when it has ended, as the SLO report judges it. Those that were live when facts were lost count
neither way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from diagnosis.autopilot.chance import upper_share
from diagnosis.autopilot.thresholds import BEFORE_WINDOW_NS, LEAST_KNOWN, MISSED_SD, UNJUDGED
from telemetry.facts.engine_records import (
    EngineStarted,
    LimitsSet,
    RecordingSet,
    SequenceAdmitted,
)
from telemetry.facts.limits import LimitValue, limits_at_start, named
from telemetry.facts.records import (
    EngineDied,
    Fact,
    FactsLost,
    RequestAccepted,
    RequestEnded,
    RequestsListed,
    RequestTokenized,
    SequenceSubmitted,
)
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.slo_policy import SloPolicy
from telemetry.stats.slo import judge
from telemetry.stats.slo_report import Verdict

BY = "autopilot"
CONFIG = "config"
_RESTART = "restart"  # the owner of the limits, when it puts them in force in a new engine
_KEPT_NS = 5 * BEFORE_WINDOW_NS
_MOST_KEPT = 20_000
_READ = (
    RequestAccepted,
    RequestTokenized,
    SequenceSubmitted,
    SequenceAdmitted,
    RequestEnded,
    RequestsListed,
    EngineStarted,
    EngineDied,
    LimitsSet,
    RecordingSet,
    FactsLost,
)
_COUNT_NS = 1_000_000_000


class Cause(StrEnum):
    """What others changed."""

    RESTART = "restart"
    OPERATOR = "operator"
    CONFIG = "config"  # a tool that brings out a configuration: no hand that wants to be obeyed


class Change(NamedTuple):
    """Something that the autopilot did not do; `names` are limits."""

    at_ns: int
    cause: Cause
    names: tuple[str, ...] = ()


class Tally(NamedTuple):
    """Requests that count, and those of them that met their SLO."""

    good: int = 0
    requests: int = 0

    @property
    def share(self) -> float:
        return self.good / self.requests if self.requests else 0.0


class Load(NamedTuple):
    """What was asked for in some seconds."""

    seconds: float
    requests: int
    prompt_tokens: int

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds if self.seconds > 0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.prompt_tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class _Live:
    accepted_ns: int
    slo_class: str
    is_admitted: bool = False
    is_late: bool = False


class _Judged(NamedTuple):
    accepted_ns: int
    slo_class: str
    is_good: bool


class Books:
    """A fold, and a listener to timelines."""

    def __init__(self, policy: SloPolicy) -> None:
        self.in_force: dict[str, LimitValue] = {}
        self.changes: list[Change] = []
        self.set_by_us_ns: int | None = None
        self._policy = policy
        self._begun_ns: int | None = None
        self._live: dict[str, _Live] = {}
        self._owners: dict[int, str] = {}
        self._judged: deque[_Judged] = deque(maxlen=_MOST_KEPT)
        self._arrived: deque[tuple[int, int]] = deque(maxlen=_MOST_KEPT)
        self._window: dict[str, Tally] = {}
        self._window_ns = 0
        self._has_lost = False

    def on_fact(self, fact: Fact) -> None:
        """Most facts are steps, which say nothing here."""
        if isinstance(fact, _READ):
            self._take(fact)

    def _take(self, fact: Fact) -> None:
        match fact:
            case RequestAccepted():
                self._begun_ns = fact.at_ns if self._begun_ns is None else self._begun_ns
                name = self._policy.of(fact.slo_class).name
                if len(self._live) < _MOST_KEPT:
                    self._live[fact.request_id] = _Live(fact.at_ns, name)
            case RequestTokenized():
                live = self._live.get(fact.request_id)
                if live is not None:
                    self._arrived.append((live.accepted_ns, fact.prompt_tokens))
            case SequenceSubmitted() if fact.request_id in self._live:
                self._owners[fact.seq_id] = fact.request_id
            case SequenceAdmitted():
                live = self._live.get(self._owners.pop(fact.seq_id, ""))
                if live is not None:
                    live.is_admitted = True
            case RequestEnded() if fact.request_id in self._live:
                self._live[fact.request_id].is_admitted = True  # it waits no more
            case RequestsListed():
                listed = frozenset(fact.request_ids)
                for request_id, live in list(self._live.items()):
                    if live.accepted_ns < fact.at_ns and request_id not in listed:
                        live.is_admitted = True
            case EngineStarted() | EngineDied() | LimitsSet():
                self._of_engine(fact)
            case RecordingSet():
                self._lose()
            case FactsLost() if fact.source.is_of_requests:
                self._lose()
            case _:
                pass

    def _lose(self) -> None:
        """Facts are missing: an admission that was lost looks like a wait that goes on. The load is
        watched anew."""
        self._live.clear()
        self._owners.clear()
        self._begun_ns = None
        self._has_lost = True

    def on_timeline(self, timeline: RequestTimeline) -> None:
        """A request has ended."""
        accepted = timeline.accepted
        verdict = judge(timeline, self._policy.of(accepted.slo_class))
        is_good = True if verdict is Verdict.GOOD else False if verdict.is_miss else None
        self.ended(accepted.request_id, is_good)

    def ended(self, request_id: str, is_good: bool | None) -> None:
        """None: it counts neither way. One that was late while it waited stays so."""
        live = self._live.pop(request_id, None)
        if live is not None and is_good is not None and not live.is_late:
            self._judged.append(_Judged(live.accepted_ns, live.slo_class, is_good))

    def tick(self, now_ns: int) -> None:
        """Note who has waited for too long by now, and forget what is old."""
        if self._has_lost:  # a loss is told as of its begin: what came since may have lost facts
            self._lose()
            self._has_lost = False
        for live in self._live.values():
            target = self._policy.of(live.slo_class)
            is_late = now_ns - live.accepted_ns > target.ttft_ns
            if is_late and not live.is_admitted and not live.is_late:
                live.is_late = True
                self._judged.append(_Judged(live.accepted_ns, live.slo_class, False))
        edge_ns = now_ns - _KEPT_NS
        while self._judged and self._judged[0].accepted_ns < edge_ns:
            self._judged.popleft()
        while self._arrived and self._arrived[0][0] < edge_ns:
            self._arrived.popleft()
        for request_id, live in list(self._live.items()):
            if live.accepted_ns >= edge_ns:
                break  # they are in the order of their arrival
            if live.is_admitted:
                del self._live[request_id]  # its end was lost, or it counts no more
        if len(self._owners) > 2 * _MOST_KEPT:
            self._owners.clear()

    # What is asked

    def tallies(self, begin_ns: int, end_ns: int) -> dict[str, Tally]:
        """Good and judged requests by class, of those accepted in [begin, end)."""
        good: Counter[str] = Counter()
        count: Counter[str] = Counter()
        for one in self._judged:
            if begin_ns <= one.accepted_ns < end_ns:
                count[one.slo_class] += 1
                good[one.slo_class] += one.is_good
        return {name: Tally(good[name], number) for name, number in count.items()}

    def known(self, begin_ns: int, end_ns: int) -> dict[str, Tally]:
        """Tallies like `tallies`, for each class as long as nearly all of its requests are judged.
        A late first token is known early and a good request when it has ended: shares of all that
        are judged are too bad where answers are long."""
        judged: defaultdict[str, list[tuple[int, bool]]] = defaultdict(list)
        running: defaultdict[str, list[int]] = defaultdict(list)
        for one in self._judged:
            if begin_ns <= one.accepted_ns < end_ns:
                judged[one.slo_class].append((one.accepted_ns, one.is_good))
        for live in self._live.values():
            if begin_ns <= live.accepted_ns < end_ns and not live.is_late:
                running[live.slo_class].append(live.accepted_ns)
        found: dict[str, Tally] = {}
        for name, ours in judged.items():
            ours.sort()
            times = [at_ns for at_ns, _ in ours]
            number = bisect_left(times, _known_until(times, sorted(running[name]), end_ns))
            if number:
                found[name] = Tally(sum(is_good for _, is_good in ours[:number]), number)
        return found

    def all_known_until(self, names: Collection[str], begin_ns: int, end_ns: int) -> int:
        """Until when, in ns, it is known of all requests of these classes that were accepted since
        `begin_ns` whether they are good. The first to end are the fast ones: shares of those that
        have ended are too good."""
        for live in self._live.values():  # in the order of their arrival
            if live.accepted_ns >= end_ns:
                break
            if live.accepted_ns >= begin_ns and not live.is_late and live.slo_class in names:
                return live.accepted_ns
        return end_ns

    def load(self, begin_ns: int, end_ns: int) -> Load:
        """The load of [begin, end), as far as it was watched."""
        begin_ns = max(begin_ns, end_ns if self._begun_ns is None else self._begun_ns)
        if len(self._arrived) == _MOST_KEPT:  # older ones are gone
            begin_ns = min(end_ns, max(begin_ns, self._arrived[0][0]))
        tokens = [n for at_ns, n in self._arrived if begin_ns <= at_ns < end_ns]
        return Load((end_ns - begin_ns) / 1e9, len(tokens), sum(tokens))

    def missed_classes(self, now_ns: int) -> list[str]:
        """The classes that miss their objective beyond chance in the last window."""
        found = []
        for name, one in self._last_window(now_ns).items():
            objective = self._policy.of(name).objective
            is_known = one.requests >= LEAST_KNOWN and one.good < one.requests - 1
            if is_known and upper_share(one.good, one.requests, MISSED_SD) < objective:
                found.append(name)
        return sorted(found)

    def is_known(self, now_ns: int) -> bool:
        """Whether enough is known of a class in the last window to propose a change for it."""
        found = self.known(now_ns - BEFORE_WINDOW_NS, now_ns)
        return any(one.requests >= LEAST_KNOWN for one in found.values())

    def _last_window(self, now_ns: int) -> dict[str, Tally]:
        """Counted at most once a second."""
        if now_ns - self._window_ns >= _COUNT_NS or not self._window:
            self._window_ns = now_ns
            self._window = self.tallies(now_ns - BEFORE_WINDOW_NS, now_ns)
        return self._window

    def overdue(self, names: Collection[str], now_ns: int) -> dict[str, int]:
        """How many requests of each class wait, and have waited for more than half of their TTFT
        target."""
        found = dict.fromkeys(names, 0)
        for live in self._live.values():
            if live.slo_class in found and not live.is_admitted:
                target_ns = self._policy.of(live.slo_class).ttft_ns
                found[live.slo_class] += 2 * (now_ns - live.accepted_ns) > target_ns
        return found

    def take_changes(self) -> list[Change]:
        """What others changed since this was last asked."""
        found, self.changes = self.changes, []
        return found

    def _of_engine(self, fact: EngineStarted | EngineDied | LimitsSet) -> None:
        match fact:
            case EngineStarted():
                self.in_force = named(limits_at_start(fact))
            case EngineDied():
                self.in_force = {}
                self.changes.append(Change(fact.at_ns, Cause.RESTART))
            case LimitsSet():
                self.in_force = named(fact.limits)
                if fact.by == BY:
                    self.set_by_us_ns = fact.at_ns
                elif fact.by != _RESTART:
                    cause = Cause.CONFIG if fact.by == CONFIG else Cause.OPERATOR
                    self.changes.append(Change(fact.at_ns, cause, fact.changed))


def _known_until(judged_ns: Sequence[int], running_ns: Sequence[int], end_ns: int) -> int:
    """The last time before which at most UNJUDGED of the requests still run, and of those that came
    in any span up to it. Both are times of acceptance before `end_ns`, in their order.

    Each judged request counts UNJUDGED for a later time, each that runs the rest of one against it:
    the sum is the largest where the ones that run begin to be too many.
    """
    best, until_ns = 0.0, running_ns[0] if running_ns else end_ns
    for number, at_ns in enumerate([*running_ns, end_ns]):
        judged = bisect_left(judged_ns, at_ns)
        score = UNJUDGED * judged - (1 - UNJUDGED) * number
        if score >= best:
            best, until_ns = score, at_ns
    return until_ns
