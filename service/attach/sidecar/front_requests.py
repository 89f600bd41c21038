"""The live requests of all front ends, each under an id that no other one has here.

A client chooses the id of its request, and each front end looks only after its own: a proxy that
tries again at another one sends the same id twice. The later of two live requests gets another id
here, and so do all its facts. Facts are looked at in the order of their stamps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from msgspec.structs import replace

from telemetry.facts.records import (
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestsListed,
    RequestTokenized,
    SequenceSubmitted,
)

_ID_CHARACTERS = 128
OfRequest = RequestParsed | RequestTokenized | SequenceSubmitted | RequestEnded


class FrontRequests:
    """`live` has the front end of each request, by the id that it has here."""

    def __init__(self) -> None:
        self.live: dict[str, object] = {}
        self._new_ids: dict[tuple[object, str], str] = {}  # by front end and the client's id
        self._theirs: dict[str, tuple[object, str]] = {}  # the same, by the id here

    def accept(self, fact: RequestAccepted, who: object) -> RequestAccepted:
        """A front end has a new request."""
        theirs = who, fact.request_id
        request_id = self._new_ids.get(theirs)  # one whose end was lost has it
        if request_id is None and self.live.get(fact.request_id, who) != who:
            request_id = self._new_ids[theirs] = _other_id(fact, who)
            self._theirs[request_id] = theirs
        if request_id is not None:
            fact = replace(fact, request_id=request_id)
        self.live[fact.request_id] = who
        return fact

    def known(self, fact: OfRequest, who: object) -> OfRequest | None:
        """The fact with the id that its request has here. None: the request of that id is not of
        this front end, whose own was never heard of or has ended."""
        new_id = self._new_ids.get((who, fact.request_id))
        if new_id is not None:
            return replace(fact, request_id=new_id)
        return fact if self.live.get(fact.request_id, who) == who else None

    def end(self, request_id: str) -> None:
        """The request with this id here is over."""
        self.live.pop(request_id, None)
        theirs = self._theirs.pop(request_id, None)
        if theirs is not None:
            del self._new_ids[theirs]

    def end_all(self, who: object, but: Collection[str] = ()) -> list[str]:
        """All requests of a front end are over but these; the ids of those that are."""
        over = [one for one, owner in self.live.items() if owner == who and one not in but]
        for request_id in over:
            self.end(request_id)
        return over

    def listed(self, fact: RequestsListed, who: object) -> RequestsListed:
        """One front end lists what it serves: with what the others serve, it is a list of all."""
        ids = [self._new_ids.get((who, one), one) for one in fact.request_ids]
        self.end_all(who, frozenset(ids))
        others = [one for one, owner in self.live.items() if owner != who]
        return replace(fact, request_ids=(*ids, *others))


def _other_id(fact: RequestAccepted, who: object) -> str:
    """One that is as good as the client's, which it begins with."""
    text = f"{who} {fact.request_id} {fact.at_ns}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{fact.request_id[: _ID_CHARACTERS - len(digest) - 1]}-{digest}"
