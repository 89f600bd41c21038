"""One ingest worker as the gateway sees it: started, asked, killed. Everything here blocks, and
lets go of the interpreter's lock while it does."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence

from service.config.settings import ModelRef
from service.gateway.ingest.frames import (
    Blob,
    Ready,
    Start,
    ToGateway,
    ToWorker,
    receive_answer,
    send,
)

_MODULE = "service.gateway.ingest.worker"
_START_S = 120.0  # a large tokenizer on a slow disk takes some seconds


class WorkerDied(Exception):
    """The worker ended, or was ended, before it answered."""


class WorkerProcess:
    """A worker that has read the tokenizer. One caller at a time; any thread may `kill`."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection

    @classmethod
    def start(cls, model: ModelRef, within_s: float = _START_S) -> WorkerProcess:
        """Raises WorkerDied, also when it takes longer, or OSError when there can be no more
        processes."""
        ours, theirs = socket.socketpair()
        try:
            process = subprocess.Popen(
                (sys.executable, "-m", _MODULE, str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # signals to our group are for us
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        worker = cls(process, ours)
        try:
            ours.settimeout(within_s)
            answer, _ = worker.ask(Start(model), [])
            assert isinstance(answer, Ready), answer
            ours.settimeout(None)  # whoever asks has a deadline of its own, and kills
        except BaseException:
            worker.end()
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, job: ToWorker, blobs: Sequence[Blob]) -> tuple[ToGateway, list[bytearray]]:
        """Raises WorkerDied."""
        try:
            send(self._connection, job, blobs)
            found = receive_answer(self._connection)
        except OSError as error:
            raise WorkerDied from error
        if found is None:
            raise WorkerDied
        return found

    def kill(self) -> None:
        """End it now, whatever it does; an `ask` that waits for it raises."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """End it and free its socket; nobody asks it any more."""
        self.kill()
        self._connection.close()
