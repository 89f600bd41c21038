"""The engine's own names of sequences meet the requests of the front end, in either order.

Both sides are bounded: where one does not come, the oldest that wait are forgotten and counted.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from service.attach.wire import Submitted
from telemetry.facts.records import SequenceSubmitted

MOST_WAITING = 65_536


class Joined(NamedTuple):
    """A sequence has met its request, which `who` has: a front end."""

    fact: SequenceSubmitted
    who: object


class Joining:
    """`joined` are the sequences that a request of the front end owns and that are live."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self.dropped = 0
        self.joined: set[int] = set()
        self._most_waiting = most_waiting
        self._names: dict[str, int] = {}  # the core has named them, no request has come
        self._name_of: dict[int, str] = {}  # of the same
        self._submitted: dict[str, tuple[Submitted, object]] = {}  # the core has not named them
        self._unnamed: Counter[tuple[object, str]] = Counter()  # how many of these a request has

    def named(self, seq_id: int, name: str) -> Joined | None:
        """The core knows `name` as `seq_id`; it may say so again."""
        if seq_id in self.joined:
            return None
        found = self._take(name)
        if found is None:
            self._names[name], self._name_of[seq_id] = seq_id, name
            self._bound_names()
            return None
        return self._join(*found, seq_id)

    def submitted(self, submitted: Submitted, who: object) -> Joined | None:
        """The front end `who` has handed a sequence to the core."""
        seq_id = self._names.pop(submitted.name, None)
        if seq_id is not None:
            self._name_of.pop(seq_id, None)
            return self._join(submitted, who, seq_id)
        self._take(submitted.name)
        self._submitted[submitted.name] = submitted, who
        self._unnamed[who, submitted.request_id] += 1
        if len(self._submitted) > self._most_waiting:
            self._take(next(iter(self._submitted)))
            self.dropped += 1
        return None

    def is_unnamed(self, request_id: str, who: object) -> bool:
        """Whether the core has not named all sequences of a request of `who` yet."""
        return (who, request_id) in self._unnamed

    def name_of(self, seq_id: int) -> str | None:
        """The name of a sequence that no request owns (yet)."""
        return self._name_of.get(seq_id)

    def forget(self, seq_id: int) -> None:
        """The sequence has ended."""
        self.joined.discard(seq_id)
        name = self._name_of.pop(seq_id, None)
        if name is not None and self._names.get(name) == seq_id:
            del self._names[name]

    def _take(self, name: str) -> tuple[Submitted, object] | None:
        """What waits for this name does not wait any more."""
        found = self._submitted.pop(name, None)
        if found is not None:
            submitted, who = found
            request = who, submitted.request_id
            self._unnamed[request] -= 1
            if not self._unnamed[request]:
                del self._unnamed[request]
        return found

    def _join(self, submitted: Submitted, who: object, seq_id: int) -> Joined:
        self.joined.add(seq_id)
        request_id, at_ns, choice = submitted.request_id, submitted.at_ns, submitted.choice
        return Joined(SequenceSubmitted(request_id, at_ns, seq_id, choice), who)

    def _bound_names(self) -> None:
        if len(self._names) > self._most_waiting:
            name = next(iter(self._names))
            self._name_of.pop(self._names.pop(name), None)
            self.dropped += 1
