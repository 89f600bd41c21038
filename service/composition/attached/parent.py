"""`phasescope attach -- COMMAND`: one parent of two children, the sidecar and the command.

Neither child depends on the other: the command goes on when the sidecar ends, and the sidecar is
started again, at the same socket. The parent only passes signals on and waits, and ends with the
command's exit code. The sidecar is a fork of the parent in a session of its own, so that a Ctrl-C
is for the command; it ends when the parent's end of its pipe is closed, also after a kill of the
parent.

This module imports only the standard library: the parent lives as long as the command.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Sidecar = Callable[[int, Callable[[str, str], None]], int]
"""Runs until a signal or until the pipe (its first argument) ends, and returns its exit code; calls
its second argument with the socket's path and the HTTP address once both are open."""

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_HANDLED = frozenset((signal.SIGCHLD, *PASSED_ON))
_FROM_KERNEL = 0x80  # of the terminal: every process in the foreground has got it
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 60.0
_HEALTHY_NS = 60_000_000_000  # a sidecar that ran for so long has not failed at its start
_DRAIN_S = 20.0
_POLL_S = 0.1
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE, EXIT_SIGNAL = 127, 126, 128


@dataclass(frozen=True, slots=True)
class _Child:
    """A sidecar that runs. When `lifeline` is closed, it ends."""

    pid: int
    lifeline: int


class Parent:
    """Runs both; `say` prints one line, `now_ns` is a monotonic clock."""

    def __init__(
        self,
        sidecar: Sidecar,
        variable: str,
        say: Callable[[str], None],
        now_ns: Callable[[], int],
    ) -> None:
        self._sidecar, self._variable, self._say = sidecar, variable, say
        self._now_ns = now_ns
        self._begun_ns = 0  # the sidecar
        self._child: _Child | None = None
        self._path: str | None = None  # of the first sidecar: the command knows no other
        self._retry_s = _FIRST_RETRY_S

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """The exit code of the command, or of a sidecar that cannot start."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            path = self._start_sidecar()
            if path is None:
                return self._end_sidecar()
            try:
                pid = os.posix_spawnp(
                    command[0],
                    list(command),
                    {**environment, self._variable: path},
                    setsigmask=before,
                )
            except OSError as error:
                self._say(f"{command[0]}: {error.strerror}")
                self._end_sidecar()
                _forget_signals()
                missing = isinstance(error, FileNotFoundError)
                return EXIT_NOT_FOUND if missing else EXIT_NOT_EXECUTABLE
            code = self._wait(pid)
            self._end_sidecar()
            _forget_signals()
            return code
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _wait(self, command: int) -> int:
        """Until the command has ended; its exit code."""
        while True:
            if self._child is None:
                found = signal.sigtimedwait(_HANDLED, self._retry_s)
            else:
                found = signal.sigwaitinfo(_HANDLED)
            if found is None:
                self._restart_sidecar()
            elif found.si_signo != signal.SIGCHLD:
                if found.si_code != _FROM_KERNEL:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(command, found.si_signo)
            elif (code := self._reap(command)) is not None:
                return code

    def _reap(self, command: int) -> int | None:
        """Take the exit codes of all children that have ended; that of the command, if it has."""
        ended: int | None = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if pid == command:
                ended = _code_of(status)
            elif self._child is not None and pid == self._child.pid:
                self._lost_sidecar(_code_of(status))

    # The sidecar

    def _start_sidecar(self) -> str | None:
        """The path of its socket once it is open; None: it does not start, and has said why."""
        ready, told = os.pipe()
        held, lifeline = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ready)
            os.close(lifeline)
            self._be_sidecar(held, told)
        os.close(told)
        os.close(held)
        self._child, self._begun_ns = _Child(pid, lifeline), self._now_ns()
        try:
            path = _read_line(ready)
        finally:
            os.close(ready)
        self._path = self._path or path
        return path

    def _be_sidecar(self, held: int, told: int) -> None:
        """In the child: never returns."""
        code = 1
        try:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)

            def announce(path: str, address: str) -> None:
                self._say(f"the sidecar is ready at {address}, its socket is {path}")
                os.write(told, f"{path}\n".encode())

            if self._path is not None:
                os.environ[self._variable] = self._path
            code = self._sidecar(held, announce)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _lost_sidecar(self, code: int) -> None:
        assert self._child is not None
        os.close(self._child.lifeline)
        self._child = None
        if self._now_ns() - self._begun_ns >= _HEALTHY_NS:
            self._retry_s = _FIRST_RETRY_S
        self._say(
            f"the sidecar has ended (exit code {code}); the command goes on without it; it is "
            f"started again in {self._retry_s:g} s"
        )

    def _restart_sidecar(self) -> None:
        self._retry_s = min(2 * self._retry_s, _LAST_RETRY_S)
        self._start_sidecar()  # one that does not start is seen by its end

    def _end_sidecar(self) -> int:
        """Let it drain, and take its exit code."""
        child, self._child = self._child, None
        if child is None:
            return 1
        os.close(child.lifeline)
        for _ in range(round(_DRAIN_S / _POLL_S)):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                return _code_of(status)
            signal.sigtimedwait({signal.SIGCHLD}, _POLL_S)
        os.kill(child.pid, signal.SIGKILL)
        return _code_of(os.waitpid(child.pid, 0)[1])


def _read_line(ready: int) -> str | None:
    """What the sidecar writes when it is open; None if it ends before, or a signal says to end."""
    said = b""
    while not said.endswith(b"\n"):
        if signal.sigpending() & {signal.SIGINT, signal.SIGTERM}:
            return None
        if not select.select([ready], [], [], _POLL_S)[0]:
            continue
        part = os.read(ready, 4096)
        if not part:
            return None
        said += part
    return said.decode().rstrip("\n")


def _forget_signals() -> None:
    """Those that came while the sidecar drained were for the command, which has ended: they must
    not end this process once they are let in, with a code of their own."""
    while signal.sigtimedwait(_HANDLED, 0) is not None:
        pass


def _code_of(status: int) -> int:
    """As shells have it: 128 and the number for the end by a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else EXIT_SIGNAL - code
