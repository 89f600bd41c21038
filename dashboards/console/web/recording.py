"""Reads the server's flight recorder in a child process, so that the pages go on meanwhile.

`python -m dashboards.console.web.recording FILE` is the child: it writes the moments of a journal
to its standard output.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from dashboards.console.model.moments import Moment
from dashboards.console.model.recorded import moments_of
from dashboards.console.web.state import Known
from dashboards.monitor.client import Client, Unreachable
from dashboards.source import download, scratch_journal
from telemetry.journal.journal_reader import JournalError, open_journal

_LIMIT_S = 120.0
_FAILED = 1


class NotRead(Exception):
    """Why there are no recorded moments, in one line."""


async def read_recorder(client: Client, known: Known) -> None:
    """Put the recorded moments before those that were polled. What goes wrong is said on the page:
    the console works without them, from now on."""
    known.reading = "Reading the server's flight recorder: earlier minutes appear when it is done."
    try:
        known.history.prepend(await _moments(client))
    except Unreachable as error:
        off = "it is off (--journal-memory 0)" if error.status == 404 else str(error)
        known.reading = (
            f"The flight recorder cannot be read: {off}. Minutes before now are missing."
        )
    except (NotRead, OSError) as error:
        known.reading = f"The flight recorder cannot be read: {error}."
    else:
        known.reading = ""
    known.version += 1


async def _moments(client: Client) -> list[Moment]:
    """Raises Unreachable, NotRead, OSError."""
    with scratch_journal() as path:
        await asyncio.to_thread(download, client.url, path, client.debug_key)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dashboards.console.web.recording", str(path),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_LIMIT_S):
                packed, said = await child.communicate()
        except TimeoutError:
            raise NotRead(f"it took longer than {_LIMIT_S:.0f} s") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
    if child.returncode:
        raise NotRead(said.decode(errors="replace").strip() or f"exit {child.returncode}")
    return msgspec.msgpack.decode(packed, type=list[Moment])


def main(path: str) -> int:
    """The child. It has the lowest priority: the server may be on this machine."""
    os.nice(19)
    try:
        moments = list(moments_of(open_journal(Path(path))))
    except JournalError as error:
        sys.stderr.write(f"{error}\n")
        return _FAILED
    sys.stdout.buffer.write(msgspec.msgpack.encode(moments))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
