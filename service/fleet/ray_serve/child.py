"""A server that a replica of Ray Serve starts and watches: a process of its own, never in the
interpreter of Ray's worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import NamedTuple

_POLL_S = 0.1
_ANSWER_S = 5.0
_LINE_BYTES = 4096
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class ChildFailed(Exception):
    """The process has ended, or does not answer; the message is one line with what to do."""


class Http(NamedTuple):
    """Where a server answers."""

    host: str
    port: int

    @property
    def near(self) -> str:
        """The address at which this machine reaches it."""
        return _ANY_ADDRESS.get(self.host, self.host)


class Child:
    """A running process. The kernel kills it when this one ends, and when the thread that started
    it ends: that thread waits for it."""

    def __init__(self, what: str, command: Sequence[str]) -> None:
        """`what` names it in messages. Raises OSError."""
        self.what = what
        self._command = (
            sys.executable, "-m", "service.fleet.ray_serve.tether", str(os.getpid()), *command
        )  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._error: OSError | None = None
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), name=what, daemon=True).start()
        started.wait()
        if self._error is not None:
            raise self._error

    def _run(self, started: threading.Event) -> None:
        try:
            # signals to Ray's worker are not for it: it is told to drain
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            self._error = error
            return
        finally:
            started.set()
        self._process.wait()

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        assert self._process is not None, "started"
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Nothing if it has ended."""
        assert self._process is not None, "started"
        self._process.send_signal(number)

    async def answering(self, http: Http, path: str, within_s: float) -> None:
        """Wait until it answers with 200. Raises ChildFailed, and then it has ended."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    self.check_runs()
                    with contextlib.suppress(OSError):
                        if await status_of(http, path) == 200:
                            return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            await self.end(0)
            raise ChildFailed(
                f"{self.what} is not ready after {within_s:g} s: its last lines say what it waits "
                "for; raise start_timeout_s if it only needs longer"
            ) from None
        except BaseException:
            await self.end(0)
            raise

    def check_runs(self) -> None:
        """Raises ChildFailed."""
        code = self.exit_code
        if code is not None:
            raise ChildFailed(f"{self.what} ended with {code}: its last lines in this log say why")

    async def check(self, http: Http) -> None:
        """Whether it runs and answers. Raises ChildFailed."""
        self.check_runs()
        try:
            async with asyncio.timeout(_ANSWER_S):
                status = await status_of(http, "/health")
        except (OSError, TimeoutError) as error:
            raise ChildFailed(f"{self.what} does not answer at {http}: {error!r}") from error
        if status != 200:
            raise ChildFailed(f"{self.what} answers /health with {status}")

    async def end(self, grace_s: float) -> None:
        """Ask it to end, and kill it after `grace_s`."""
        self.send(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self.exit_code is None:
                    await asyncio.sleep(_POLL_S)
        self.send(signal.SIGKILL)
        while self.exit_code is None:
            await asyncio.sleep(_POLL_S)


async def status_of(http: Http, path: str) -> int:
    """The status of a GET. Raises OSError, also where the answer is no HTTP."""
    reader, writer = await asyncio.open_connection(http.near, http.port, limit=_LINE_BYTES)
    try:
        host = f"[{http.near}]" if ":" in http.near else http.near
        asked = f"GET {path} HTTP/1.1\r\nhost: {host}:{http.port}\r\nconnection: close\r\n\r\n"
        writer.write(asked.encode())
        line = (await reader.readline()).split(b" ")
    except ValueError as error:  # a line without end
        raise ConnectionError("no HTTP") from error
    finally:
        writer.close()
    if len(line) < 2 or not line[1].isdigit():
        raise ConnectionError("no HTTP")
    return int(line[1])


def free_port(host: str) -> int:
    """One that is free now. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


async def port_is_free(http: Http, within_s: float) -> None:
    """Wait while another one has the port: the gateway before, which drains. Raises ChildFailed."""
    try:
        async with asyncio.timeout(within_s):
            while not _can_bind(http):
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise ChildFailed(
            f"port {http.port} of {http.host} is in use: end what has it, or give another `port`"
        ) from None


def _can_bind(http: Http) -> bool:
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((http.host, http.port))
        except OSError:
            return False
    return True
