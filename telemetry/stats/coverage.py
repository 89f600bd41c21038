"""How much of requests' time is observed: all of it with our own engine, less with an attached one.

The sums are over requests whose ledger is complete, of any outcome. Shares are of each request's
own end-to-end time, and are counted in steps of 0.01 %, so a percentile is never below the true
one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from telemetry.facts.engine_records import OWN_ENGINE, EngineStarted
from telemetry.facts.records import Fact
from telemetry.numbers.quantiles import rank
from telemetry.requests.account import NotObserved
from telemetry.requests.phases import RequestTimeline

_STEPS = 10_000  # 0.01 %


class Share(msgspec.Struct, frozen=True):
    """A share of requests' time, 0 to 1: of all of it together, and of single requests."""

    of_all: float
    p50: float
    p99: float


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """What was not observed of `requests` ended requests, which took `e2e_ns` in all: in ns by
    reason, and as shares, by reason and together (`share`); None before the first request.
    `core_only` of them are known from the engine core alone: nothing observes their front end, so
    their time begins and ends there. `unobserved` is what the adapter of an attached engine cannot
    see inside the engine."""

    engine: str = ""
    engine_version: str = ""
    unobserved: tuple[str, ...] = ()
    requests: int = 0
    core_only: int = 0
    e2e_ns: int = 0
    not_observed_ns: dict[str, int] = {}
    share: Share | None = None
    shares: dict[str, Share] = {}

    @property
    def is_attached(self) -> bool:
        """Whether the engine is not our own."""
        return self.engine not in ("", OWN_ENGINE)


class CoverageFold:
    """Counts each ended request, and follows which engine runs."""

    def __init__(self) -> None:
        self._started: EngineStarted | None = None
        self._requests = self._core_only = self._e2e_ns = 0
        self._spent_ns = dict.fromkeys([one.value for one in NotObserved], 0)
        self._shares = {name: array("Q", bytes(8 * (_STEPS + 1))) for name in ("", *self._spent_ns)}

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, EngineStarted):
                self.started(fact)

    def started(self, fact: EngineStarted) -> None:
        """Another engine runs from now on."""
        self._started = fact

    def on_timeline(self, timeline: RequestTimeline) -> None:
        if timeline.account is None or timeline.is_incomplete or timeline.e2e_ns <= 0:
            return
        ledger = timeline.account.ledger
        found = ledger.by_not_observed()
        self._requests += 1
        self._core_only += timeline.account.is_core_only
        self._e2e_ns += ledger.e2e_ns
        for reason, spent_ns in found.items():
            self._spent_ns[reason] += spent_ns
        for name, shares in self._shares.items():
            spent_ns = found[name] if name else found.total()
            step = -(-_STEPS * spent_ns // ledger.e2e_ns)
            shares[min(step, _STEPS)] += 1  # within drift a node says more than passed here

    def report(self) -> Coverage:
        started = self._started
        return Coverage(
            engine="" if started is None else started.engine,
            engine_version="" if started is None else started.engine_version,
            unobserved=() if started is None else started.unobserved,
            requests=self._requests,
            core_only=self._core_only,
            e2e_ns=self._e2e_ns,
            not_observed_ns=dict(self._spent_ns),
            share=self._share("", sum(self._spent_ns.values())),
            shares={
                reason: share
                for reason, spent_ns in self._spent_ns.items()
                if (share := self._share(reason, spent_ns)) is not None
            },
        )

    def _share(self, name: str, spent_ns: int) -> Share | None:
        if not self._requests:
            return None
        of_all = min(1.0, spent_ns / self._e2e_ns)
        return Share(of_all, self._quantile(name, 0.5), self._quantile(name, 0.99))

    def _quantile(self, name: str, q: float) -> float:
        """A quantile of the shares, 0 to 1, by nearest rank."""
        left = rank(q, self._requests)
        for step, count in enumerate(self._shares[name]):
            left -= count
            if left <= 0:
                return step / _STEPS
        return 1.0
