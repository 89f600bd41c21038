"""Files that a long run writes at its end, tried before it."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from service.config.settings import ConfigError
from telemetry.journal.atomic_file import atomic_file


class _Tried(Exception):
    """The file could be written; it is taken away again."""


def require_writable(flag: str, path: Path | None) -> None:
    """Before the run, so that its result is not lost at the end. Raises ConfigError."""
    if path is None:
        return
    where = f"{flag} {path}"
    if os.path.isdir(path):
        raise ConfigError(f"{where}: it is a folder; name a file in it")
    if not os.path.isdir(path.parent):
        raise ConfigError(f"{where}: the folder does not exist")
    try:
        _try(path)
    except OSError as error:
        raise ConfigError(
            f"{where}: {error.strerror}; name a file that can be written with {flag}"
        ) from error


def _try(path: Path) -> None:
    """Raises OSError."""
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    with contextlib.suppress(_Tried), atomic_file(path) as partial:
        if partial != path:
            partial.touch()
            raise _Tried
