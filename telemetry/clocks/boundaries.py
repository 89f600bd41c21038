"""A node's account of one sequence, placed in the gateway's time.

    gateway   sent ............................................. arrived
               |--wire_out--|--- the node's parts ---|--wire_back--|
    node                 received              last emission

The parts are durations of the node's clock, and `wire_ns` is the time between `sent` and `arrived`
less the time between `received` and `last emission`: one integer, each clock subtracted from itself
only. So the parts and the wire add up to the time at the gateway, exactly, whatever the clocks do.

Where the wire is split, and where a boundary of the node lies in the gateway's time, hangs on the
offset of the two clocks. It is said only where frames of other exchanges bound the offset, and with
the most by which it may be wrong. What contradicts itself is a finding, and no time is taken from
it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from telemetry.clocks.offset import Bound, Exchange, Offset, drifted_ns, offset_over
from telemetry.facts.fleet.sequence_records import (
    MOST_PARTS,
    RemoteAccount,
    RemoteAccounted,
    RemotePart,
    SequenceSent,
)


class ClockFinding(StrEnum):
    """What is wrong with the time of a remote sequence."""

    NO_ACCOUNT = "no_account"  # the node's account did not come with the end
    OTHER_INCARNATION = "other_incarnation"  # the account is not of the engine it was sent to
    STAMPS_DISORDERED = "stamps_disordered"  # the node's, or the gateway's, are not in order
    PARTS_INCONSISTENT = "parts_inconsistent"  # they do not add up to the node's own time
    NEGATIVE_WIRE = "negative_wire"  # the node says more time than passed here: a clock is wrong
    WITHIN_DRIFT = "within_drift"  # the same, by no more than clocks may drift: the wire was short
    CLOCK_STEP = "clock_step"  # a clock was set, or stood still, while the sequence ran
    CLOCK_UNBOUNDED = "clock_unbounded"  # no exchange bounds the offset yet: the wire is not split


class Boundary(msgspec.Struct, frozen=True):
    """A moment of the node in the gateway's time: within `epsilon_ns` of `at_ns`."""

    at_ns: int
    epsilon_ns: int


class WireSplit(msgspec.Struct, frozen=True):
    """The wire there and back; the two add up to the whole. Each is wrong by at most its
    epsilon."""

    out_ns: int
    back_ns: int
    out_epsilon_ns: int
    back_epsilon_ns: int


class RemoteSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sequence's time at a node, between `sent_ns` and `arrived_ns` of the gateway's time.

    `remote_ns` is its time by the node's clock and `wire_ns` the rest; None where `findings` say
    why they cannot be believed. `parts` add up to `remote_ns`, or are empty. `offset_low_ns` and
    `offset_high_ns` bound the node's clock less the gateway's when the last output arrived, in
    `epoch`. The boundaries are there where the offset is bounded."""

    seq_id: int
    engine: str
    incarnation: int
    sent_ns: int
    arrived_ns: int
    epoch: int
    first_arrived_ns: int | None = None
    remote_ns: int | None = None
    wire_ns: int | None = None
    parts: tuple[RemotePart, ...] = ()
    split: WireSplit | None = None
    received: Boundary | None = None
    first_emission: Boundary | None = None
    last_emission: Boundary | None = None
    offset_low_ns: int | None = None
    offset_high_ns: int | None = None
    findings: tuple[ClockFinding, ...] = ()


class Bounds(NamedTuple):
    """What other exchanges say of a node's clock in one epoch."""

    epoch: int
    uppers: tuple[Bound, ...]
    lowers: tuple[Bound, ...]

    def joined(self, other: Bounds) -> Bounds:
        """Both, of the same epoch."""
        assert self.epoch == other.epoch, (self.epoch, other.epoch)
        return Bounds(self.epoch, self.uppers + other.uppers, self.lowers + other.lowers)

    @property
    def are_two_sided(self) -> bool:
        return bool(self.uppers and self.lowers)


def exchange_of(sent: SequenceSent, fact: RemoteAccounted) -> Exchange | None:
    """The four stamps of a sequence itself; None if they are not there or not in order."""
    if fault_of(sent, fact) is not None or fact.account is None:
        return None
    account = fact.account
    return Exchange(sent.at_ns, account.received_ns, account.last_emission_ns, fact.at_ns)


def fault_of(sent: SequenceSent, fact: RemoteAccounted) -> ClockFinding | None:
    """Why nothing of the account can be used."""
    account = fact.account
    if (sent.engine, sent.incarnation) != (fact.engine, fact.incarnation):
        return ClockFinding.OTHER_INCARNATION
    if account is None:
        return ClockFinding.NO_ACCOUNT
    node_ns = (account.received_ns, account.first_emission_ns, account.last_emission_ns)
    here_ns = (sent.at_ns, fact.first_arrived_ns, fact.at_ns)
    if not _in_order(node_ns) or not _in_order(here_ns):
        return ClockFinding.STAMPS_DISORDERED
    return None


def _in_order(stamps_ns: tuple[int, int | None, int]) -> bool:
    first_ns, middle_ns, last_ns = stamps_ns
    return first_ns <= (first_ns if middle_ns is None else middle_ns) <= last_ns


def placed(
    sent: SequenceSent, fact: RemoteAccounted, known: Bounds | None, epoch: int, drift_ppm: int
) -> RemoteSpan:
    """The account in the gateway's time. `known` is what other exchanges say of the node's clock
    all the while; None: there was a step meanwhile. `epoch` is the one at the end."""
    span = RemoteSpan(
        seq_id=fact.seq_id,
        engine=fact.engine,
        incarnation=fact.incarnation,
        sent_ns=sent.at_ns,
        arrived_ns=fact.at_ns,
        first_arrived_ns=fact.first_arrived_ns,
        epoch=epoch,
    )
    account, fault = fact.account, fault_of(sent, fact)
    if fault is not None or account is None:
        return _found(span, fault or ClockFinding.NO_ACCOUNT)
    remote_ns = account.last_emission_ns - account.received_ns
    wire_ns = fact.at_ns - sent.at_ns - remote_ns
    if wire_ns < 0:
        span = _found(span, *_too_long(wire_ns, remote_ns, drift_ppm))
    if ClockFinding.NEGATIVE_WIRE not in span.findings:
        span = msgspec.structs.replace(span, remote_ns=remote_ns, wire_ns=wire_ns)
        span = _with_parts(span, account)
    if known is None:
        return _found(span, ClockFinding.CLOCK_STEP)
    if not known.are_two_sided:
        return _found(span, ClockFinding.CLOCK_UNBOUNDED)
    return span if span.wire_ns is None else _located(span, account, known, drift_ppm)


def _found(span: RemoteSpan, *findings: ClockFinding) -> RemoteSpan:
    return msgspec.structs.replace(span, findings=(*span.findings, *findings))


def _too_long(wire_ns: int, remote_ns: int, drift_ppm: int) -> tuple[ClockFinding, ...]:
    drift_ns = drifted_ns(remote_ns, drift_ppm)
    return (ClockFinding.WITHIN_DRIFT if wire_ns >= -drift_ns else ClockFinding.NEGATIVE_WIRE,)


def _with_parts(span: RemoteSpan, account: RemoteAccount) -> RemoteSpan:
    parts = account.parts
    is_consistent = (
        len(parts) <= MOST_PARTS
        and all(part.ns >= 0 for part in parts)
        and sum(part.ns for part in parts) == span.remote_ns
    )
    if not is_consistent:
        return _found(span, ClockFinding.PARTS_INCONSISTENT)
    return msgspec.structs.replace(span, parts=parts)


class _Moment(NamedTuple):
    """A stamp of the node and the gateway's times that causality leaves for it."""

    node_ns: int
    begin_ns: int
    end_ns: int


def _located(span: RemoteSpan, account: RemoteAccount, known: Bounds, drift_ppm: int) -> RemoteSpan:
    """The span with the split of its wire time and with the boundaries."""
    received, first, last = _moments(span, account, drift_ppm)
    uppers = (*known.uppers, Bound(received.node_ns - span.sent_ns, *received[1:]))
    lowers = (*known.lowers, Bound(last.node_ns - span.arrived_ns, *last[1:]))
    if first is not None and span.first_arrived_ns is not None:
        lowers = (*lowers, Bound(first.node_ns - span.first_arrived_ns, *first[1:]))

    def locate(moment: _Moment) -> tuple[int, int] | None:
        theta = offset_over(uppers, lowers, moment.begin_ns, moment.end_ns, drift_ppm)
        assert theta is not None
        low_ns = max(moment.begin_ns, moment.node_ns - theta.high_ns)
        high_ns = min(moment.end_ns, moment.node_ns - theta.low_ns)
        return (low_ns, high_ns) if low_ns <= high_ns else None

    arrival, departure = locate(received), locate(last)
    emission = None if first is None else locate(first)
    if arrival is None or departure is None or (first is not None and emission is None):
        return _found(span, ClockFinding.CLOCK_STEP)
    theta = offset_over(uppers, lowers, span.arrived_ns, span.arrived_ns, drift_ppm)
    assert theta is not None
    return msgspec.structs.replace(
        span,
        split=_split(span, arrival, departure),
        received=_boundary(arrival),
        first_emission=None if emission is None else _boundary(emission),
        last_emission=_boundary(departure),
        **_shown(theta),
    )


def _moments(
    span: RemoteSpan, account: RemoteAccount, drift_ppm: int
) -> tuple[_Moment, _Moment | None, _Moment]:
    """The node's stamps: received, the first emission, the last. Durations of its clock are those
    of the gateway's within the drift."""

    def least_ns(duration_ns: int) -> int:
        return duration_ns - drifted_ns(duration_ns, drift_ppm)

    begin_ns, end_ns = span.sent_ns, span.arrived_ns
    node_begin_ns, node_end_ns = account.received_ns, account.last_emission_ns
    whole_ns = least_ns(node_end_ns - node_begin_ns)
    received = _Moment(node_begin_ns, begin_ns, max(begin_ns, end_ns - whole_ns))
    last = _Moment(node_end_ns, min(end_ns, begin_ns + whole_ns), end_ns)
    node_ns = account.first_emission_ns
    if node_ns is None:
        return received, None, last
    earliest_ns = begin_ns + least_ns(node_ns - node_begin_ns)
    latest_ns = end_ns - least_ns(node_end_ns - node_ns)
    if span.first_arrived_ns is not None:
        latest_ns = min(latest_ns, span.first_arrived_ns)
    return received, _Moment(node_ns, earliest_ns, max(earliest_ns, latest_ns)), last


def _split(
    span: RemoteSpan, arrival: tuple[int, int], departure: tuple[int, int]
) -> WireSplit | None:
    """The wire time split into out and back; None for a wire so short that drift hides it."""
    assert span.wire_ns is not None
    if span.wire_ns < 0:
        return None
    out = (arrival[0] - span.sent_ns, arrival[1] - span.sent_ns)
    back = (span.arrived_ns - departure[1], span.arrived_ns - departure[0])
    out_ns = max(0, min(sum(out) // 2, span.wire_ns))
    back_ns = span.wire_ns - out_ns
    return WireSplit(out_ns, back_ns, _furthest_ns(out_ns, out), _furthest_ns(back_ns, back))


def _furthest_ns(at_ns: int, interval: tuple[int, int]) -> int:
    return max(at_ns - interval[0], interval[1] - at_ns)


def _boundary(interval: tuple[int, int]) -> Boundary:
    at_ns = sum(interval) // 2
    return Boundary(at_ns, _furthest_ns(at_ns, interval))


def _shown(theta: Offset) -> dict[str, int]:
    return {"offset_low_ns": theta.low_ns, "offset_high_ns": theta.high_ns}
