"""The ledger as the phase fold asks for it: one that fails costs the ledger, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from telemetry.facts.isolation import Isolation
from telemetry.facts.reasons import Outcome
from telemetry.facts.records import Fact
from telemetry.requests.account import Account
from telemetry.requests.phases import RequestTimeline


class Ledger(Protocol):
    """What draws up accounts: `telemetry.ledger.accountant`."""

    def take(self, fact: Fact) -> None: ...

    def account(self, timeline: RequestTimeline) -> Account | None: ...


class Accounts:
    """The accountant behind its guard: what it raises costs the accounts of this run, no more."""

    def __init__(self, accountant: Ledger, isolation: Isolation | None) -> None:
        self._accountant = accountant
        self._isolation = isolation
        self._is_detached = False

    def take(self, fact: Fact) -> None:
        if self._is_detached:
            return
        try:
            self._accountant.take(fact)
        except Exception as error:
            self._failed(error)

    def draw_up(self, timeline: RequestTimeline) -> RequestTimeline:
        """With its account; without one where the end was lost, for then its length was too."""
        if self._is_detached:
            return timeline
        try:
            account = self._accountant.account(timeline)
        except Exception as error:
            self._failed(error)
            return timeline
        is_known = timeline.outcome is not Outcome.LOST
        return replace(timeline, account=account) if is_known else timeline

    def _failed(self, error: Exception) -> None:
        if self._isolation is None:
            raise error
        self._is_detached = True  # what it knows of the others may be half of it
        self._isolation.failed("ledger", error, is_detached=True)
