"""Sidecars that do not do their work: in a process of its own, at the address of the real one.

    python -m benchmarks.attach.bad_sidecars full|slow SOCKET

`full` accepts connections and reads nothing, `slow` reads a kilobyte a second.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.peers.layout import REPOSITORY

FULL, SLOW = "full", "slow"
_SLOW_BYTES, _SLOW_S = 1024, 1.0


class BadSidecar:
    """`with BadSidecar("full", path):` listens when it is entered, and is gone after."""

    def __init__(self, kind: str, path: Path) -> None:
        self._command = [sys.executable, "-m", "benchmarks.attach.bad_sidecars", kind, str(path)]

    def __enter__(self) -> BadSidecar:
        self._process = subprocess.Popen(
            self._command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def read_slowly(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(_SLOW_BYTES):
            time.sleep(_SLOW_S)


def main(kind: str, path: str) -> None:
    Path(path).unlink(missing_ok=True)
    held = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        print("listening", flush=True)
        while True:
            connection, _ = listener.accept()
            held.append(connection)
            if kind == SLOW:
                threading.Thread(target=read_slowly, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:3])
