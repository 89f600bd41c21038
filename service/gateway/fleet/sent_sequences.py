"""The sequences that a gateway has at engines elsewhere: live ones, and those that have ended and
whose account has not come yet. What an engine says of another one's sequence names none.

They are listed in the gateway's facts as an engine lists its own in its process' facts, so that
folds can find sequences whose end was lost."""

from __future__ import annotations

from collections.abc import Iterable

from service.gateway.fleet.link import EngineLink
from service.gateway.fleet.sent_sequence import SentSequence
from service.process.live_sequences import SequenceLister
from telemetry.facts.clock import Clock
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact

_ACCOUNT_NS = 1_500_000_000
"""How long the account of an ended sequence is waited for."""


class SentSequences:
    """This gateway's sequences at engine nodes, by sequence id."""

    def __init__(self, clock: Clock) -> None:
        self._live: dict[int, SentSequence] = {}
        self._ending: dict[int, SentSequence] = {}
        self._lister = SequenceLister(clock)
        self._lost_before = 0

    def begun(self, remote: SentSequence) -> None:
        """A sequence is sent next."""
        self._live[remote.seq_id] = remote
        self._lister.note_submitted(remote.seq_id)

    def listed(self, facts_lost: int) -> list[Fact]:
        """The list of them, if one is due: once a minute, and after facts were lost. `facts_lost`
        counts those of the gateway so far, a list that found no room among them."""
        after_gap, self._lost_before = facts_lost != self._lost_before, facts_lost
        return self._lister.due((), (*self._live, *self._ending), after_gap)

    def live(self, seq_id: int) -> SentSequence | None:
        """A sequence that has not ended."""
        return self._live.get(seq_id)

    def at(self, link: EngineLink, seq_id: int) -> SentSequence | None:
        """A sequence that has not ended, if it is there."""
        remote = self._live.get(seq_id)
        return None if remote is None or remote.link is not link else remote

    def all_at(self, link: EngineLink) -> list[SentSequence]:
        """The sequences at this engine that have not ended."""
        return [one for one in self._live.values() if one.link is link]

    def ended(self, remote: SentSequence, reason: EndReason, at_ns: int) -> None:
        """Nothing more will come of a sequence but its account."""
        del self._live[remote.seq_id]
        remote.over(reason, at_ns)
        remote.ended_ns = at_ns
        self._ending[remote.seq_id] = remote

    def accounted(self, link: EngineLink, seq_id: int) -> SentSequence | None:
        """The account of a sequence there has come; None: nobody waits for it."""
        remote = self._ending.get(seq_id)
        return None if remote is None or remote.link is not link else self._ending.pop(seq_id)

    def without_account(self, link: EngineLink) -> list[SentSequence]:
        """The sequences that ended at this engine and whose accounts will not come."""
        return self._given_up(one for one in self._ending.values() if one.link is link)

    def overdue(self, now_ns: int) -> list[SentSequence]:
        """The sequences whose accounts have not come in time, counted from their ends."""
        edge_ns = now_ns - _ACCOUNT_NS
        return self._given_up(one for one in self._ending.values() if one.ended_ns < edge_ns)

    def _given_up(self, remotes: Iterable[SentSequence]) -> list[SentSequence]:
        found = list(remotes)
        for remote in found:
            del self._ending[remote.seq_id]
        return found
