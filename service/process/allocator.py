"""Settings of the C library's memory allocator."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # glibc, malloc.h
_ARENAS = 2


def limit_arenas() -> None:
    """Let malloc use two heaps (arenas) instead of eight a core.

    Threads of one interpreter allocate mostly in turn, so more heaps save no waiting, and memory
    that is free in one heap cannot be used by another: resident memory grows. Call it before the
    first thread starts. Does nothing where the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_ARENA_MAX, _ARENAS)
