"""What the node's ledger says of a sequence, for the gateway that sent it.

The ledger is drawn up by the pump's thread; the account is sent by the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from telemetry.facts.fleet.sequence_records import MOST_PARTS, RemoteAccount, RemotePart
from telemetry.requests.account import Part, State
from telemetry.requests.phases import RequestTimeline

_MOST_WAITING = 8192
Send = Callable[[RemoteAccount | None], None]


def account_of(timeline: RequestTimeline) -> RemoteAccount | None:
    """The ledger's entries, which add up to the time from the submit's arrival to the last emission
    that the gateway counts; None without a ledger. Payers are left out: other gateways' requests
    are not this one's business."""
    if timeline.account is None:
        return None
    merged: dict[tuple[str, str, str], int] = {}
    for entry in timeline.account.ledger.entries:
        key = (entry.state.value, entry.part.value, entry.reason)
        if key not in merged and len(merged) >= MOST_PARTS - 1:
            key = (State.RUN.value, Part.UNATTRIBUTED.value, "")
        merged[key] = merged.get(key, 0) + entry.ns
    return RemoteAccount(
        received_ns=timeline.accepted.at_ns,
        last_emission_ns=timeline.ended.at_ns,
        parts=tuple(
            RemotePart(part=part, ns=ns, state=state, reason=reason)
            for (state, part, reason), ns in merged.items()
        ),
        first_emission_ns=timeline.ended.first_sent_ns,
    )


class Accounts:
    """Whose accounts gateways wait for: by request id of the node, and when its submit was read,
    because an id is free again before the account of who had it is there. The event loop adds, the
    pump's thread takes; a dict's own operations are atomic."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[tuple[str, int], Send] = {}

    def expect(self, request_id: str, received_ns: int, send: Send) -> None:
        """Call `send` on the event loop when the account of the request that was accepted at
        `received_ns` is known."""
        self._waiting[request_id, received_ns] = send
        if len(self._waiting) > _MOST_WAITING:  # nothing is recorded, for example
            oldest = self._waiting.pop(next(iter(self._waiting)), None)
            if oldest is not None:
                oldest(None)

    def on_timeline(self, timeline: RequestTimeline) -> None:
        """A listener of the phase fold."""
        accepted = timeline.accepted
        send = self._waiting.pop((accepted.request_id, accepted.at_ns), None)
        if send is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the node has ended
                self._loop.call_soon_threadsafe(send, account_of(timeline))
