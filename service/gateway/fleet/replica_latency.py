"""Latencies of each engine of the fleet and of all engines of a role, at this gateway.

HDR histograms by engine; those of a role and of the fleet are merged counter by counter, so their
percentiles are those of one histogram that had taken all values. Averages of percentiles are never
taken.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from itertools import pairwise

import msgspec

from service.gateway.fleet.known_names import MOST_NAMES, OTHER, to_forget
from telemetry.facts.reasons import Outcome
from telemetry.numbers.hdr import Distribution, merged
from telemetry.numbers.quantiles import Percentiles
from telemetry.requests.phases import Measure, RequestTimeline
from telemetry.stats.histograms import LatencyHistogram

MEASURES = (Measure.TTFT, Measure.ITL, Measure.E2E)
WINDOW_S = 60
_GONE = "gone"
"""The role of an engine that the membership does not name any more."""


class GroupLatency(msgspec.Struct, frozen=True):
    """Percentiles of the last minute, by measure, of one engine, role or fleet."""

    name: str
    role: str
    latencies: dict[str, Percentiles]


class FleetLatency(msgspec.Struct, frozen=True):
    """Answer of GET /debug/fleet. Times are the gateway's: from a request's arrival here to its
    tokens' arrival here."""

    window_s: int
    engines: list[GroupLatency]
    roles: list[GroupLatency]
    fleet: GroupLatency


class ReplicaLatency:
    """A listener to timelines, under the pump's lock, as its readers are. `members` are the names
    of the membership."""

    def __init__(self, members: Callable[[], Container[str]]) -> None:
        self._members = members
        self._engines: dict[str, dict[Measure, LatencyHistogram]] = {}

    def on_timeline(self, timeline: RequestTimeline) -> None:
        """Count the latencies of a finished request: its first token counts for the engine that all
        of it went to."""
        if timeline.is_incomplete or timeline.outcome is not Outcome.FINISHED:
            return
        at_ns, name = timeline.ended.at_ns, None
        for sequence in timeline.sequences:
            if sequence.engine is None:
                continue
            name = sequence.engine
            gaps = self._of(name)[Measure.ITL]
            for before_ns, after_ns in pairwise(sequence.token_ns):
                gaps.record(after_ns - before_ns, at_ns)
        if name is not None:
            own = self._of(name)
            own[Measure.E2E].record(timeline.e2e_ns, at_ns)
            if timeline.ttft_ns is not None:
                own[Measure.TTFT].record(timeline.ttft_ns, at_ns)

    def view(self, now_ns: int, roles: Mapping[str, str]) -> FleetLatency:
        """The latencies by engine as of now; `roles` is the role of each engine of the
        membership."""
        by_engine = {
            name: {one: held[one].last(now_ns, WINDOW_S) for one in MEASURES}
            for name, held in self._engines.items()
        }
        of_role: dict[str, list[str]] = {}
        for name in by_engine:
            of_role.setdefault(roles.get(name, _GONE), []).append(name)
        return FleetLatency(
            WINDOW_S,
            [_group(name, roles.get(name, _GONE), [by_engine[name]]) for name in sorted(by_engine)],
            [
                _group(role, role, [by_engine[name] for name in names])
                for role, names in sorted(of_role.items())
            ],
            _group("all", "", by_engine.values()),
        )

    def _of(self, engine: str) -> dict[Measure, LatencyHistogram]:
        if engine not in self._engines and len(self._engines) >= MOST_NAMES:
            gone = to_forget(self._engines, self._members())
            if gone is None:
                engine = OTHER
            else:
                del self._engines[gone]
        found = self._engines.get(engine)
        if found is None:
            found = self._engines[engine] = {one: LatencyHistogram() for one in MEASURES}
        return found


def _group(name: str, role: str, parts: Iterable[Mapping[Measure, Distribution]]) -> GroupLatency:
    kept = list(parts)
    return GroupLatency(
        name,
        role,
        {one.value: merged(part[one] for part in kept).percentiles() for one in MEASURES},
    )
