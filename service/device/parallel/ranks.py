"""The processes of all tensor-parallel ranks but rank 0, which is the engine process itself.

They are its children and end with it. None of them can be replaced alone, since the others compute
the same step: when one is lost the engine ends, and starts again with all. A collective may not
notice (gloo has been seen to wait on, NCCL waits for minutes), so a thread watches each process,
and when one ends all are killed: an all-reduce over gloo then sees closed sockets.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from service.config.settings import ConfigError, EngineConfig
from service.device.failures import failure_of
from service.device.parallel.messages import (
    Join,
    Met,
    NotLoaded,
    pack,
    unpack_answer,
    unpack_times,
)
from service.engine.executor import DeviceFailure
from telemetry.facts.reasons import StepFailure

_WORKER = "service.device.parallel.worker"
_END_GRACE_S = 5.0
_END_SEEN_S = 1.0


class RankFailed(DeviceFailure):
    """A rank ended, or failed in the midst of a step: nothing can be computed without it."""

    def __init__(self, message: str, kind: StepFailure = StepFailure.RANK_LOST) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class _Member:
    index: int
    process: subprocess.Popen[bytes]
    connection: Connection

    def end(self) -> None:
        """By itself, since nobody talks to it any more, or soon after."""
        self.connection.close()
        try:
            self.process.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Ranks:
    """All ranks of an engine but the first. `on_lost` is called by a thread of its own when one of
    them has ended although nobody closed them."""

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        max_tokens: int,
        on_lost: Callable[[str], None],
    ) -> None:
        self._config = config
        self._on_gpus = device.type == "cuda"
        self._max_tokens = max_tokens
        self._threads = torch.get_num_threads()
        self._on_lost = on_lost
        self._folder = tempfile.TemporaryDirectory(prefix="phasescope-ranks-")
        self._members: list[_Member] = []
        self._lock = threading.Lock()
        self._first_end: str | None = None
        self._end_seen = threading.Event()
        self._are_loaded = self._are_closing = False

    @property
    def rendezvous(self) -> str:
        """The file through which all ranks find each other."""
        return str(Path(self._folder.name) / "rendezvous")

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(member.process.pid for member in self._members)

    def start(self) -> None:
        """They begin to load. To be called by a thread that lasts: they end with it."""
        for index in range(1, self._config.tensor_parallel):
            member = _start_member(index)
            self._members.append(member)
            watch = threading.Thread(
                target=self._watch, args=(member,), name="phasescope-ranks", daemon=True
            )
            watch.start()
            join = Join(
                config=self._config,
                rank=index,
                device=f"cuda:{index}" if self._on_gpus else "cpu",
                threads=self._threads,
                max_tokens=self._max_tokens,
                rendezvous=self.rendezvous,
            )
            self._send(member, pack(join))

    def wait_loaded(self) -> None:
        """Until each has its part; from then on the end of one is the end of all. Raises
        ConfigError with what a rank says against a setting, or RankFailed."""
        for member in self._members:
            answer = unpack_answer(self._receive(member))
            if isinstance(answer, NotLoaded):
                said = f"rank {member.index}: {answer.message}"
                raise ConfigError(said) if answer.is_config else RankFailed(said)
        with self._lock:
            self._are_loaded = True
            if self._first_end is not None:
                raise RankFailed(self._first_end)

    def wait_met(self) -> None:
        """Until each has found all others: then nobody needs the rendezvous any more, but for
        threads of NCCL, which look into it as long as they run. Raises RankFailed."""
        for member in self._members:
            answer = unpack_answer(self._receive(member))
            assert isinstance(answer, Met), answer
        if not self._on_gpus:
            self._folder.cleanup()

    def send(self, message: bytes) -> None:
        """To each. Raises RankFailed."""
        for member in self._members:
            self._send(member, message)

    def receive_times(self) -> list[Sequence[int]]:
        """How long each was in each all-reduce of the step, in ns. Raises RankFailed."""
        return [unpack_times(self._receive(member)) for member in self._members]

    def failure(self, error: Exception) -> RankFailed:
        """What to say of an error that another process may have caused by its end."""
        self._end_seen.wait(_END_SEEN_S)
        if self._first_end is not None:
            return RankFailed(self._first_end)
        kind = StepFailure.RANK_LOST if isinstance(error, OSError | EOFError) else failure_of(error)
        ranks = self._config.tensor_parallel
        return RankFailed(f"a step of {ranks} ranks failed ({kind.value})", kind)

    def close(self) -> None:
        with self._lock:
            self._are_closing = True
        for member in self._members:
            member.end()
        self._folder.cleanup()

    def _send(self, member: _Member, message: bytes) -> None:
        try:
            member.connection.send_bytes(message)
        except OSError as error:
            raise self.failure(error) from error

    def _receive(self, member: _Member) -> bytes:
        try:
            return member.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self.failure(error) from error

    def _watch(self, member: _Member) -> None:
        code = member.process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = f"rank {member.index} of {self._config.tensor_parallel} {how}"
        with self._lock:
            if self._are_closing or self._first_end is not None:
                return
            self._first_end = said
            is_end_of_all = self._are_loaded
        self._end_seen.set()
        if is_end_of_all:
            for other in self._members:
                other.process.kill()
            self._folder.cleanup()  # who is told may end at once
            self._on_lost(said)


def _start_member(index: int) -> _Member:
    """A process that waits for its `Join`. Raises OSError."""
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            (sys.executable, "-m", _WORKER, str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
        )
    return _Member(index, process, ours)


@contextmanager
def closed_on_error(ranks: Ranks | None) -> Iterator[None]:
    """While an engine is put together."""
    try:
        yield
    except BaseException:
        if ranks is not None:
            ranks.close()
        raise
