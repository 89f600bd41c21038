"""Memory of one connection, which a mover reads or a peer writes."""

from __future__ import annotations

import ctypes
import mmap
import os

_NO_ACCESS = 0
_LIBC = ctypes.CDLL(None, use_errno=True)


class Region:
    """Pages of this process that begin as zeros; they take memory when they are first touched."""

    def __init__(self, size_bytes: int) -> None:
        """Raises OSError if the process may not have them."""
        self.size_bytes = size_bytes
        self._pages = mmap.mmap(-1, size_bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._is_retired = False

    def view(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Not to be used after `retire`: who reads it then is ended by the kernel."""
        assert not self._is_retired
        assert 0 <= offset_bytes <= offset_bytes + size_bytes <= self.size_bytes
        return memoryview(self._pages)[offset_bytes : offset_bytes + size_bytes]

    def retire(self) -> None:
        """Give the memory back and keep the addresses for ever, where nobody can write.

        Because a peer that was frozen may write to an address that it was told an hour ago, and a
        way that needs no consent (process_vm_writev) would then find what came there since. Price:
        addresses, of which a process has 128 TiB."""
        if self._is_retired:
            return
        self._is_retired = True
        self._pages.madvise(mmap.MADV_DONTNEED)
        size = ctypes.c_size_t(self.size_bytes)
        if _LIBC.mprotect(ctypes.c_void_p(self.address), size, _NO_ACCESS):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        ctypes.pythonapi.Py_IncRef(
            ctypes.py_object(self._pages)
        )  # what is never freed stays mapped
