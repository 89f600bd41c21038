"""Charges the time of a request whose sequence was at an engine node.

    accepted    sent                                                     arrived          ended
       +-ingest--+--wire_out--+--- the node's entries ---+--wire_back--+----deliver---+

`sent` and `arrived` are of the gateway's clock, the node's entries are durations of the node's.
What is left of the time here is the wire: `wire` as a whole, or there and back where the offset of
the clocks is bounded (`telemetry.clocks`). So the parts add up to the time here exactly, whatever
the clocks do. What a node says in words that this ledger does not have, and time of which there is
no account, are not observed here.
"""

from __future__ import annotations

from telemetry.clocks.boundaries import RemoteSpan
from telemetry.facts.fleet.sequence_records import RemotePart
from telemetry.facts.reasons import Outcome
from telemetry.ledger.charging import Charger
from telemetry.ledger.lifecycle import charge_delivery, charge_ingest
from telemetry.requests.account import NotObserved, Part, State
from telemetry.requests.phases import RequestTimeline, SequenceTimeline

CLOCK = "clock"
"""Reason of a wire that took less than no time: the two clocks do not run alike."""
NODE = "node"
"""Reason of what a node did before and after its engine: told from the gateway's own."""

_STATES = {state.value: state for state in State}
_PARTS = {part.value: part for part in Part}
_NOT_OBSERVED = frozenset(reason.value for reason in NotObserved)
_AT_NODE = NotObserved.AT_NODE.value
_AROUND = (State.INGEST, State.DELIVER)


def is_remote(sequence: SequenceTimeline) -> bool:
    """Whether it was sent to a node."""
    return sequence.sent_ns is not None


def charge_remote_request(
    charger: Charger, timeline: RequestTimeline, sequence: SequenceTimeline
) -> None:
    """Charge all of [accepted, ended), along `sequence`."""
    begin_ns, end_ns = timeline.accepted.at_ns, timeline.ended.at_ns
    assert sequence.sent_ns is not None
    sent_ns = max(begin_ns, min(sequence.sent_ns, end_ns))
    arrived_ns = end_ns if sequence.ended_ns is None else sequence.ended_ns
    arrived_ns = max(sent_ns, min(arrived_ns, end_ns))
    charge_ingest(charger, timeline, sent_ns)
    charge_remote(charger, sequence.remote, sent_ns, arrived_ns)
    if timeline.outcome is Outcome.CANCELLED:
        _unseen(charger, arrived_ns, end_ns)  # the node went on until it was told
        return
    charge_delivery(charger, timeline, arrived_ns)


def charge_remote(charger: Charger, remote: RemoteSpan | None, begin_ns: int, end_ns: int) -> None:
    """Charge [begin, end). Where that is less than [sent, arrived), because the request ended
    before the node's last output came, the node's account is of more than the request."""
    is_whole = remote is not None and (begin_ns, end_ns) == (remote.sent_ns, remote.arrived_ns)
    if remote is None or not is_whole or remote.remote_ns is None or remote.wire_ns is None:
        _unseen(charger, begin_ns, end_ns)
        return
    if remote.parts:
        for part in remote.parts:
            _charge_part(charger, part)
    else:
        charger.charge_duration(State.RUN, _AT_NODE, Part.NOT_OBSERVED, remote.remote_ns)
    if remote.split is None:
        reason = CLOCK if remote.wire_ns < 0 else ""
        charger.charge_duration(State.WIRE, reason, Part.WIRE, remote.wire_ns)
    else:
        charger.charge_duration(State.WIRE, "", Part.WIRE_OUT, remote.split.out_ns)
        charger.charge_duration(State.WIRE, "", Part.WIRE_BACK, remote.split.back_ns)


def _charge_part(charger: Charger, said: RemotePart) -> None:
    state, part = _STATES.get(said.state), _PARTS.get(said.part)
    if state is None or part is None:
        charger.charge_duration(State.RUN, _AT_NODE, Part.NOT_OBSERVED, said.ns)
        return
    reason = said.reason
    if not reason and state in _AROUND:
        reason = NODE
    if part is Part.NOT_OBSERVED and reason not in _NOT_OBSERVED:
        reason = _AT_NODE  # the reasons are labels of a metric
    charger.charge_duration(state, reason, part, said.ns, said.payer)


def _unseen(charger: Charger, begin_ns: int, end_ns: int) -> None:
    charger.charge(State.RUN, _AT_NODE, Part.NOT_OBSERVED, begin_ns, end_ns)
