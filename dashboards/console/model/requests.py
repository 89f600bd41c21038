"""The last ended requests: searched, sorted, and who took whose time.

Filled by number from `/debug/requests`. Everything is bounded: the oldest request leaves when a
new one comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from telemetry.requests.request_list import LiveLine, RequestLine, RequestsPage

KEPT = 10_000
PAGE = 50
VICTIMS_SHOWN = 20


class Order(StrEnum):
    """What comes first."""

    NEWEST = "newest"
    E2E = "slowest"
    TTFT = "first_token"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    LATE = "late_token"


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for; empty fields ask for nothing. `text` is part of an id or of a tenant's
    name. `measure` is a name of `measured`, and its value must be in [low_ns, high_ns). `until` is
    the last number that counts, so that pages stay what they are while requests end."""

    text: str = ""
    slo_class: str = ""
    tenant: str = ""
    verdict: str = ""
    order: Order = Order.NEWEST
    measure: str = ""
    low_ns: int | None = None
    high_ns: int | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    until: int | None = None
    page: int = 1


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of what was found."""

    lines: tuple[RequestLine, ...]
    found: int
    page: int
    pages: int
    newest: int


MISSED = "missed"
"""A verdict of a query: any that missed the SLO."""
_KEPT_PROMISE = frozenset({"good", "client_cancelled", "invalid", "unmeasured"})


def missed(line: RequestLine) -> bool:
    """Whether the request missed the SLO of its class."""
    return line.verdict not in _KEPT_PROMISE


def measured(line: RequestLine, measure: str) -> int | None:
    """A latency of one request: ttft, tpot, e2e, late, or a phase by its name."""
    match measure:
        case "ttft":
            return line.ttft_ns
        case "tpot":
            return line.tpot_ns
        case "e2e":
            return line.e2e_ns
        case "late":
            return line.late_most_ns
        case _:
            return line.phases_ns.get(measure)


MEASURE_OF = {
    Order.E2E: "e2e",
    Order.TTFT: "ttft",
    Order.QUEUE: "queue",
    Order.PREFILL: "prefill",
    Order.DECODE: "decode",
    Order.LATE: "late",
}


class RequestIndex:
    """All known requests of one run of the server. `next` is the number to ask for."""

    def __init__(self, kept: int = KEPT) -> None:
        self.next = 0
        self.live: tuple[LiveLine, ...] = ()
        self.live_total = 0
        self._kept = kept
        self._run_ns: int | None = None
        self._by_id: OrderedDict[str, RequestLine] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def take(self, page: RequestsPage) -> bool:
        """Add what the server answered. False when it is another run of the server, whose requests
        must be asked for from the first on."""
        if self._run_ns != page.run_ns:
            known = self._run_ns is None and self.next == 0
            self._run_ns = page.run_ns
            self._by_id.clear()
            self.next, self.live, self.live_total = 0, (), 0
            if not known:
                return False
        for line in page.requests:
            self._by_id.pop(line.request_id, None)  # a client may use an id again
            self._by_id[line.request_id] = line
        while len(self._by_id) > self._kept:
            self._by_id.popitem(last=False)
        self.next, self.live, self.live_total = page.next, page.live, page.live_total
        return True

    def get(self, request_id: str) -> RequestLine | None:
        return self._by_id.get(request_id)

    def is_live(self, request_id: str) -> bool:
        return any(one.request_id == request_id for one in self.live)

    def since(self, at_ns: int) -> list[RequestLine]:
        """The requests that ended since then, oldest first."""
        return [line for line in self._by_id.values() if line.ended_ns >= at_ns]

    def classes(self) -> list[str]:
        return sorted({line.slo_class for line in self._by_id.values() if line.slo_class})

    def tenants(self) -> list[str]:
        return sorted({line.tenant for line in self._by_id.values() if line.tenant})

    def victims(self, request_id: str) -> list[tuple[RequestLine, int]]:
        """Requests whose time this one took, with the ns, most first."""
        found = [
            (line, taker.ns)
            for line in self._by_id.values()
            for taker in line.takers
            if taker.request_id == request_id
        ]
        return sorted(found, key=lambda pair: -pair[1])[:VICTIMS_SHOWN]

    def search(self, query: Query) -> Page:
        """The page that a query asks for."""
        newest = self.next - 1
        until = newest if query.until is None else query.until
        found = [one for one in self._by_id.values() if one.number <= until and _fits(one, query)]
        found = _sorted(found, query.order)
        pages = max(1, -(-len(found) // PAGE))
        page = min(max(1, query.page), pages)
        lines = tuple(found[(page - 1) * PAGE : page * PAGE])
        return Page(lines=lines, found=len(found), page=page, pages=pages, newest=until)


def _sorted(lines: Iterable[RequestLine], order: Order) -> list[RequestLine]:
    """The lines in order; of equal ones the newest first. Those without the value are left out."""
    newest_first = sorted(lines, key=lambda one: -one.number)
    measure = MEASURE_OF.get(order)
    if measure is None:
        return newest_first
    values = [(value, one) for one in newest_first if (value := measured(one, measure)) is not None]
    return [one for _, one in sorted(values, key=lambda pair: -pair[0])]


def _fits(line: RequestLine, query: Query) -> bool:
    tests: tuple[tuple[bool, Callable[[], bool]], ...] = (
        (bool(query.slo_class), lambda: line.slo_class == query.slo_class),
        (bool(query.tenant), lambda: line.tenant == query.tenant),
        (bool(query.verdict), lambda: _is_verdict(line, query.verdict)),
        (bool(query.text), lambda: query.text in line.request_id or query.text in line.tenant),
        (query.from_ns is not None, lambda: line.ended_ns >= (query.from_ns or 0)),
        (query.to_ns is not None, lambda: line.ended_ns < (query.to_ns or 0)),
        (bool(query.measure), lambda: _is_between(line, query)),
    )
    return all(test() for applies, test in tests if applies)


def _is_verdict(line: RequestLine, verdict: str) -> bool:
    return missed(line) if verdict == MISSED else line.verdict == verdict


def _is_between(line: RequestLine, query: Query) -> bool:
    value = measured(line, query.measure)
    if value is None:
        return False
    low_ok = query.low_ns is None or value >= query.low_ns
    return low_ok and (query.high_ns is None or value < query.high_ns)
