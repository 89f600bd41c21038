"""malloc's heaps (arenas), counted where they would multiply: in a process with many threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import ctypes, sys, tempfile, threading
{call}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
all_there = threading.Barrier(8)
def allocate():
    libc.malloc(ctypes.c_size_t(4096))
    all_there.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with tempfile.NamedTemporaryFile() as file:
    out = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, out)
    libc.fclose(out)
    print(file.read().count(b"<heap nr="))
"""


def arenas(call: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNT.format(call=call)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_info is glibc's")
def test_threads_share_two_heaps_once_arenas_are_limited() -> None:
    assert arenas("") > 2
    limited = "from service.process.allocator import limit_arenas; limit_arenas()"
    assert arenas(limited) <= 2
