"""Says whether a file or folder is being written, so that whoever cleans up leaves it alone.

By a lock of the kernel, which ends with its process. A process id says nothing: in containers each
server may have the same one, at every start and beside others.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def writer_name(server: str) -> str:
    """A word for the names of a process's files, which no other process has: `STAMP-WORD-...`."""
    return f"{server}_{os.getpid()}_{secrets.token_hex(3)}"


def written_by(server: str) -> str:
    """A glob pattern: the names of what any process of a server has written."""
    return f"*-{server}_*"


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """What exists there is being written. Raises OSError if it cannot be opened."""
    fd = _open(path)
    try:
        with suppress(OSError):  # a file system without locks: nobody can tell then
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def is_in_use(path: Path) -> bool:
    """Whether a process writes it; True where that is not known."""
    try:
        fd = _open(path)
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _open(path: Path) -> int:
    """For writing where that is possible: some file systems lock nothing else."""
    return os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
