"""What is stated of a skewed fleet's sequences, and whether it is true."""

from __future__ import annotations

from telemetry.clocks.boundaries import Boundary, RemoteSpan
from telemetry.clocks.fleet_clocks import FleetClocks
from telemetry.facts.fleet.sequence_records import ClockSampled, RemoteAccounted, SequenceSent
from tests.support.worlds.skewed_fleet import SkewedFleet, Truth


def spans_of(fleet: SkewedFleet, clocks: FleetClocks) -> dict[int, RemoteSpan]:
    """The spans of a fleet's sequences, which are all there."""
    found = {}
    for fact in fleet.facts:
        match fact:
            case SequenceSent():
                clocks.sent(fact)
            case ClockSampled():
                clocks.sampled(fact)
            case RemoteAccounted():
                span = clocks.accounted(fact)
                assert span is not None
                found[fact.seq_id] = span
            case _:
                pass
    return found


def misstated(span: RemoteSpan, truth: Truth) -> list[str]:
    """What of a span is not true."""

    def is_wrong(stated: Boundary | None, true_ns: int) -> bool:
        return stated is not None and abs(stated.at_ns - true_ns) > stated.epsilon_ns

    wrong = []
    if is_wrong(span.received, truth.received_ns):
        wrong.append("received")
    if is_wrong(span.first_emission, truth.first_ns):
        wrong.append("first emission")
    if is_wrong(span.last_emission, truth.last_ns):
        wrong.append("last emission")
    if span.split is not None:
        out_ns, back_ns = truth.received_ns - span.sent_ns, span.arrived_ns - truth.last_ns
        if abs(span.split.out_ns - out_ns) > span.split.out_epsilon_ns:
            wrong.append("out")
        if abs(span.split.back_ns - back_ns) > span.split.back_epsilon_ns:
            wrong.append("back")
    return wrong


def sum_is_off_ns(span: RemoteSpan) -> int:
    """Parts and wire, less the time at the gateway; of a span whose time is known."""
    parts_ns = sum(part.ns for part in span.parts) if span.parts else span.remote_ns or 0
    wire_ns = span.wire_ns or 0
    if span.split is not None:
        wire_ns = span.split.out_ns + span.split.back_ns
    return parts_ns + wire_ns - (span.arrived_ns - span.sent_ns)
