"""What happens to a side of a transfer, and what it wants done. A side is pure: one event in,
actions out; whoever drives it carries them out in their order."""

from __future__ import annotations

from dataclasses import dataclass

from service.engine.inbox import Command
from service.engine.plan import Sample
from service.fleet.transfer.messages import Message, PeerId
from telemetry.facts.fleet.kv_transfer_records import KvTransferFact
from telemetry.facts.reasons import EndReason

# Events of both sides


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message of a peer."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The transport says that the peer is gone, and that no write of it can land any more."""

    peer: PeerId


# Events of the decode side


@dataclass(frozen=True, slots=True)
class BlocksReserved:
    """The engine has reserved blocks, after `skip_blocks` that it has."""

    epoch: int
    skip_blocks: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NotReserved:
    """The engine computes the prompt itself."""

    epoch: int


@dataclass(frozen=True, slots=True)
class KvTaken:
    """The engine has given the blocks to the sequence."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WaiterGone:
    """The sequence has ended, or has given up its KV."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Checked:
    """So many blocks differ from the digests of the seal."""

    epoch: int
    corrupt_blocks: int


# Events of the prefill side


@dataclass(frozen=True, slots=True)
class ChunkComputed:
    """The first `tokens` tokens are in `blocks`; the last were computed in [begin_ns, end_ns)."""

    epoch: int
    tokens: int
    blocks: tuple[int, ...]
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class PromptEnded:
    """The sequence has ended in the engine; `first` is its token, None without one."""

    epoch: int
    reason: EndReason
    first: Sample | None


@dataclass(frozen=True, slots=True)
class PushBegun:
    """Blocks are on their way, with these digests; `ticket` is the transport's."""

    epoch: int
    ticket: int
    digests: tuple[bytes, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class PushEnded:
    """The write of a push is over; `ok`: all its blocks have arrived."""

    epoch: int
    ticket: int
    ok: bool


@dataclass(frozen=True, slots=True)
class FenceEnded:
    """No write of that transfer is on its way."""

    epoch: int


# Actions


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; it may be lost."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Tell:
    """Put a command into the engine's inbox."""

    command: Command


@dataclass(frozen=True, slots=True)
class Note:
    """Record a fact."""

    fact: KvTransferFact


@dataclass(frozen=True, slots=True)
class Check:
    """Compare blocks, the first of which is number `first_place` of the prompt, with digests."""

    epoch: int
    first_place: int
    blocks: tuple[int, ...]
    digests: tuple[bytes, ...]
    total: bytes


@dataclass(frozen=True, slots=True)
class Push:
    """Write own blocks `sources` into `targets` of the peer. Answered by PushBegun, PushEnded."""

    epoch: int
    peer: PeerId
    memory: bytes
    first_place: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """Let writes that are on their way arrive or stop. Answered by FenceEnded."""

    epoch: int
    peer: PeerId


Action = Send | Tell | Note | Check | Push | Fence
