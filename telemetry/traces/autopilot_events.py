"""Decisions of the autopilot, as events for the spans of the requests that were live then."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.base import SpanEvent
from telemetry.facts.records import Fact

EVENT = "phasescope.autopilot"
_KEPT = 256


class AutopilotEvents:
    """A fold; its events are read by the exporter's thread."""

    def __init__(self) -> None:
        self._events: deque[SpanEvent] = deque(maxlen=_KEPT)

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, AutopilotDecided):
                self._events.append(SpanEvent(fact.at_ns, EVENT, _attributes(fact)))

    def between(self, begin_ns: int, end_ns: int) -> list[SpanEvent]:
        """Decisions in [begin, end)."""
        return [one for one in tuple(self._events) if begin_ns <= one.at_ns < end_ns]


def _attributes(fact: AutopilotDecided) -> dict[str, str | float]:
    return {
        "phasescope.autopilot.decision": fact.decision.value,
        "phasescope.autopilot.reason": fact.reason.value,
        "phasescope.autopilot.limits": ",".join(fact.limits),
        "phasescope.autopilot.number": fact.number,
        "phasescope.autopilot.why": fact.why,
    }
