"""What is kept of one SLO class: its attainment, and the missed requests of the short window."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from diagnosis.promises.attainment import Attainment
from diagnosis.promises.requests import LiveRequest, Missed
from diagnosis.promises.thresholds import SHORT_NS, UTILISATION_KEPT
from telemetry.numbers.quantiles import quantile
from telemetry.requests.slo_policy import SloClass

_KEPT = 2048  # requests, and gaps by step, of the short window


class MissedRequest(NamedTuple):
    """A missed request, when that was known."""

    at_ns: int
    what: Missed
    request_id: str
    trace_id: str
    computed_tokens: int


_SHOWN_QUANTILE = 0.95


class ClassBook:
    """Requests of one class. Times are filed by when they became known."""

    def __init__(self, target: SloClass, begin_ns: int) -> None:
        self.target = target
        self.attainment = Attainment(target.objective, begin_ns)
        self.waiting: deque[LiveRequest] = deque()  # in the order in which they are due
        self.overdue: dict[str, LiveRequest] = {}
        self.misses: deque[MissedRequest] = deque(maxlen=_KEPT)
        self._first_tokens: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        self._worst_gaps: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        self._parts: deque[tuple[int, Counter[str]]] = deque(maxlen=_KEPT)
        self._utilised: float | None = None
        self.excess_ns = 0  # requests' time beyond the targets since the onset

    def missed(self, request: LiveRequest, what: Missed, at_ns: int) -> None:
        request.missed = what
        if request.is_running:
            request.is_running = False
            self.attainment.running -= 1
        self.attainment.miss()
        self.misses.append(
            MissedRequest(
                at_ns, what, request.request_id, request.trace_id, request.computed_tokens
            )
        )

    def seen(self, request: LiveRequest) -> None:
        """Its engine has a sequence of it: it is judged from now on, at once if it is due."""
        if request.is_put_off:
            request.is_put_off = False
            self.waiting.appendleft(request)

    def first_token(self, at_ns: int, ttft_ns: int) -> None:
        self._first_tokens.append((at_ns, ttft_ns))

    def ended(self, at_ns: int, request: LiveRequest) -> None:
        if request.gaps:
            self._worst_gaps.append((at_ns, request.worst_gap_ns))

    def charge(self, at_ns: int, parts: Counter[str], excess_ns: int) -> None:
        """Time of late requests that went to `parts`, `excess_ns` of it beyond the target."""
        self._parts.append((at_ns, parts))
        self.excess_ns += excess_ns

    def tick(self, end_ns: int) -> None:
        """The tick is over: what still waits for its first token beyond the target has missed."""
        while self.waiting and self.waiting[0].due_ns < end_ns:
            request = self.waiting.popleft()
            if request.is_unseen:
                request.is_put_off = True
            elif request.is_waiting and request.missed is None:
                self.overdue[request.request_id] = request
                self.missed(request, Missed.FIRST_TOKEN, end_ns)
        self.attainment.overdue = len(self.overdue)
        self.attainment.tick(end_ns)
        if self.attainment.onset_ns is None:
            self.excess_ns, self._utilised = 0, None
        for kept in (self.misses, self._first_tokens, self._worst_gaps, self._parts):
            while kept and kept[0][0] <= end_ns - SHORT_NS:
                kept.popleft()

    def utilised(self, now: float | None) -> float | None:
        """The utilisation that counts, given that of the last 30 seconds: it falls slowly, because
        those who are late now came while it was high."""
        if now is None or self._utilised is None:
            self._utilised = now if self._utilised is None else self._utilised
        else:
            self._utilised = max(now, UTILISATION_KEPT * self._utilised)
        return self._utilised

    def parts(self) -> Counter[str]:
        """Where the time of late requests that had their late token went, in ns."""
        found: Counter[str] = Counter()
        for _, parts in self._parts:
            found.update(parts)
        return found

    def ttft_p95_ns(self, now_ns: int) -> float | None:
        """The p95 of the first tokens in the short window, and of the waits of requests that wait
        beyond the target, as long as they have, in ns."""
        waiting = [now_ns - request.accepted_ns for request in self.overdue.values()]
        return quantile([ttft_ns for _, ttft_ns in self._first_tokens] + waiting, _SHOWN_QUANTILE)

    def worst_gap_p95_ns(self) -> float | None:
        return quantile([gap_ns for _, gap_ns in self._worst_gaps], _SHOWN_QUANTILE)
