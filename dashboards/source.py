"""Sources of facts for views: a dump, a journal folder, or a running server."""

from __future__ import annotations

import errno
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path

from dashboards.monitor.client import Unreachable, is_server, server_url
from telemetry.facts.credentials import KeyUnusable, bearer, shown_url
from telemetry.journal.journal_reader import Journal, open_journal

_TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no socket fails with one of these


@contextmanager
def journal_of(source: str, debug_key: str | None = None) -> Iterator[Journal]:
    """The journal in a file or folder, or that of a server's flight recorder now.

    Raises JournalError, Unreachable.
    """
    if not is_server(source):
        yield open_journal(Path(source))
        return
    with scratch_journal() as path:
        download(source, path, debug_key)
        yield open_journal(path)


@contextmanager
def scratch_journal() -> Iterator[Path]:
    """A file for a journal, until the end of the block. Raises Unreachable where there is none."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".journal"))
        except OSError as error:
            raise _no_scratch(error) from error
        yield Path(file.name)


def download(url: str, path: Path, debug_key: str | None = None) -> None:
    """Download a server's journal into a file. Raises Unreachable."""
    base = server_url(url)
    name = shown_url(base)
    try:
        request = urllib.request.Request(f"{base}/debug/journal", headers=bearer(debug_key))
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer, path.open("wb") as file:
            while piece := answer.read(_PIECE_BYTES):
                file.write(piece)
    except KeyUnusable as error:
        raise Unreachable(f"{name}: {error}", 401) from error
    except urllib.error.HTTPError as error:
        hint = "; give --debug-key" if error.code == 401 else ""
        message = f"{name}/debug/journal answers {error.code}{hint}"
        raise Unreachable(message, error.code) from error
    except (OSError, ValueError, HTTPException) as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise _no_scratch(error) from error
        raise Unreachable(f"{name} cannot be read: {getattr(error, 'reason', error)}") from error


def _no_scratch(error: OSError) -> Unreachable:
    """The disk of this machine is at fault, and not the server."""
    return Unreachable(
        f"a server's journal needs a temporary file: {error.strerror}; set TMPDIR to a folder that "
        "can be written and has room"
    )
