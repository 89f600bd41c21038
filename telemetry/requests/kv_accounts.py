"""Folds facts into what a sequence waited for while another engine computed its prompt.

The account of one transfer is a window in the clock of the engine that decodes: from the moment
that it queued the sequence to the moment that it has its place in the batch. It is cut into parts
that sum to it:

    kv.reserve    until its blocks were reserved
    kv.queue      the other engine: before and between the steps that computed the prompt
    kv.prefill    the other engine: those steps
    kv.transfer   the other engine: blocks on their way, and nothing of it computed (exposed)
    kv.wire       the rest of the time between reservation and seal: messages on their way
    kv.seal       blocks compared with the digests of the seal
    kv.wait       for a place in the batch
    kv.lost       after the reservation, where the blocks did not come or were not right

The other engine measures its parts in its own clock, and only how long they are is used: the wire
is the difference. A negative one says that a clock is wrong; it is shown as it is.

A transfer whose reservation is not known has no account: its fact was lost, and with it where the
wire begins. Where facts of the engine were lost nothing is known of the transfers that were open.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from telemetry.facts.engine_records import SequenceAdmitted, SequenceEnded, SequenceQueued
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvFault,
    KvLost,
    KvRefused,
    KvReserved,
    KvSealed,
)
from telemetry.facts.reasons import FactSource
from telemetry.facts.records import Fact, FactsLost

KvSequenceFact = KvReserved | KvSealed | KvAdmitted | KvRefused | KvLost


class KvPart(StrEnum):
    """The parts of a transfer's time."""

    RESERVE = "kv.reserve"
    QUEUE = "kv.queue"
    PREFILL = "kv.prefill"
    TRANSFER = "kv.transfer"
    WIRE = "kv.wire"
    SEAL = "kv.seal"
    WAIT = "kv.wait"
    LOST = "kv.lost"


class KvAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of one transfer went. `hidden_ns` of the transfer went on below computing, and
    are no part. `fault` says why its blocks were not used; None: they were. It may have ended
    before: then the last part is what it was in."""

    seq_id: int
    epoch: int
    begin_ns: int
    end_ns: int
    parts: dict[KvPart, int]
    blocks: int = 0
    bytes: int = 0
    hidden_ns: int = 0
    fault: KvFault | None = None

    @property
    def elapsed_ns(self) -> int:
        return self.end_ns - self.begin_ns


class KvSpan(msgspec.Struct, frozen=True):
    """A part as a span, in the clock of the engine that decodes."""

    name: str
    begin_ns: int
    end_ns: int
    attributes: dict[str, int | float]


class _Open(msgspec.Struct):
    """A transfer that is not over. `cuts` are (part that begins, when)."""

    queued: SequenceQueued
    cuts: list[tuple[KvPart, int]]
    reserved: KvReserved | None = None
    sealed: KvSealed | None = None


class KvAccounts:
    """Takes facts in their order; gives an account when a transfer is over."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}

    @property
    def open(self) -> int:
        """Transfers that are not over."""
        return len(self._open)

    def forget(self, seq_id: int) -> None:
        """The sequence is known no more."""
        self._open.pop(seq_id, None)

    def take(self, fact: Fact) -> KvAccount | None:
        """The account of the transfer that the fact ends; None if it ends none, or one of which
        too little is known."""
        if isinstance(fact, SequenceQueued):
            if fact.receives_kv:
                self._open[fact.seq_id] = _Open(fact, [(KvPart.RESERVE, fact.at_ns)])
            return None
        if isinstance(fact, FactsLost):
            if fact.source is FactSource.ENGINE:
                self._open.clear()  # their ends may be among them
            return None
        seq_id = getattr(fact, "seq_id", None)
        one = None if seq_id is None else self._open.get(seq_id)
        return None if one is None else self._step(one, fact)

    def _step(self, one: _Open, fact: Fact) -> KvAccount | None:
        match fact:
            case KvReserved():
                one.reserved = fact
                one.cuts.append((KvPart.WIRE, fact.at_ns))
            case KvSealed():
                one.sealed = fact
                one.cuts.append((KvPart.SEAL, fact.at_ns))
            case KvAdmitted():
                one.cuts.append((KvPart.WAIT, fact.at_ns))
            case KvRefused() | KvLost():
                return self._close(one, fact.at_ns, fact.why)
            case SequenceAdmitted():
                return self._close(one, fact.at_ns, None)
            case SequenceEnded():
                admitted = any(part is KvPart.WAIT for part, _ in one.cuts)
                return self._close(one, fact.at_ns, None if admitted else KvFault.CANCELLED)
            case _:
                pass
        return None

    def _close(self, one: _Open, end_ns: int, fault: KvFault | None) -> KvAccount | None:
        queued, sealed = one.queued, one.sealed
        del self._open[queued.seq_id]
        never_reserved = fault is not None and len(one.cuts) == 1
        if one.reserved is None and not never_reserved:
            return None
        return KvAccount(
            seq_id=queued.seq_id,
            epoch=queued.receives_kv,
            begin_ns=queued.at_ns,
            end_ns=end_ns,
            parts=_parts(one, end_ns, fault),
            blocks=0 if one.reserved is None else one.reserved.blocks,
            bytes=0 if sealed is None else sealed.bytes,
            hidden_ns=0 if sealed is None else sealed.remote.hidden_ns,
            fault=fault,
        )


def _parts(one: _Open, end_ns: int, fault: KvFault | None) -> dict[KvPart, int]:
    """The lengths between cuts; the time until the seal is split as the other engine says."""
    parts: dict[KvPart, int] = {}
    ends = [at_ns for _, at_ns in one.cuts[1:]] + [end_ns]
    for (part, begin_ns), part_end_ns in zip(one.cuts, ends, strict=True):
        parts[part] = parts.get(part, 0) + part_end_ns - begin_ns
    if fault is not None:
        lost_ns = sum(ns for part, ns in parts.items() if part is not KvPart.RESERVE)
        return {KvPart.RESERVE: parts[KvPart.RESERVE], KvPart.LOST: lost_ns}
    if one.sealed is not None:
        remote = one.sealed.remote
        parts[KvPart.QUEUE] = remote.queue_ns
        parts[KvPart.PREFILL] = remote.compute_ns
        parts[KvPart.TRANSFER] = remote.exposed_ns
        parts[KvPart.WIRE] -= remote.elapsed_ns
    return parts


def parts_within(account: KvAccount, begin_ns: int, end_ns: int) -> list[tuple[KvPart, int]]:
    """The parts in the order of time, cut to [begin, end) of the account's window: they sum to its
    length. What lies outside is taken off the first parts and the last ones that have any."""
    parts = [(part, account.parts.get(part, 0)) for part in KvPart]
    parts = _shortened(parts, max(0, begin_ns - account.begin_ns))
    parts = _shortened(parts[::-1], max(0, account.end_ns - end_ns))[::-1]
    return [(part, ns) for part, ns in parts if ns]


def _shortened(parts: list[tuple[KvPart, int]], by_ns: int) -> list[tuple[KvPart, int]]:
    """The first parts are shorter, by so much in all."""
    found: list[tuple[KvPart, int]] = []
    for part, ns in parts:
        taken_ns = max(0, min(ns, by_ns))
        by_ns -= taken_ns
        found.append((part, ns - taken_ns))
    if by_ns:  # a wire below zero: the others are longer than the whole
        part, ns = found[0]
        found[0] = (part, ns - by_ns)
    return found


def kv_spans(account: KvAccount) -> list[KvSpan]:
    """`kv.reserve, kv.transfer, kv.seal, kv.wait` of an account, those that there were. What the
    other engine did is within `kv.transfer`, and has spans of its own there."""
    parts, spans, at_ns = account.parts, list[KvSpan](), account.begin_ns
    there = (KvPart.QUEUE, KvPart.PREFILL, KvPart.TRANSFER, KvPart.WIRE, KvPart.LOST)
    lengths = [
        (KvPart.RESERVE, parts.get(KvPart.RESERVE, 0)),
        (KvPart.TRANSFER, sum(parts.get(part, 0) for part in there)),
        (KvPart.SEAL, parts.get(KvPart.SEAL, 0)),
        (KvPart.WAIT, parts.get(KvPart.WAIT, 0)),
    ]
    for part, length_ns in lengths:
        if length_ns or part in parts:
            attributes = _transfer_attributes(account) if part is KvPart.TRANSFER else {}
            spans.append(KvSpan(part.value, at_ns, at_ns + length_ns, attributes))
        at_ns += length_ns
    return spans


def _transfer_attributes(account: KvAccount) -> dict[str, int | float]:
    exposed_ns, hidden_ns = account.parts.get(KvPart.TRANSFER, 0), account.hidden_ns
    found: dict[str, int | float] = {
        "kv.blocks": account.blocks,
        "kv.bytes": account.bytes,
        "kv.exposed_ns": exposed_ns,
        "kv.hidden_ns": hidden_ns,
    }
    if exposed_ns + hidden_ns:
        found["kv.bytes_per_second"] = account.bytes * 1e9 / (exposed_ns + hidden_ns)
    return found
