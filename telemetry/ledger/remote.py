"""Charges the time of a sequence at a node of the fleet: the node's own parts, and the wire.

    sent                                                     arrived
      +--wire_out--+--- the node's entries ---+--wire_back--+

The node's entries are durations of its clock. What is left of the time here is the wire: `wire` as
a whole, or there and back where the offset of the clocks is bounded (`telemetry.clocks`). So they
add up to the time here exactly. What a node says in words that this ledger does not have is not
observed here.
"""

from __future__ import annotations

from telemetry.clocks.boundaries import RemoteSpan
from telemetry.facts.fleet_records import RemotePart
from telemetry.ledger.charging import Charger
from telemetry.requests.account import NotObserved, Part, State

_STATES = {state.value: state for state in State}
_PARTS = {part.value: part for part in Part}
_NOT_OBSERVED = frozenset(reason.value for reason in NotObserved)
NODE = "node"
_NO_REASON = NotObserved.REMOTE.value


def charge_remote(charger: Charger, remote: RemoteSpan, begin_ns: int, end_ns: int) -> None:
    """Charge [begin, end). Where that is less than [sent, arrived), because the request ended
    before the node's last output came, the node's account is of more than the request."""
    is_cut = (begin_ns, end_ns) != (remote.sent_ns, remote.arrived_ns)
    if is_cut or remote.remote_ns is None or remote.wire_ns is None:
        charger.plain(State.REMOTE, _NO_REASON, Part.NOT_OBSERVED, begin_ns, end_ns)
        return
    if remote.parts:
        for part in remote.parts:
            _charge_part(charger, part)
    else:
        charger.amount(State.REMOTE, _NO_REASON, Part.NOT_OBSERVED, remote.remote_ns)
    if remote.split is None:
        charger.amount(State.REMOTE, "", Part.WIRE, remote.wire_ns)
    else:
        charger.amount(State.REMOTE, "", Part.WIRE_OUT, remote.split.out_ns)
        charger.amount(State.REMOTE, "", Part.WIRE_BACK, remote.split.back_ns)


def _charge_part(charger: Charger, said: RemotePart) -> None:
    state, part = _STATES.get(said.state), _PARTS.get(said.part)
    if state is None or part is None:
        charger.amount(State.REMOTE, _NO_REASON, Part.NOT_OBSERVED, said.ns)
        return
    reason = said.reason
    if not reason and state in (State.INGEST, State.DELIVER):
        reason = NODE  # what the gateway does itself has the same words
    if part is Part.NOT_OBSERVED and reason not in _NOT_OBSERVED:
        reason = _NO_REASON  # the reasons are labels of a metric
    charger.amount(state, reason, part, said.ns, said.payer)
