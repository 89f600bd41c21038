"""What the two sides of a transfer tell each other. Blocks go beside these, by a `KvTransport`.

    decode side                    prefill side
        Begin      ------------->
                   <-------------  Progress       for blocks that have arrived, and every so often
                                                  while others are computed or wait for room
                   <-------------  Seal           digests and first token: nothing is written now
        Accepted   ------------->                 the blocks were verified, yours may go
        Refused    ------------->                 they were not taken, yours may go
        Abort      ------------->
                   <-------------  Fenced         nothing is written now, nor ever in that transfer
                   <-------------  Failed         the same, and why

Messages may be lost, come twice, late and in any order. Begin, Seal and Abort are sent again until
they are answered; each answer is true for ever once it was said.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from service.engine.inbox import Submit
from service.engine.plan import Sample
from telemetry.facts.fleet.kv_transfer_records import KvFault, RemoteParts

MAX_BLOCKS = 1 << 20
"""Most blocks of one transfer: what a peer may ask for, far more than any context."""
MAX_BLOCK = (1 << 32) - 1
"""The largest number of a block that a write can name."""


class PeerId(msgspec.Struct, frozen=True, order=True):
    """An engine: its name in the membership, and the random number of its start. Nothing is
    delivered from or to an incarnation after it was said to be gone."""

    name: str
    incarnation: int


class TransferRequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the request of a prompt is in traces, so that what the other engine does for it has its
    spans in the same tree."""

    request_id: Annotated[str, msgspec.Meta(min_length=1, max_length=160)]
    trace_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    span_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    sampled: bool | None = None


class Layout(msgspec.Struct, frozen=True):
    """What must be equal at both engines for a block of one to mean the same in the other: the
    cache's identity (model, tokenizer, formats), the tokens and the bytes of a block."""

    cache_identity: str
    block_tokens: int
    block_bytes: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Compute the prompt of `submit`, draw its first token, and write its blocks from block
    `skip_blocks` of the prompt on into `blocks` of the sender's memory, which `memory` opens.
    Stamps of `submit` are of another clock, so it has none."""

    epoch: int
    submit: Submit
    layout: Layout
    skip_blocks: int
    blocks: tuple[int, ...]
    memory: bytes
    about: TransferRequestContext | None = None


class Progress(msgspec.Struct, frozen=True, tag=True):
    """So many blocks have arrived, of a prompt that is being computed or waits to be."""

    epoch: int
    blocks: int


class Seal(msgspec.Struct, frozen=True, tag=True):
    """All blocks have arrived; `digests` are theirs, in order, and `total` is that of all. `first`
    is the first token. Nothing more of the sampler's state is needed: a token is drawn from the
    sequence's seed and the number of the output, penalties and grammars count what came before."""

    epoch: int
    digests: tuple[bytes, ...]
    total: bytes
    first: Sample
    remote: RemoteParts


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """The blocks of a seal were verified and are in use."""

    epoch: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The blocks of a seal are not used."""

    epoch: int
    why: KvFault


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Nobody wants the blocks any more. Say when nothing is written."""

    epoch: int


class Fenced(msgspec.Struct, frozen=True, tag=True):
    """Nothing is written in that transfer from now on."""

    epoch: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The prompt cannot be computed or sent; nothing is written from now on."""

    epoch: int
    why: KvFault


ToPrefill = Begin | Accepted | Refused | Abort
ToDecode = Progress | Seal | Fenced | Failed
Message = ToPrefill | ToDecode
