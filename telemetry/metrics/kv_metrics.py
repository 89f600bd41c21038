"""Counts what one engine sends to others and gets from them, and how fast that goes.

Takes the engine's facts in their order, and of a node also KvSplitChosen, before the sequence is
submitted. What an engine that has ended held is forgotten, and what was open when facts of it were
lost: the end may be among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from telemetry.facts.engine_records import EngineStarted, SequenceEnded, StepRecorded
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvChunkPushed,
    KvHeld,
    KvLinkEnded,
    KvLinkOpened,
    KvLost,
    KvPromptTaken,
    KvRefused,
    KvReleased,
    KvReserved,
    KvSealed,
    KvSplitChosen,
    KvStagingFull,
    KvVerified,
    KvWayAgreed,
)
from telemetry.facts.reasons import FactSource
from telemetry.facts.records import EngineDied, Fact, FactsLost
from telemetry.metrics.catalog import kv_transfer as catalog
from telemetry.metrics.metric import Metric
from telemetry.requests.kv_accounts import KvAccounts, KvPart
from telemetry.requests.split_regret import SplitRegret

Family = tuple[Metric, list[tuple[dict[str, str], float]]]
_NEW_SHARE = 0.25
_OPENED = "opened"


class KvRates:
    """Means that follow what was measured last; None before the first."""

    def __init__(self) -> None:
        self.bytes_per_ns: float | None = None
        self.digest_byte_ns: float | None = None

    def pushed(self, size: int, took_ns: int) -> None:
        if size and took_ns > 0:
            self.bytes_per_ns = _mean(self.bytes_per_ns, size / took_ns)

    def verified(self, size: int, took_ns: int) -> None:
        if size and took_ns > 0:
            self.digest_byte_ns = _mean(self.digest_byte_ns, took_ns / size)


class KvMetrics:
    """Belongs to one thread; `families` may be asked by any."""

    def __init__(self) -> None:
        self.rates = KvRates()
        self._accounts = KvAccounts()
        self._regret = SplitRegret()
        self._transfers: Counter[str] = Counter()
        self._prompts: Counter[str] = Counter()
        self._taken: dict[int, int] = {}  # epoch by sequence
        self._bytes: Counter[str] = Counter()
        self._spent_ns: Counter[KvPart] = Counter()
        self._hidden_ns = self._corrupt = self._staging_full = 0
        self._reserved: dict[int, int] = {}  # blocks by epoch
        self._held: dict[int, int] = {}
        self._sealed: dict[int, KvSealed] = {}
        self._links: Counter[str] = Counter()
        self._splits: Counter[str] = Counter()
        self._regret_ns: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """Transfers and prompts in the books; zero when all have ended."""
        blocks = len(self._reserved) + len(self._held)
        folds = self._accounts.open + self._regret.open
        return blocks + len(self._sealed) + len(self._taken) + folds

    def take(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, StepRecorded) and not self._regret.open:
                continue
            self._take(fact)
            for outcome in self._regret.take(fact):
                self._regret_ns[outcome.way.value] += outcome.regret_ns
            account = self._accounts.take(fact)
            if account is not None:
                self._spent_ns.update(account.parts)
                if account.fault is not None and isinstance(fact, SequenceEnded):
                    self._transfers[account.fault.value] += 1  # it has no KvLost
                self._hidden_ns += account.hidden_ns

    def _take(self, fact: Fact) -> None:
        match fact:
            case EngineStarted() | EngineDied():
                self._forget()
            case FactsLost() if fact.source is FactSource.ENGINE:
                self._forget()
            case KvReserved():
                self._reserved[fact.epoch] = fact.blocks
            case KvAdmitted():
                self._transfers["admitted"] += 1
                self._reserved.pop(fact.epoch, None)
            case KvRefused():
                self._transfers[fact.why.value] += 1
            case KvLost():
                self._transfers[fact.why.value] += 1
                self._sealed.pop(fact.epoch, None)
            case KvHeld():
                self._held[fact.epoch] = fact.blocks
            case KvReleased():
                self._reserved.pop(fact.epoch, None)
                self._held.pop(fact.epoch, None)
                self._sealed.pop(fact.epoch, None)
            case KvChunkPushed():
                self._bytes["sent"] += fact.bytes
                self.rates.pushed(fact.bytes, fact.at_ns - fact.begin_ns)
            case KvSealed():
                self._bytes["received"] += fact.bytes
                self._sealed[fact.epoch] = fact
            case KvVerified():
                self._verified(fact)
            case KvPromptTaken():
                self._taken[fact.seq_id] = fact.epoch
            case SequenceEnded() if fact.seq_id in self._taken:
                held = self._taken.pop(fact.seq_id) in self._held
                self._prompts["computed" if held else fact.reason.value] += 1
            case KvStagingFull():
                self._staging_full += fact.pushes
            case KvLinkOpened():
                self._links[_OPENED] += 1
            case KvWayAgreed():
                self._links["over_tcp" if fact.why else f"over_{fact.mover}"] += 1
            case KvLinkEnded():
                self._links[fact.why.value] += fact.count
            case KvSplitChosen():
                self._splits[fact.way.value] += 1
            case _:
                pass

    def _verified(self, fact: KvVerified) -> None:
        self._corrupt += fact.corrupt_blocks
        sealed = self._sealed.pop(fact.epoch, None)
        if sealed is not None:
            self.rates.verified(sealed.bytes, fact.at_ns - sealed.at_ns)

    def _forget(self) -> None:
        self._accounts, self._regret = KvAccounts(), SplitRegret()
        for known in (self._reserved, self._held, self._sealed, self._taken):
            known.clear()

    def families(self) -> Iterator[Family]:
        yield catalog.TRANSFERS, _labelled("result", self._transfers)
        yield catalog.PROMPTS, _labelled("result", self._prompts)
        yield catalog.BYTES, _labelled("direction", self._bytes, "sent", "received")
        seconds = {part.value: self._spent_ns[part] / 1e9 for part in KvPart}
        yield catalog.SECONDS, [({"part": part}, value) for part, value in seconds.items()]
        yield catalog.HIDDEN_SECONDS, [({}, self._hidden_ns / 1e9)]
        yield catalog.CORRUPT, [({}, float(self._corrupt))]
        yield catalog.QUARANTINED, [({}, float(sum(list(self._reserved.values()))))]
        yield catalog.HELD, [({}, float(sum(list(self._held.values()))))]
        yield catalog.STAGING_FULL, [({}, float(self._staging_full))]
        yield catalog.LINKS, _labelled("event", self._links, _OPENED)
        yield catalog.SPLITS, _labelled("way", self._splits, "local", "remote")
        regret = {way: self._regret_ns[way] / 1e9 for way in ("local", "remote")}
        yield catalog.REGRET_SECONDS, [({"way": way}, value) for way, value in regret.items()]


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + _NEW_SHARE * (now - before)


def _labelled(label: str, counts: Counter[str], *always: str) -> list[tuple[dict[str, str], float]]:
    values = dict.fromkeys(always, 0) | dict(counts)
    return [({label: value}, float(count)) for value, count in values.items()]
