"""What the fact of a step has beside its rows: who got none, which blocks were filled, and when it
ran by the device's own clock."""

from __future__ import annotations

import msgspec

from telemetry.facts.reasons import WaitReason


class Skip(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A live sequence without a row in the step, and its binding reason."""

    seq_id: int
    reason: WaitReason
    holder_seq_id: int | None


class BlocksSealed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """More full blocks of a sequence are in the cache: `blocks` are the aliases of its blocks from
    block `first_block` on, as in `SequenceQueued`."""

    seq_id: int
    first_block: int
    blocks: tuple[int, ...]


class DeviceTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step by the device's own clock: `busy_ns` from its first operation to its last, and
    `bubble_ns` before that in which the device was idle since the step before (None for the first
    step and for one after idling). Some steps also have `attention_ns`, `matrices_ns` (with what
    lies between them) and `sampling_ns`; in the others these are None."""

    busy_ns: int
    bubble_ns: int | None = None
    attention_ns: int | None = None
    matrices_ns: int | None = None
    sampling_ns: int | None = None
