"""Remembers the calls that answers have made, until a conversation comes back with their results.

So the time between a call and its result, which the server does not see, becomes a `tool` span. An
id is found once: later requests repeat the conversation, not the tool's work. The table is bounded
in entries and age; what it forgets for lack of room is counted. With several gateway processes each
knows the calls of its own answers only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from service.gateway.http import limits
from telemetry.facts.clock import Clock
from telemetry.facts.tool_records import ReturnedCall


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """The request that made a call: its span, and when its answer was complete."""

    request_id: str
    trace_id: str
    span_id: str
    called_ns: int


class CallTable:
    """Ids of calls; used on the event loop only."""

    def __init__(
        self,
        clock: Clock,
        entries: int = limits.REMEMBERED_CALLS.value,
        age_s: int = limits.REMEMBERED_S.value,
    ) -> None:
        self._clock = clock
        self._entries = entries
        self._age_ns = age_s * 1_000_000_000
        self._origins: OrderedDict[str, CallOrigin] = OrderedDict()

    def __len__(self) -> int:
        return len(self._origins)

    def remember(self, call_ids: Iterable[str], origin: CallOrigin) -> int:
        """Keep calls; how many older ones, that had not expired, had to be forgotten for them."""
        self._expire()
        for call_id in call_ids:
            self._origins[call_id] = origin
        forgotten = max(0, len(self._origins) - self._entries)
        for _ in range(forgotten):
            self._origins.popitem(last=False)
        return forgotten

    def take(self, call_ids: Iterable[str]) -> tuple[list[ReturnedCall], int]:
        """The answers whose calls have these ids, with the number of results of each, and how many
        ids are not known (any more)."""
        self._expire()
        counts: dict[CallOrigin, int] = {}
        unknown = 0
        for call_id in call_ids:
            origin = self._origins.pop(call_id, None)
            if origin is None:
                unknown += 1
            else:
                counts[origin] = counts.get(origin, 0) + 1
        shown = list(counts.items())[: limits.RETURNED_CALLS.value]
        found = [
            ReturnedCall(
                request_id=origin.request_id,
                trace_id=origin.trace_id,
                span_id=origin.span_id,
                called_ns=origin.called_ns,
                results=results,
            )
            for origin, results in shown
        ]
        return found, unknown

    def _expire(self) -> None:
        before_ns = self._clock.now_ns() - self._age_ns
        while self._origins:
            call_id = next(iter(self._origins))
            if self._origins[call_id].called_ns >= before_ns:
                return
            del self._origins[call_id]
