"""Files that appear under their names only when they are complete, so that one that cannot be
written leaves what was there before.

A link, a pipe or a device is no file to put in its place: it is written to as it is. A writer that
is killed leaves its part beside the name; the next one writes over it.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Where to write it. It has the name `path` when the block ends without an error, and is
    removed otherwise. Raises OSError."""
    if not _is_replaced(path):
        yield path
        return
    partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Raises OSError."""
    with atomic_file(path) as partial:
        partial.write_bytes(data)


def _is_replaced(path: Path) -> bool:
    """A regular file, or nothing yet."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return True
