"""KV that comes from other engines, second by second, as the engine that decodes records it.

Facts of one node. Stamps of the other side are durations in its own clock, and only how long they
are is used (`telemetry.requests.kv_accounts`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from diagnosis.detection.counts import BUCKET_NS
from diagnosis.routed.thresholds import APART_TICKS, LEAST_PAST_TICKS, PAST_TICKS, WINDOW_TICKS
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvFault,
    KvLost,
    KvRefused,
    KvReleased,
    KvReserved,
    KvSealed,
    KvSplitChosen,
    KvVerified,
    Way,
)
from telemetry.facts.reasons import FactSource
from telemetry.facts.records import Fact, FactsLost
from telemetry.requests.kv_accounts import KvAccount, KvAccounts, KvPart

_KEPT = 65_536


@dataclass(slots=True)
class TransferCell:
    """Sums over some time. `parts_ns` and `bytes` are of the `whole` transfers, which brought what
    they were for; `regret_ns` is by how much `judged` of them took longer than computing here was
    predicted to, `worse` of them at all. `stranded_ns` is the time of blocks that nobody wants and
    that are not free, `reserved_ns` that of all that are in quarantine. `oldest_ns` is how long the
    oldest transfer has waited for its seal."""

    tried: int = 0
    refused: int = 0
    whole: int = 0
    elapsed_ns: int = 0
    parts_ns: Counter[KvPart] = field(default_factory=Counter)
    bytes: int = 0
    lost: Counter[KvFault] = field(default_factory=Counter)
    lost_ns: int = 0
    corrupt_blocks: int = 0
    judged: int = 0
    worse: int = 0
    regret_ns: int = 0
    stranded_ns: int = 0
    reserved_ns: int = 0
    oldest_ns: int = 0
    ticks: int = 0
    has_fault: bool = False

    def add(self, other: TransferCell) -> None:
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.parts_ns += other.parts_ns
        self.lost += other.lost
        self.oldest_ns = max(self.oldest_ns, other.oldest_ns)

    def each_ns(self, *parts: KvPart) -> float | None:
        """The mean of some parts of a whole transfer; None without one."""
        return sum(self.parts_ns[one] for one in parts) / self.whole if self.whole else None


_SUMMED = (
    "tried", "refused", "whole", "elapsed_ns", "bytes", "lost_ns", "corrupt_blocks", "judged",
    "worse", "regret_ns", "stranded_ns", "reserved_ns", "ticks",
)  # fmt: skip


@dataclass(slots=True)
class _Open:
    blocks: int
    reserved_ns: int
    sealed: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class TransferWindow:
    """The last seconds and the time before, empty without history; `blocks_total` of the engine."""

    now: TransferCell
    past: TransferCell | None
    blocks_total: int


class Transfers:
    """Takes facts in their order. `seen`: any was about a transfer."""

    def __init__(self) -> None:
        self.seen = self.seen_splits = False
        self._blocks_total = 0
        self._accounts = KvAccounts()
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._splits: OrderedDict[int, KvSplitChosen] = OrderedDict()
        self._cell = TransferCell()
        self._kept: deque[TransferCell] = deque(maxlen=PAST_TICKS + APART_TICKS + WINDOW_TICKS)
        self._tick_ns: int | None = None

    @property
    def live(self) -> int:
        return len(self._open) + self._accounts.open

    def take(self, fact: Fact) -> None:
        account = self._accounts.take(fact)
        if account is not None:
            self._ended(account)
        cell = self._cell
        match fact:
            case EngineStarted():
                self._blocks_total = fact.blocks_total
                self._forget()  # an engine before it ends nothing any more
            case FactsLost() if fact.source is FactSource.ENGINE:
                self._forget()  # their ends may be among them
            case KvReserved():
                self.seen = True
                cell.tried += 1
                self._open[fact.epoch] = _Open(fact.blocks, fact.at_ns)
                if len(self._open) > _KEPT:
                    self._open.popitem(last=False)
            case KvRefused():
                self.seen = True
                cell.tried += 1
                cell.refused += fact.why is KvFault.NO_ROOM
            case KvSealed():
                self._mark(fact.epoch, sealed=True)
            case KvLost():
                self._mark(fact.epoch, lost=True)
            case KvReleased() | KvAdmitted():
                self._open.pop(fact.epoch, None)
            case KvVerified():
                cell.corrupt_blocks += fact.corrupt_blocks
            case KvSplitChosen() if fact.way is Way.REMOTE:
                self.seen_splits = True
                self._splits[fact.seq_id] = fact
                if len(self._splits) > _KEPT:
                    self._splits.popitem(last=False)
            case _:
                pass

    def _forget(self) -> None:
        """Nothing is known of the transfers that were open."""
        self._accounts = KvAccounts()
        self._open.clear()
        self._splits.clear()

    def _mark(self, epoch: int, sealed: bool = False, lost: bool = False) -> None:
        one = self._open.get(epoch)
        if one is not None:
            one.sealed, one.lost = one.sealed or sealed, one.lost or lost

    def _ended(self, account: KvAccount) -> None:
        cell, split = self._cell, self._splits.pop(account.seq_id, None)
        if account.fault is not None:
            self._mark(account.epoch, lost=True)  # a sequence that was cancelled has no KvLost
            cell.lost[account.fault] += 1
            cell.lost_ns += account.elapsed_ns
            return
        cell.whole += 1
        cell.elapsed_ns += account.elapsed_ns
        cell.bytes += account.bytes
        for part, ns in account.parts.items():
            cell.parts_ns[part] += ns
        if split is not None:
            cell.judged += 1
            later_ns = account.elapsed_ns - split.local_ns - split.harm_ns
            cell.worse += later_ns > 0
            cell.regret_ns += max(0, later_ns)

    def end_tick(self, end_ns: int) -> None:
        """A tick is over."""
        cell = self._cell
        for one in self._open.values():
            cell.reserved_ns += one.blocks * BUCKET_NS
            cell.stranded_ns += one.blocks * BUCKET_NS if one.lost else 0
            if not one.sealed and not one.lost:
                cell.oldest_ns = max(cell.oldest_ns, end_ns - one.reserved_ns)
        cell.ticks = 1
        self._kept.append(cell)
        self._cell = TransferCell()

    def mark_fault(self) -> None:
        self._kept[-1].has_fault = True

    def window(self) -> TransferWindow:
        kept = list(self._kept)
        before = [one for one in kept[: -(WINDOW_TICKS + APART_TICKS)] if not one.has_fault]
        past = _summed(before) if len(before) >= LEAST_PAST_TICKS else None
        has_past = past is not None and past.whole > 0
        now = _summed(kept[-WINDOW_TICKS:])
        return TransferWindow(now, past if has_past else None, self._blocks_total)


def _summed(cells: Iterable[TransferCell]) -> TransferCell:
    total = TransferCell()
    for cell in cells:
        total.add(cell)
    return total
