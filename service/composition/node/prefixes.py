"""Which prefixes the node's engine holds, as each gateway is told. Pure.

The engine's process says what came and went, as digests of texts (`PrefixesHeld`). They stay here:
a gateway gets anchors, hashes under the fleet's key (`service.fleet.routing.anchors`), with its
load reports: all that are held with the first one, then what changed. Where more are held than one
report can say, it says the newest and does not say that these are all: the gateway keeps what it
knows of the others, and its own bound forgets those that are gone.
"""

from __future__ import annotations

from service.fleet.routing.anchors import anchor_of
from service.process.frames import PrefixesHeld
from telemetry.facts.fleet.routing_records import PrefixChanges

MOST_ANCHORS = 4096
"""That are said to be held in one report, and that are said to be gone: 36 KiB each."""
WHOLE_EACH = 256
"""Messages: what a gateway could not take is made good by then."""


class PrefixesHere:
    """What the engine holds, and a `PeerPrefixes` for each gateway."""

    def __init__(self, key: bytes) -> None:
        self._key = key[:64]
        self.held: dict[int, None] = {}
        self._peers: list[PeerPrefixes] = []

    def peer(self) -> PeerPrefixes:
        """For one gateway, until it is `gone`."""
        self._peers.append(found := PeerPrefixes(self))
        return found

    def gone(self, peer: PeerPrefixes) -> None:
        self._peers.remove(peer)

    def take(self, news: PrefixesHeld) -> None:
        """The engine says what it holds."""
        added = [anchor_of(digest, self._key) for digest in news.added]
        removed = [anchor_of(digest, self._key) for digest in news.removed]
        if news.whole:
            self.restart()
        for anchor in removed:
            self.held.pop(anchor, None)
        self.held.update(dict.fromkeys(added))
        for peer in self._peers:
            peer.changed(removed)
            peer.changed(added)

    def restart(self) -> None:
        """Another engine: it holds nothing that is known."""
        self.held.clear()
        for peer in self._peers:
            peer.restart()


class PeerPrefixes:
    """What one gateway has not been told. Bounded: beyond `MOST_ANCHORS` the next message has the
    newest ones that are held, and is whole if these are all."""

    def __init__(self, here: PrefixesHere) -> None:
        self._here = here
        self._changed: dict[int, None] = {}
        self._is_whole = True
        self._number = 0

    def restart(self) -> None:
        """Tell all with the next message, as far as it goes."""
        self._changed.clear()
        self._is_whole = True

    def changed(self, anchors: list[int]) -> None:
        """These came or went."""
        if not self._is_whole:
            self._changed.update(dict.fromkeys(anchors))
            if len(self._changed) > MOST_ANCHORS:
                self.restart()

    def take(self) -> PrefixChanges | None:
        """What to tell now; None: nothing is new."""
        tells_all = self._is_whole or (bool(self._changed) and self._number % WHOLE_EACH == 0)
        if not tells_all and not self._changed:
            return None
        self._number += 1
        held, changed, self._changed, self._is_whole = self._here.held, self._changed, {}, False
        added = [one for one in changed if one in held]
        removed = [one for one in changed if one not in held]
        if tells_all:
            added = list(held)[-MOST_ANCHORS:]  # what came last is among them
        if tells_all and len(added) == len(held):
            return PrefixChanges(self._number, True, tuple(added))
        return PrefixChanges(self._number, False, tuple(added), tuple(removed))
