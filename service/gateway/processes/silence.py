"""Finds gateway processes that hang: those that are silent while the main process looks.

Only time that the main process has observed counts, and what has come is read before it is judged:
a main process that was paused finds the messages of that time in its sockets, and has not seen
what it did not look at. So its own pause is not taken for a hang of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from service.gateway.processes.peer import Peer
from telemetry.facts.clock import Clock

LOOK_NS = 500_000_000
"""Time between two looks; a late look counts as two."""
SILENT_NS = 10_000_000_000
"""A process that has sent nothing for so long hangs: forty beats are missing."""
START_NS = 120_000_000_000
"""A process that does not take connections after so long hangs in its start."""
_LATE_LOOKS = 2


def is_overdue(is_ready: bool, silent_ns: int) -> bool:
    """Whether a process that has been silent for so long, since its start or its last message, is
    to be replaced."""
    return silent_ns > (SILENT_NS if is_ready else START_NS)


class SilenceWatch:
    """To be asked every `LOOK_NS`; `read` takes what peers have sent."""

    def __init__(self, clock: Clock, read: Callable[[Sequence[Peer]], None]) -> None:
        self._clock = clock
        self._read = read
        self._looked_ns = clock.now_ns()

    def overdue(self, peers: Sequence[Peer]) -> list[Peer]:
        """The processes that are to be replaced; their silence begins anew."""
        now_ns = self._clock.now_ns()
        passed_ns = min(now_ns - self._looked_ns, _LATE_LOOKS * LOOK_NS)
        self._looked_ns = now_ns
        for peer in peers:
            peer.silent_ns += passed_ns
        self._read(peers)
        found = [peer for peer in peers if is_overdue(peer.is_ready, peer.silent_ns)]
        for peer in found:
            peer.silent_ns = 0
        return found
