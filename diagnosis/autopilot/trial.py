"""One change, from when it is in force until it is known what came of it.

    applied -> the queue from before empties -> measured -> kept, or rolled back

Only requests that were accepted since count. As long as the queue from before the change empties,
those it is for are not counted: they wait behind it. Nor are those that came after one of which it
is not known yet whether it is good: the fast ones end first. Those of other classes count as long
as nearly all are known, as those from before the change. A class that becomes clearly worse ends
the trial at once. Where it had such a queue before, it may become worse by itself: more comes
than is served.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from diagnosis.autopilot.books import Books, Load, Tally
from diagnosis.autopilot.chance import BOUND, evidence, needed
from diagnosis.autopilot.proposal import Proposal, Values
from diagnosis.autopilot.thresholds import (
    CLEARLY_WORSE,
    LEAST_MEASURED,
    LEAST_MEASURED_NS,
    LOAD_LEAST_NS,
    LOAD_LEAST_REQUESTS,
    LOAD_RATIO,
    LOAD_SD,
    MOST_MEASURED_NS,
    SETTLE_MOST_NS,
    SETTLE_SHRINKS,
    SETTLE_STEP_NS,
    TOLERATED,
)
from telemetry.facts.reasons import AutopilotReason as Reason


class Result(NamedTuple):
    """What came of it. `slo_class` is the one that became worse."""

    reason: Reason
    slo_class: str = ""

    @property
    def is_good(self) -> bool:
        return self.reason is Reason.PROMISE_KEPT


@dataclass(slots=True)
class Running:
    """A proposal that is in force, or about to be; `back` are the values that undo it. Times are
    None until they are known. `had_backlog` are the classes with overdue requests when it was put
    in force."""

    number: int
    proposal: Proposal
    back: Values
    load: Load
    applied_ns: int | None = None
    settled_ns: int | None = None
    had_backlog: frozenset[str] = frozenset()
    _queue: tuple[int, dict[str, int]] | None = None

    def applied(self, books: Books, applied_ns: int) -> None:
        """It is in force."""
        self.applied_ns = applied_ns
        overdue = books.overdue(self.proposal.before, applied_ns)
        self.had_backlog = frozenset(name for name, waiting in overdue.items() if waiting)

    def measured(self, books: Books, now_ns: int) -> dict[str, Tally]:
        """The tallies of each class since the change counts for it."""
        if self.applied_ns is None:
            return {}
        found = books.known(self.applied_ns, now_ns)
        settled_ns = now_ns if self.settled_ns is None else self.settled_ns
        found |= {name: Tally() for name in self.proposal.gaining}
        if now_ns - settled_ns < MOST_MEASURED_NS:
            until_ns = books.all_known_until(self.proposal.gaining, settled_ns, now_ns)
            later = books.tallies(settled_ns, until_ns)
        else:
            later = books.known(settled_ns, now_ns)
        found |= {name: later[name] for name in self.proposal.gaining if name in later}
        return {name: one for name, one in found.items() if one.requests}

    def shares(self, books: Books, now_ns: int) -> dict[str, float]:
        return {name: round(t.share, 4) for name, t in self.measured(books, now_ns).items()}

    @property
    def needed(self) -> int | None:
        """About how many requests tell promise from before, of the class for which it is least."""
        before, promised = self.proposal.before, self.proposal.promised
        counts = [needed(promised[one], before[one].share) for one in self.proposal.gaining]
        return min((one for one in counts if one is not None), default=None)

    def judge(self, books: Books, now_ns: int) -> Result | None:
        """What came of the change; None while it is not known."""
        assert self.applied_ns is not None
        self._settle(books, now_ns)
        found = self.measured(books, now_ns)
        for name, tally in found.items():
            if self._is_worse(name, tally):
                return Result(Reason.WORSE, name)
        if self.settled_ns is None:
            return None
        return self._promise(found, now_ns - self.settled_ns)

    def _settle(self, books: Books, now_ns: int) -> None:
        """Wait for the queue of the classes it is for, as long as that of one of them shrinks."""
        assert self.applied_ns is not None
        if self.settled_ns is not None:
            return
        waiting = books.overdue(self.proposal.gaining, now_ns)
        at_ns, before = self._queue or (now_ns, waiting)
        is_over = not any(waiting.values()) or now_ns - self.applied_ns >= SETTLE_MOST_NS
        if self._queue is None or now_ns - at_ns >= SETTLE_STEP_NS:
            self._queue = (now_ns, waiting)
        if now_ns - at_ns >= SETTLE_STEP_NS:
            shrinks = (0 < n <= SETTLE_SHRINKS * before[name] for name, n in waiting.items())
            is_over = is_over or not any(shrinks)
        if is_over:
            self.settled_ns = now_ns

    def _is_worse(self, name: str, tally: Tally) -> bool:
        before = self.proposal.before.get(name)
        if before is None or tally.requests < LEAST_MEASURED:
            return False
        if before.share <= CLEARLY_WORSE:
            return False  # it can hardly be worse
        return evidence(before, tally, -CLEARLY_WORSE, -TOLERATED) >= BOUND

    def _promise(self, found: dict[str, Tally], measured_ns: int) -> Result | None:
        nats, requests = 0.0, 0
        for name in self.proposal.gaining:
            tally = found.get(name, Tally())
            before, promised = self.proposal.before[name], self.proposal.promised[name]
            nats += evidence(before, tally, promised - before.share, 0.0)
            requests += tally.requests
        is_late = measured_ns >= MOST_MEASURED_NS
        if requests < LEAST_MEASURED:
            return Result(Reason.TOO_FEW_REQUESTS) if is_late else None
        if (nats >= BOUND and measured_ns >= LEAST_MEASURED_NS) or (is_late and nats > 0):
            return Result(Reason.PROMISE_KEPT)
        return Result(Reason.PROMISE_MISSED) if nats <= -BOUND or is_late else None


def is_other_load(before: Load, now: Load) -> bool:
    """Whether requests come at another rate, or are of another length, beyond chance."""
    if before.requests == 0 or now.seconds * 1e9 < LOAD_LEAST_NS:
        return False
    ratio = now.requests_per_s / before.requests_per_s
    expected = before.requests_per_s * now.seconds
    spread = sqrt(max(1.0, expected) * (1 + now.seconds / before.seconds))
    is_beyond = abs(now.requests - expected) > LOAD_SD * spread
    if is_beyond and not 1 / LOAD_RATIO < ratio < LOAD_RATIO:
        return True
    if min(before.requests, now.requests) < LOAD_LEAST_REQUESTS or not before.prompt_tokens:
        return False
    lengths = now.prompt_tokens / now.requests * before.requests / before.prompt_tokens
    return not 1 / LOAD_RATIO < lengths < LOAD_RATIO
