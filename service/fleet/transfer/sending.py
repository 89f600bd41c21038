"""What the prefill side knows of one transfer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from service.engine.plan import Sample
from service.fleet.transfer.messages import Begin, PeerId, Seal
from telemetry.facts.fleet.kv_transfer_records import KvFault
from telemetry.numbers.intervals import Interval


class PrefillState(StrEnum):
    """Where a transfer is, on this side."""

    COMPUTING = "computing"
    FLUSHING = "flushing"
    SEALED = "sealed"
    FENCING = "fencing"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPatience:
    """How long a transfer may take here, and how long until a seal is said again, or that a prompt
    is still to be computed."""

    hold_ns: int = 60_000_000_000
    resend_ns: int = 200_000_000


@dataclass(frozen=True, slots=True)
class Pushing:
    """Blocks on their way since `begin_ns`."""

    chunk: int
    blocks: int
    bytes: int
    begin_ns: int


@dataclass(slots=True)
class Sending:
    """One transfer. Blocks up to `pushed_blocks` of the prompt have been sent, or are on their way
    (`on_way`); `asked_pushes` of them are not confirmed by the transport yet."""

    peer: PeerId
    begin: Begin
    seq_id: int
    begun_ns: int
    expires_ns: int
    state: PrefillState = PrefillState.COMPUTING
    pushed_blocks: int = 0
    arrived_blocks: int = 0
    chunks: int = 0
    asked_pushes: int = 0
    on_way: dict[int, Pushing] = field(default_factory=dict)
    digests: list[bytes] = field(default_factory=list)
    computed: list[Interval] = field(default_factory=list)
    pushed: list[Interval] = field(default_factory=list)
    first: Sample | None = None
    resend_at_ns: int | None = None
    seal: Seal | None = None
    failed: KvFault | None = None
    tells: bool = True

    @property
    def epoch(self) -> int:
        return self.begin.epoch
