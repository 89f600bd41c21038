"""Which requests of one gateway are open at one engine, counted alike at both ends. Pure.

A load report says how many requests of the gateway it contains (`LoadReport.received`) and how many
of their ends. Gateway and node count by the same rule, so the gateway knows what a report does not
contain without comparing clocks: a request is open from its first sequence until none is live and
either all have been sent or one was cancelled. Of more than MOST_OPEN the oldest counts as ended.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MOST_OPEN = 4096


@dataclass(slots=True)
class _Open:
    """`live` sequences have not ended, `to_come` were not sent yet."""

    to_come: int
    live: int = 0


class OpenRequests:
    """The open requests of one incarnation of an engine. `received`, `ended` and `choices_ended`
    (sequences that ended while their request went on) count since `restart`."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self.received = self.ended = self.choices_ended = 0

    def is_open(self, request_id: str) -> bool:
        return request_id in self._open

    def restart(self) -> None:
        """Another incarnation: nothing is open there."""
        self._open.clear()
        self.received = self.ended = self.choices_ended = 0

    def sent(self, request_id: str, sequences: int) -> str | None:
        """A sequence of a request of so many. Returns another request that counts as ended by it,
        because more than MOST_OPEN would be open; None: there is none."""
        given_up: str | None = None
        found = self._open.get(request_id)
        if found is None:
            found = self._open[request_id] = _Open(sequences)
            self.received += 1
            if len(self._open) > MOST_OPEN:  # or its gateway gave it up between two sequences
                given_up, _ = self._open.popitem(last=False)
                self.ended += 1
        found.live += 1
        found.to_come -= 1
        return given_up

    def over(self, request_id: str, was_cancelled: bool) -> bool:
        """A sequence has ended; whether its request has."""
        found = self._open.get(request_id)
        if found is None:
            return False
        found.live -= 1
        if found.live or (found.to_come > 0 and not was_cancelled):
            self.choices_ended += 1
            return False
        del self._open[request_id]
        self.ended += 1
        return True
