"""The time at nodes of the fleet, as attributes and children of the span `remote`.

A node exports its own spans, as children of this gateway's, in its own wall clock. What is here is
in the gateway's: where the node's time begins and ends, and by how much that may be wrong, where
the offset of the clocks is bounded.
"""

from __future__ import annotations

from typing import NamedTuple

from telemetry.clocks.boundaries import Boundary, RemoteSpan
from telemetry.facts.reasons import Phase
from telemetry.requests.engine_span import critical_sequence
from telemetry.requests.phases import PhaseSpan, RequestTimeline
from telemetry.traces.stall_spans import Attributes

_MS = 1e6


class RemotePartSpan(NamedTuple):
    """[begin, end) of the gateway's time, within `phasescope.clock.epsilon_ns` at either end."""

    name: str
    begin_ns: int
    end_ns: int
    attributes: Attributes


def remote_attributes(timeline: RequestTimeline) -> Attributes:
    """Of the sequence that the client waited for longest."""
    remote = _critical(timeline)
    if remote is None:
        return {}
    found: Attributes = {
        "phasescope.engine.name": remote.engine,
        "phasescope.engine.incarnation": f"{remote.incarnation:016x}",
        "phasescope.clock.epoch": remote.epoch,
    }
    if remote.remote_ns is not None and remote.wire_ns is not None:
        found["phasescope.remote_ms"] = remote.remote_ns / _MS
        found["phasescope.wire_ms"] = remote.wire_ns / _MS
    if remote.split is not None:
        found["phasescope.wire.out_ms"] = remote.split.out_ns / _MS
        found["phasescope.wire.back_ms"] = remote.split.back_ns / _MS
    if remote.offset_low_ns is not None and remote.offset_high_ns is not None:
        found["phasescope.clock.offset_low_ns"] = remote.offset_low_ns
        found["phasescope.clock.offset_high_ns"] = remote.offset_high_ns
    epsilon_ns = _epsilon_ns(remote.received, remote.last_emission)
    if epsilon_ns is not None:
        found["phasescope.clock.epsilon_ns"] = epsilon_ns
    if remote.findings:
        found["phasescope.clock.findings"] = tuple(one.value for one in remote.findings)
    return found


def remote_parts(timeline: RequestTimeline, phase: PhaseSpan) -> list[RemotePartSpan]:
    """The way there, the node, and the way back, where they can be placed; all lie within the
    phase."""
    remote = _critical(timeline) if phase.name is Phase.REMOTE else None
    if remote is None or remote.received is None or remote.last_emission is None:
        return []
    received, last = remote.received, remote.last_emission

    def part(name: str, begin_ns: int, end_ns: int, epsilon_ns: int) -> RemotePartSpan:
        begin_ns = max(phase.start_ns, min(begin_ns, phase.end_ns))
        end_ns = max(begin_ns, min(end_ns, phase.end_ns))
        return RemotePartSpan(name, begin_ns, end_ns, {"phasescope.clock.epsilon_ns": epsilon_ns})

    both_ns = max(received.epsilon_ns, last.epsilon_ns)
    return [
        part("wire.out", remote.sent_ns, received.at_ns, received.epsilon_ns),
        part("node", received.at_ns, last.at_ns, both_ns),
        part("wire.back", last.at_ns, remote.arrived_ns, last.epsilon_ns),
    ]


def _critical(timeline: RequestTimeline) -> RemoteSpan | None:
    sequence = critical_sequence(timeline)
    return None if sequence is None else sequence.remote


def _epsilon_ns(*boundaries: Boundary | None) -> int | None:
    known = [one.epsilon_ns for one in boundaries if one is not None]
    return max(known, default=None)
