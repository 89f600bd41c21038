"""A number in memory that two processes share: one writes it, the other reads it."""

from __future__ import annotations

import mmap
import os
import struct

_NUMBER = struct.Struct("<Q")


class SharedCount:
    """Over the file with descriptor `number`; `creates` gives the file its size.

    An aligned number of eight bytes is written and read at once.
    """

    def __init__(self, number: int, creates: bool = False) -> None:
        if creates:
            os.ftruncate(number, mmap.PAGESIZE)
        self._page = mmap.mmap(number, mmap.PAGESIZE)

    def set(self, value: int) -> None:
        _NUMBER.pack_into(self._page, 0, value)

    def get(self) -> int:
        found: int = _NUMBER.unpack_from(self._page)[0]
        return found
