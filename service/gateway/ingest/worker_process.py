"""Starts, asks and kills one ingest worker process. All calls but `kill` block, without holding the
interpreter lock."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Sequence

from service.config.settings import DEFAULT_COMPAT, Compat, ModelRef
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
_START_S = 120.0  # a large tokenizer on a slow disk takes seconds


class WorkerDied(Exception):
    """The worker has ended, or was killed, before it answered."""


class WorkerProcess:
    """A worker that has loaded the tokenizer. One caller at a time; any thread may `kill`."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection

    @classmethod
    def start(
        cls, model: ModelRef, within_s: float = _START_S, compat: Compat = DEFAULT_COMPAT
    ) -> WorkerProcess:
        """Start a worker. Raises WorkerDied if it is not ready in time, and OSError if no process
        can be started."""
        ours, theirs = socket.socketpair()
        try:
            process = subprocess.Popen(
                (sys.executable, "-m", _MODULE, str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # signals to our process group are for the gateway
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        worker = cls(process, ours)
        try:
            ours.settimeout(within_s)
            answer, _ = worker.ask(Start(model, compat), [])
            assert isinstance(answer, Ready), answer
            ours.settimeout(None)  # the pool has a time limit, and kills
        except BaseException:
            worker.end()
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, job: ToWorker, blobs: Sequence[Blob]) -> tuple[ToGateway, list[bytearray]]:
        """Run one job and return the answer with its blobs. Raises WorkerDied."""
        try:
            send(self._connection, job, blobs)
            found = receive_answer(self._connection)
        except OSError as error:
            raise WorkerDied from error
        if found is None:
            raise WorkerDied
        return found

    def kill(self) -> None:
        """Kill the process; a waiting `ask` raises WorkerDied. Does not wait for its end."""
        self._process.kill()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Kill the process, wait for its end and close its socket."""
        self.kill()
        self._process.wait()
        self._connection.close()
