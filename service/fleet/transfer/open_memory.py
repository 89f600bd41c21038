"""The memory of an engine as peers see it: opened by a key, and a block only for its transfer.

A block is written only if the key is this memory's, and its epoch may write that block now
(`may_write`): the quarantine is what keeps a late write from somebody's block, and this is the
second lock on the same door. By which way the bytes have come makes no difference.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from service.fleet.transfer.tcp_frames import WRITE
from service.fleet.transfer.transport import BlockMemory

KEY_BYTES = 16


class OpenMemory:
    """`memory` None: this engine has none, and nothing may be written. `refused` counts blocks."""

    def __init__(
        self, memory: BlockMemory | None, key: bytes, may_write: Callable[[int, int], bool]
    ) -> None:
        assert len(key) == KEY_BYTES, len(key)
        self.refused = 0
        self._memory, self._key, self._may_write = memory, key, may_write

    @property
    def block_bytes(self) -> int | None:
        """None: there is no memory."""
        return None if self._memory is None else self._memory.block_bytes

    def land(self, place: memoryview, data: memoryview) -> bool:
        """Write a block if it may be written; whether it was. `place` is a WRITE. Raises
        struct.error if it is none."""
        key, epoch, _, block = WRITE.unpack(place)
        memory = self._memory
        ok = (
            memory is not None
            and hmac.compare_digest(key, self._key)
            and len(data) == memory.block_bytes
            and 0 <= block < memory.blocks
            and self._may_write(epoch, block)
        )
        if ok:
            assert memory is not None
            memory.write(block, data)
        else:
            self.refused += 1
        return ok
