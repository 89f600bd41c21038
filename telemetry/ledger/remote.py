"""Charges the time of a request whose sequence was at an engine node.

    accepted       sent                                  arrived                     ended
       +-ingest-----+--- the node's parts, and wire ------+---deliver, not observed----+

`sent` and `arrived` are of the gateway's clock, and the node's parts are durations of the node's;
`wire` is the time between the two less the node's time, so the parts add up exactly, whatever the
two clocks do. A wire below zero is charged as it is: it says that the clocks do not run alike
(`CLOCK`). A node whose parts do not add up to its own time leaves the difference unattributed. Time
of which there is no account is not observed.
"""

from __future__ import annotations

from telemetry.facts.fleet_records import RemoteAccount
from telemetry.facts.reasons import Outcome
from telemetry.ledger.charging import Charger
from telemetry.ledger.lifecycle import charge_ingest
from telemetry.requests.account import Book, NotObserved, Part, State
from telemetry.requests.phases import RequestTimeline, SequenceTimeline

CLOCK = "clock"
"""Reason of a wire that took less than no time."""
AT_NODE = "node"
"""Reason of what a node did before and after its engine: told from the gateway's own."""

_STATES = {state.value: state for state in State}
_PARTS = {part.value: part for part in Part}
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
    is_whole = sequence.sent_ns == sent_ns and sequence.ended_ns == arrived_ns
    if sequence.remote is not None and is_whole:
        charge_remote(charger.book, sequence.remote, sent_ns, arrived_ns)
    else:
        _unseen(charger, sent_ns, arrived_ns)
    if timeline.outcome is Outcome.CANCELLED:
        _unseen(charger, arrived_ns, end_ns)
        return
    text_ns = timeline.ended.detokenized_ns if timeline.outcome is Outcome.FINISHED else None
    text_ns = max(arrived_ns, min(arrived_ns if text_ns is None else text_ns, end_ns))
    charger.gateway(State.DELIVER, Part.DETOKENIZE, arrived_ns, text_ns)
    charger.gateway(State.DELIVER, Part.SEND, text_ns, end_ns)


def charge_remote(book: Book, account: RemoteAccount, sent_ns: int, arrived_ns: int) -> None:
    """Charge [sent, arrived) of the gateway's time: what is added to `book` sums to its length."""
    node_ns = account.last_emission_ns - account.received_ns
    for one in account.parts:
        state, part = _STATES.get(one.state, State.RUN), _PARTS.get(one.part, Part.UNATTRIBUTED)
        reason = AT_NODE if state in _AROUND and not one.reason else one.reason
        book[state, reason, part, None] += one.ns
    book[State.RUN, AT_NODE, Part.UNATTRIBUTED, None] += node_ns - sum(
        one.ns for one in account.parts
    )
    wire_ns = arrived_ns - sent_ns - node_ns
    book[State.WIRE, CLOCK if wire_ns < 0 else "", Part.WIRE, None] += wire_ns


def _unseen(charger: Charger, begin_ns: int, end_ns: int) -> None:
    charger.plain(State.RUN, NotObserved.AT_NODE.value, Part.NOT_OBSERVED, begin_ns, end_ns)
