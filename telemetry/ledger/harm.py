"""Whose work took others' time: by request, by tenant, by class.

The sums are those of the ended requests' ledgers, so they count time that others spent in
steps with a row of the taker, running or waiting. It is direct harm: what a backlog did to
requests that came later is not in it. Whom prompts and masks took time from is known by name;
what the decodes of a batch took from each other is one sum and nobody's.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

import msgspec

from telemetry.requests.account import Part

_REQUESTS_KEPT = 4096
_ACCUSED_KEPT = 8_192
_LABELS_KEPT = 64
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Taker:
    """Whose a sequence is."""

    request_id: str
    trace_id: str
    tenant: str
    slo_class: str


class HarmReport(msgspec.Struct, frozen=True):
    """Nanoseconds taken from other requests since the start; `by_request` the largest first.
    `co_decode` is in the total and among the parts, and of no tenant, class or request."""

    total_ns: int
    by_part_ns: dict[str, int]
    by_tenant_ns: dict[str, int]
    by_class_ns: dict[str, int]
    by_request_ns: dict[str, int]


class Harm:
    """Sums over ended requests. Labels and requests are bounded; the smallest go first."""

    def __init__(self) -> None:
        self._by_part: Counter[Part] = Counter()
        self._by_tenant: Counter[str] = Counter()
        self._by_class: Counter[str] = Counter()
        self._by_request: Counter[str] = Counter()
        self._accused: OrderedDict[str, None] = OrderedDict()

    def add(self, taker: Taker, part: Part, spent_ns: int) -> None:
        self._by_part[part] += spent_ns
        _add(self._by_tenant, taker.tenant, spent_ns)
        _add(self._by_class, taker.slo_class, spent_ns)
        self._by_request[taker.request_id] += spent_ns
        if len(self._by_request) > 2 * _REQUESTS_KEPT:
            self._by_request = Counter(dict(self._by_request.most_common(_REQUESTS_KEPT)))

    def add_batch(self, spent_ns: int) -> None:
        """Time that a request lost to the decodes of all others."""
        if spent_ns:
            self._by_part[Part.CO_DECODE] += spent_ns

    def accuse(self, request_id: str) -> None:
        """The request made somebody's token late; its trace is worth keeping."""
        self._accused[request_id] = None
        if len(self._accused) > _ACCUSED_KEPT:
            self._accused.popitem(last=False)

    def is_culprit(self, request_id: str) -> bool:
        return request_id in self._accused

    def report(self, requests: int = 20) -> HarmReport:
        return HarmReport(
            total_ns=self._by_part.total(),
            by_part_ns={part.value: spent_ns for part, spent_ns in self._by_part.most_common()},
            by_tenant_ns=dict(self._by_tenant.most_common()),
            by_class_ns=dict(self._by_class.most_common()),
            by_request_ns=dict(self._by_request.most_common(requests)),
        )


def _add(sums: Counter[str], label: str, spent_ns: int) -> None:
    """Labels come from clients, so their number is bounded."""
    known = label in sums or len(sums) < _LABELS_KEPT
    sums[label if known else OTHER] += spent_ns
