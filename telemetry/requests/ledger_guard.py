"""The ledger as the phase fold uses it: one that raises is detached, and the fold goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from telemetry.facts.reasons import Outcome
from telemetry.facts.records import Fact
from telemetry.pump.isolation import Isolation
from telemetry.requests.account import Account
from telemetry.requests.phases import RequestTimeline


class LedgerSource(Protocol):
    """What builds accounts; `telemetry.ledger.builder.LedgerBuilder` is the one in use."""

    def take(self, fact: Fact) -> None: ...

    def build(self, timeline: RequestTimeline) -> Account | None: ...


class LedgerGuard:
    """Calls a ledger source until it raises once; from then on timelines have no account.

    It is not called again because what it knows of the other requests may be incomplete. Without
    `isolation` the exception is raised.
    """

    def __init__(self, source: LedgerSource, isolation: Isolation | None) -> None:
        self._source = source
        self._isolation = isolation
        self._is_detached = False

    def take(self, fact: Fact) -> None:
        if self._is_detached:
            return
        try:
            self._source.take(fact)
        except Exception as error:
            self._failed(error)

    def with_account(self, timeline: RequestTimeline) -> RequestTimeline:
        """The timeline with its account; without one if the request's end was lost, because its
        length is then unknown."""
        if self._is_detached:
            return timeline
        try:
            account = self._source.build(timeline)
        except Exception as error:
            self._failed(error)
            return timeline
        is_known = timeline.outcome is not Outcome.LOST
        return replace(timeline, account=account) if is_known else timeline

    def _failed(self, error: Exception) -> None:
        if self._isolation is None:
            raise error
        self._is_detached = True
        self._isolation.failed("ledger", error, is_detached=True)
