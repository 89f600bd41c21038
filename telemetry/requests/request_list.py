"""The last ended requests as one line each, numbered, for `/debug/requests`.

A reader asks for what is new since the number that it was given last, so following all requests
costs the server what is new and no more. The lines are kept as JSON: a few hundred bytes each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

import msgspec

from telemetry.facts.records import RequestAccepted
from telemetry.requests.account import Account
from telemetry.requests.phases import RequestTimeline
from telemetry.requests.timelines import Judge

CAPACITY = 10_000
LIVE_SHOWN = 256
_TAKERS_NAMED = 4


class Taker(msgspec.Struct, frozen=True, array_like=True):
    """A request that took `ns` of another one's time, by the ledger."""

    request_id: str
    ns: int


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """One ended request. `slo_class` is the class that counted it, `verdict` says whether it met
    its SLO (`telemetry.stats.slo_report`), `phases_ns` how long it was in each phase, `late_tokens`
    how many of its tokens came too late, `late_most_ns` the longest gap before one of these, and
    `takers` which requests took most of its time. None is not measured."""

    number: int
    request_id: str
    tenant: str
    slo_class: str
    outcome: str
    reason: str
    verdict: str
    accepted_ns: int
    ended_ns: int
    ttft_ns: int | None
    tpot_ns: int | None
    prompt_tokens: int | None
    cached_tokens: int
    output_tokens: int
    phases_ns: dict[str, int]
    late_tokens: int = 0
    late_most_ns: int | None = None
    takers: tuple[Taker, ...] = ()

    @property
    def e2e_ns(self) -> int:
        return self.ended_ns - self.accepted_ns


class LiveLine(msgspec.Struct, frozen=True, kw_only=True):
    """One request that has not ended."""

    request_id: str
    tenant: str
    slo_class: str
    accepted_ns: int


class RequestsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/debug/requests`: ended requests by number, and the oldest that are live.

    `next` is the number to ask for next time; `run_ns` tells one run of the server from another,
    whose numbers begin again. `ended` requests ended so far and `live_total` are live.
    """

    run_ns: int
    at_ns: int
    next: int
    ended: int
    live_total: int
    requests: tuple[RequestLine, ...]
    live: tuple[LiveLine, ...]


class RequestList:
    """A bounded list; a listener of the phase fold. `run_ns` is when this server began."""

    def __init__(self, judged: Judge, run_ns: int, capacity: int = CAPACITY) -> None:
        self._judged = judged
        self._run_ns = run_ns
        self._lines: deque[bytes] = deque(maxlen=capacity)
        self._next = 0

    def on_timeline(self, timeline: RequestTimeline) -> None:
        slo = self._judged(timeline)["slo"]
        line = line_of(timeline, self._next, slo["class"], slo["verdict"])
        self._lines.append(msgspec.json.encode(line))
        self._next += 1

    def since(
        self, number: int, most: int, live: Iterable[RequestAccepted], live_total: int, at_ns: int
    ) -> bytes:
        """At most `most` lines from `number` on, oldest first, as a `RequestsPage` in JSON. Of a
        number that this run has not reached, all that are kept."""
        oldest = self._next - len(self._lines)
        first = oldest if number > self._next else max(number, oldest)
        lines = list(islice(self._lines, first - oldest, first - oldest + most))
        return msgspec.json.encode(
            {
                "run_ns": self._run_ns,
                "at_ns": at_ns,
                "next": first + len(lines),
                "ended": self._next,
                "live_total": live_total,
                "requests": [msgspec.Raw(line) for line in lines],
                "live": [_live(one) for one in live],
            }
        )


def line_of(timeline: RequestTimeline, number: int, slo_class: str, verdict: str) -> RequestLine:
    """No prompt, output or token id: a timeline never has them."""
    accepted, ended, account = timeline.accepted, timeline.ended, timeline.account
    stalls = () if account is None else account.stalls
    return RequestLine(
        number=number,
        request_id=accepted.request_id,
        tenant=accepted.tenant,
        slo_class=slo_class,
        outcome=timeline.outcome.value,
        reason=ended.reason.value,
        verdict=verdict,
        accepted_ns=accepted.at_ns,
        ended_ns=ended.at_ns,
        ttft_ns=timeline.ttft_ns,
        tpot_ns=timeline.tpot_ns,
        prompt_tokens=timeline.tokenized.prompt_tokens if timeline.tokenized else None,
        cached_tokens=timeline.cached_tokens,
        output_tokens=ended.output_tokens,
        phases_ns={phase.name.value: phase.end_ns - phase.start_ns for phase in timeline.phases},
        late_tokens=len(stalls) + (0 if account is None else account.stalls_cut),
        late_most_ns=max((one.end_ns - one.begin_ns for one in stalls), default=None),
        takers=() if account is None else _takers(account),
    )


def _takers(account: Account) -> tuple[Taker, ...]:
    taken = account.ledger.by_payer().most_common(_TAKERS_NAMED)
    return tuple(Taker(request_id, spent_ns) for request_id, spent_ns in taken)


def _live(accepted: RequestAccepted) -> LiveLine:
    return LiveLine(
        request_id=accepted.request_id,
        tenant=accepted.tenant,
        slo_class=accepted.slo_class,
        accepted_ns=accepted.at_ns,
    )
