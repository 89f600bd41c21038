"""Sources of facts for views: a dump, a journal folder, or a running server."""

from __future__ import annotations

import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from dashboards.monitor.client import Unreachable
from telemetry.journal.journal_reader import Journal, open_journal

_TIMEOUT_S = 30.0


def is_url(source: str) -> bool:
    """Whether `source` is the URL of a server. A path that exists is never one."""
    return not Path(source).exists() and source.startswith(("http://", "https://"))


@contextmanager
def journal_of(source: str, debug_key: str | None = None) -> Iterator[Journal]:
    """The journal in a file or folder, or that of a server's flight recorder now.

    Raises JournalError, Unreachable.
    """
    if not is_url(source):
        yield open_journal(Path(source))
        return
    with tempfile.NamedTemporaryFile(suffix=".journal") as file:
        path = Path(file.name)
        download(source, path, debug_key)
        yield open_journal(path)


def download(url: str, path: Path, debug_key: str | None = None) -> None:
    """Download a server's journal into a file. Raises Unreachable."""
    headers = {"authorization": f"Bearer {debug_key}"} if debug_key else {}
    request = urllib.request.Request(f"{url.rstrip('/')}/debug/journal", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except urllib.error.HTTPError as error:
        hint = "; give --debug-key" if error.code == 401 else ""
        raise Unreachable(f"{url}/debug/journal answers {error.code}{hint}") from error
    except (OSError, ValueError, HTTPException) as error:
        raise Unreachable(f"{url} cannot be read: {getattr(error, 'reason', error)}") from error
