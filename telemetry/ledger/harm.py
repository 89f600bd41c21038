"""Time that requests took from others: by request, by tenant, by class.

The sums come from the ledgers of ended requests: time that these spent in steps with a prompt or
a mask of another request, running or waiting. This is direct harm: what a backlog cost requests
that came later is not in it. Time lost to the decodes of a batch is one sum without an owner.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

import msgspec

from telemetry.requests.account import Part

_REQUESTS_KEPT = 4096
_CULPRITS_KEPT = 8_192
_LABELS_KEPT = 64
OTHER = "other"


@dataclass(frozen=True, slots=True)
class SequenceOwner:
    """The request that a sequence belongs to."""

    request_id: str
    trace_id: str
    tenant: str
    slo_class: str


class HarmReport(msgspec.Struct, frozen=True):
    """Nanoseconds taken from other requests since the start, each mapping largest first.
    `co_decode` is in the total and among the parts, but has no tenant, class or request."""

    total_ns: int
    by_part_ns: dict[str, int]
    by_tenant_ns: dict[str, int]
    by_class_ns: dict[str, int]
    by_request_ns: dict[str, int]


class Harm:
    """Sums over ended requests. Bounded: further labels count as OTHER, and of too many requests
    the smallest are dropped."""

    def __init__(self) -> None:
        self._by_part: Counter[Part] = Counter()
        self._by_tenant: Counter[str] = Counter()
        self._by_class: Counter[str] = Counter()
        self._by_request: Counter[str] = Counter()
        self._culprits: OrderedDict[str, None] = OrderedDict()

    def add(self, culprit: SequenceOwner, part: Part, spent_ns: int) -> None:
        """Time that an ended request lost to `culprit`'s prompts or masks."""
        self._by_part[part] += spent_ns
        _add(self._by_tenant, culprit.tenant, spent_ns)
        _add(self._by_class, culprit.slo_class, spent_ns)
        self._by_request[culprit.request_id] += spent_ns
        if len(self._by_request) > 2 * _REQUESTS_KEPT:
            self._by_request = Counter(dict(self._by_request.most_common(_REQUESTS_KEPT)))

    def add_batch(self, spent_ns: int) -> None:
        """Time that a request lost to the decodes of all others."""
        if spent_ns:
            self._by_part[Part.CO_DECODE] += spent_ns

    def mark_culprit(self, request_id: str) -> None:
        """The request made a token of another one late: the tail sampler keeps its trace."""
        self._culprits[request_id] = None
        if len(self._culprits) > _CULPRITS_KEPT:
            self._culprits.popitem(last=False)

    def is_culprit(self, request_id: str) -> bool:
        return request_id in self._culprits

    def report(self, requests: int = 20) -> HarmReport:
        return HarmReport(
            total_ns=self._by_part.total(),
            by_part_ns={part.value: spent_ns for part, spent_ns in self._by_part.most_common()},
            by_tenant_ns=dict(self._by_tenant.most_common()),
            by_class_ns=dict(self._by_class.most_common()),
            by_request_ns=dict(self._by_request.most_common(requests)),
        )


def _add(sums: Counter[str], label: str, spent_ns: int) -> None:
    """Add to a label, or to OTHER: labels come from clients, so their number is bounded."""
    is_known = label in sums or len(sums) < _LABELS_KEPT
    sums[label if is_known else OTHER] += spent_ns
