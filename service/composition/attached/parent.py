"""`phasescope attach -- COMMAND`: one parent of two children, the sidecar and the command.

Neither child depends on the other: the command goes on when the sidecar ends, and the sidecar is
started again, at the same socket. The parent only passes signals on and waits, and ends with the
command's exit code; an error of its own, such as a full disk or no more descriptors, ends neither.
Signals are for the command, SIGUSR2 is for the sidecar, which writes a dump. The sidecar is a fork
of the parent in a session of its own, so that a Ctrl-C is for the command; it ends when the
parent's end of its pipe is closed, also after a kill of the parent.

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

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_DUMP = signal.SIGUSR2
_HANDLED = frozenset((signal.SIGCHLD, _DUMP, *PASSED_ON))
_NOT_INHERITED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them, and what is ignored stays so in a command."""
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
    """Runs both; `say` prints one line, where that is possible, `now_ns` is a monotonic clock."""

    def __init__(
        self,
        sidecar: Sidecar,
        variable: str,
        say: Callable[[str], None],
        now_ns: Callable[[], int],
    ) -> None:
        self._sidecar, self._variable, self._print = sidecar, variable, say
        self._now_ns = now_ns
        self._begun_ns = 0  # the sidecar
        self._child: _Child | None = None
        self._path: str | None = None  # of the first sidecar: the command knows no other
        self._retry_s = _FIRST_RETRY_S

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """The exit code of the command, or of a sidecar that cannot start. Raises OSError if there
        can be no process for one."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, no child would tell of its end
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            path = self._open_sidecar()
            if path is None:
                return self._end_sidecar()
            try:
                pid = os.posix_spawnp(
                    command[0],
                    list(command),
                    {**environment, self._variable: path},
                    setsigmask=before,
                    setsigdef=_NOT_INHERITED,
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
                self._pass_on(found, command)
            elif (code := self._reap(command)) is not None:
                return code

    def _pass_on(self, found: signal.struct_siginfo, command: int) -> None:
        """What the terminal sends has reached the command already, but for the end of the terminal:
        that goes to the first process of a session alone."""
        number = found.si_signo
        with contextlib.suppress(OSError):
            if number == _DUMP:
                if self._child is not None:
                    os.kill(self._child.pid, number)
            elif number == signal.SIGHUP or found.si_code != _FROM_KERNEL:
                os.kill(command, number)

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads, or the disk is full
            self._print(line)

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

    def _open_sidecar(self) -> str | None:
        """Start the first one. The path of its socket once it is open; None: it does not start, and
        has said why. Raises OSError."""
        ready, told = os.pipe()
        try:
            try:
                self._start_sidecar(ready, told)
            finally:
                os.close(told)
            self._path = _read_line(ready)
        finally:
            os.close(ready)
        return self._path

    def _start_sidecar(self, ready: int | None = None, told: int | None = None) -> None:
        """`ready` and `told` are the ends of a pipe for the path of the first one. Nobody waits for
        a later one: its end tells if it does not start. Raises OSError."""
        held, lifeline = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(held)
            os.close(lifeline)
            raise
        if pid == 0:
            os.close(lifeline)
            if ready is not None:
                os.close(ready)
            self._be_sidecar(held, told)
        os.close(held)
        self._child, self._begun_ns = _Child(pid, lifeline), self._now_ns()

    def _be_sidecar(self, held: int, told: int | None) -> None:
        """In the child: never returns."""
        code = 1
        try:
            os.setsid()
            signal.signal(_DUMP, lambda number, frame: None)  # until there is a recorder
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)

            def announce(path: str, address: str) -> None:
                self._say(f"the sidecar is ready at {address}, its socket is {path}")
                if told is not None:
                    os.write(told, f"{path}\n".encode())

            if self._path is not None:
                os.environ[self._variable] = self._path
            code = self._sidecar(held, announce)
        except SystemExit as end:  # a signal, before it was ready
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
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
        try:
            self._start_sidecar()
        except OSError as error:
            self._say(
                f"the sidecar cannot be started ({error.strerror}); it is tried again in "
                f"{self._retry_s:g} s"
            )

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
    """Forget the signals that came while the sidecar drained. They were for the command, which has
    ended: they must not end this process once they are let in, with a code of their own."""
    while signal.sigtimedwait(_HANDLED, 0) is not None:
        pass


def _code_of(status: int) -> int:
    """The exit code as shells have it: 128 and the number for the end by a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else EXIT_SIGNAL - code
