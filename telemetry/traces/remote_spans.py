"""The time at an engine node as spans of the gateway: `remote`, and in it `wire.out`, `node` and
`wire.back`.

A node exports its own spans, in its own wall clock. What is here is in the gateway's: where the
node's time begins and ends, and by how much that may be wrong, where the offset of the clocks is
bounded.
"""

from __future__ import annotations

from typing import NamedTuple

from telemetry.clocks.boundaries import RemoteSpan
from telemetry.requests.engine_span import critical_sequence
from telemetry.requests.kv_accounts import kv_spans
from telemetry.requests.phases import RequestTimeline
from telemetry.traces.stall_spans import Attributes

_EPSILON = "phasescope.clock.epsilon_ns"
_MS = 1e6
MAX_KV_ACCOUNTS = 16


class RemoteChild(NamedTuple):
    """[begin, end) of the gateway's time. Within `remote`, its ends are wrong by at most
    `phasescope.clock.epsilon_ns`."""

    name: str
    begin_ns: int
    end_ns: int
    attributes: Attributes


def remote_spans(timeline: RequestTimeline) -> list[RemoteChild]:
    """The spans of the sequence that the client waited for longest: `remote`, then those that lie
    in it. Empty if it was at no node, or if nothing is known of its time there."""
    critical = critical_sequence(timeline)
    remote = None if critical is None else critical.remote
    if remote is None:
        return []
    begin_ns = max(timeline.accepted.at_ns, min(remote.sent_ns, timeline.ended.at_ns))
    end_ns = max(begin_ns, min(remote.arrived_ns, timeline.ended.at_ns))
    whole = RemoteChild("remote", begin_ns, end_ns, _attributes(remote))
    if remote.received is None or remote.last_emission is None:
        return [whole]
    received, last = remote.received, remote.last_emission
    first_ns = max(begin_ns, min(received.at_ns, end_ns))
    last_ns = max(first_ns, min(last.at_ns, end_ns))
    both_ns = max(received.epsilon_ns, last.epsilon_ns)
    return [
        whole,
        RemoteChild("wire.out", begin_ns, first_ns, {_EPSILON: received.epsilon_ns}),
        RemoteChild("node", first_ns, last_ns, {_EPSILON: both_ns}),
        RemoteChild("wire.back", last_ns, end_ns, {_EPSILON: last.epsilon_ns}),
    ]


def kv_children(timeline: RequestTimeline) -> list[RemoteChild]:
    """What the first sequences waited for while another engine computed their prompts, in the clock
    of this server."""
    return [
        RemoteChild(
            one.name,
            one.begin_ns,
            one.end_ns,
            {"phasescope.seq_id": sequence.seq_id, **one.attributes},
        )
        for sequence in timeline.sequences[:MAX_KV_ACCOUNTS]
        if sequence.kv is not None
        for one in kv_spans(sequence.kv)
    ]


def _attributes(remote: RemoteSpan) -> Attributes:
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
    if remote.received is not None and remote.last_emission is not None:
        found[_EPSILON] = max(remote.received.epsilon_ns, remote.last_emission.epsilon_ns)
    if remote.findings:
        found["phasescope.clock.findings"] = tuple(one.value for one in remote.findings)
    return found
