"""A monotonic clock that can be made to jump while its processes run.

A library that is loaded before libc adds an offset, which it reads from a file that is mapped into
memory, to CLOCK_MONOTONIC. A node and its engine share the file: it is their machine's clock.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int (*real)(clockid_t, struct timespec *);
static volatile int64_t *ahead_ns;

__attribute__((constructor)) static void begin(void) {
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("JUMPING_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *page = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) ahead_ns = page;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = real(id, now);
    if (id == CLOCK_MONOTONIC && ahead_ns && !result) {
        int64_t ns = now->tv_nsec + *ahead_ns;
        now->tv_sec += ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return result;
}
"""


class JumpingClock:
    """`environment` is for processes of one machine. Raises RuntimeError without a C compiler."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise RuntimeError("no C compiler: cc makes the clock that jumps")
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(_SOURCE)
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"],
            check=True,
        )
        path = folder / "ahead"
        path.write_bytes(struct.pack("q", 0))
        self._file = path.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), 8)
        self._ahead_ns = 0
        self.environment = {"LD_PRELOAD": str(library), "JUMPING_CLOCK": str(path)}

    def jump(self, by_ns: int) -> None:
        """Forwards only: a monotonic clock does not go back."""
        assert by_ns > 0
        self._ahead_ns += by_ns
        self._page[:8] = struct.pack("q", self._ahead_ns)
