"""How much of the bodies that are being received is kept, of all connections together.

A body is kept until it is whole. `--max-body` bounds one, and `--max-connections` how many there
are; the product of both is more than a machine has. So beyond `RECEIVED_BYTES` a body is refused
while it comes (429). The first `FREE_BYTES` of each do not count: connections bound those, and a
few clients who send large bodies slowly must not keep everybody's short ones out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from service.gateway.http.http_errors import too_many_bodies

RECEIVED_BYTES = 256 * 1024 * 1024
"""Thirty-two bodies of the largest size that `--max-body` allows unless told otherwise."""
FREE_BYTES = 64 * 1024


class BodyMemoryBudget:
    """The memory budget of request bodies that are being received, of one process, on its event
    loop. A body is not refused while no other takes from the budget."""

    def __init__(self, most_bytes: int = RECEIVED_BYTES) -> None:
        self.used_bytes = 0
        self._most_bytes = most_bytes

    @contextmanager
    def place(self) -> Iterator[BodyReservation]:
        """The room that one body takes while it comes."""
        taken = BodyReservation(self)
        try:
            yield taken
        finally:
            self.used_bytes -= taken.used_bytes

    def has(self, more_bytes: int, of_others_bytes: int) -> bool:
        return not of_others_bytes or self.used_bytes + more_bytes <= self._most_bytes


class BodyReservation:
    """What one body takes."""

    def __init__(self, room: BodyMemoryBudget) -> None:
        self.used_bytes = 0
        self._room = room

    def grow(self, size_bytes: int) -> None:
        """The body has so many bytes now. Raises ApiError when there is no room for them."""
        more_bytes = max(0, size_bytes - FREE_BYTES) - self.used_bytes
        if more_bytes and not self._room.has(more_bytes, self._room.used_bytes - self.used_bytes):
            raise too_many_bodies()
        self._room.used_bytes += more_bytes
        self.used_bytes += more_bytes
