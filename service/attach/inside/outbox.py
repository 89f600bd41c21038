"""What waits for the sidecar: framed messages, at most so many bytes of them.

The oldest messages go first when there is no room, so that a sidecar that comes back hears what
happened just now. Used by the sending thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from service.attach.wire import (
    MAX_MESSAGE_BYTES,
    Batch,
    Message,
    SequenceName,
    Submitted,
    encode,
)
from telemetry.facts.records import Fact

Part = Fact | SequenceName | Submitted


class Outbox:
    """Urgent messages, then batches in order. `lost_facts` counts the facts that were lost since
    the start: `dropped_facts` here, `refused_facts` by the queue before this one."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._urgent: deque[bytes] = deque()
        self._frames: deque[tuple[bytes, int]] = deque()  # each with its number of facts
        self._bytes = 0
        self._sending: bytes | None = None  # a message of which a part may have been sent
        self._offset = 0
        self._sending_facts = self.dropped_facts = 0
        self.refused_facts = 0

    @property
    def lost_facts(self) -> int:
        return self.dropped_facts + self.refused_facts

    @property
    def is_empty(self) -> bool:
        return self._sending is None and not self._urgent and not self._frames

    def greet(self, messages: Sequence[Message]) -> None:
        """For a new connection: these first, then again all of a message that was sent in part.
        What was urgent on the last connection is among them."""
        if self._sending is not None and self._sending_facts:
            self._frames.appendleft((self._sending, self._sending_facts))
            self._bytes += len(self._sending)
        self._sending, self._offset = None, 0
        self._urgent.clear()
        for message in messages:
            self.put_urgent(message)

    def put_urgent(self, message: Message) -> None:
        """One message before all batches. There are few of them, so nothing bounds them."""
        frame = _framed(message)
        if frame is not None:
            self._urgent.append(frame)
        elif isinstance(message, Batch):
            self.dropped_facts += len(message.facts) + len(message.names)

    def put(self, parts: Sequence[Part], turn_ns: int | None) -> None:
        """Queue a batch. If it cannot be one message, its halves: what is wrong with one fact costs
        no other."""
        facts: list[Fact] = []
        names: list[SequenceName] = []
        submitted: list[Submitted] = []
        for part in parts:
            if isinstance(part, SequenceName):
                names.append(part)
            elif isinstance(part, Submitted):
                submitted.append(part)
            else:
                facts.append(part)
        frame = _framed(Batch(facts, names, submitted, self.lost_facts, turn_ns))
        if frame is not None:
            self._frames.append((frame, len(parts)))
            self._bytes += len(frame)
            self._keep_within_bounds()
        elif len(parts) == 1:
            self.dropped_facts += 1
        else:
            middle = len(parts) // 2
            self.put(parts[:middle], turn_ns)
            self.put(parts[middle:], turn_ns)

    def rest(self) -> memoryview:
        """What is to be sent next of the message that is being sent; empty: nothing waits."""
        if self._sending is None:
            if self._urgent:
                self._sending, self._sending_facts = self._urgent.popleft(), 0
            elif self._frames:
                self._sending, self._sending_facts = self._frames.popleft()
                self._bytes -= len(self._sending)
            else:
                return memoryview(b"")
        return memoryview(self._sending)[self._offset :]

    def sent(self, taken_bytes: int) -> None:
        """The socket took so many bytes of the rest."""
        assert self._sending is not None, "nothing was being sent"
        self._offset += taken_bytes
        if self._offset == len(self._sending):
            self._sending, self._offset = None, 0

    def _keep_within_bounds(self) -> None:
        while self._bytes > self._most_bytes and len(self._frames) > 1:
            frame, facts = self._frames.popleft()
            self._bytes -= len(frame)
            self.dropped_facts += facts


def _framed(message: Message) -> bytes | None:
    """None: it cannot be encoded, or is larger than a message may be."""
    try:
        frame = encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None
    return frame if len(frame) <= MAX_MESSAGE_BYTES else None
