"""Starts the process of vLLM's scheduler, and talks to it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

import lab
from lab.vllm_replay.protocol import (
    Answer,
    Call,
    Command,
    Reply,
    SchedulerFailed,
    read_body,
    write_message,
)

_ROOT = Path(next(iter(lab.__path__))).parent
_END_S = 10.0
_QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",  # nothing is computed
}


def find_python(given: str | None) -> str:
    """The Python that has vLLM: the given one, else this one. Raises SchedulerFailed."""
    if given is not None:
        return given
    if importlib.util.find_spec("vllm") is None:
        raise SchedulerFailed("vLLM is not installed here: name the Python that has it (--python)")
    return sys.executable


class SchedulerProcess:
    """A `ForeignScheduler` in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Path) -> None:
        self._process, self._errors = process, errors
        self._decoder = msgspec.msgpack.Decoder(Answer)
        self.has_requests = False

    def do(self, *commands: Command) -> list[Reply]:
        """The reply to each command. Raises SchedulerFailed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "started with pipes"
        assert stdout is not None, "started with pipes"
        try:
            write_message(stdin, Call(list(commands)))  # type: ignore[arg-type]
            body = read_body(stdout)  # type: ignore[arg-type]
        except OSError as error:
            raise SchedulerFailed(f"vLLM's scheduler is gone: {self._last_words()}") from error
        if body is None:
            raise SchedulerFailed(f"vLLM's scheduler is gone: {self._last_words()}")
        answer = self._decoder.decode(body)
        if answer.error is not None:
            raise SchedulerFailed(f"vLLM's scheduler: {answer.error}")
        self.has_requests = answer.has_requests
        return answer.replies

    def _last_words(self) -> str:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.poll()}"


@contextmanager
def scheduler_process(python: str) -> Iterator[SchedulerProcess]:
    """vLLM's scheduler in the Python `python`, while the context lasts. Raises SchedulerFailed."""
    environment = {**os.environ, **_QUIET}
    paths = [str(_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment.pop("PHASESCOPE_ATTACH", None)  # a replay is nothing to observe
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "stderr"
        with errors.open("wb") as file:
            try:
                process = subprocess.Popen(
                    [python, "-m", "lab.vllm_replay.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env=environment,
                )
            except OSError as error:
                raise SchedulerFailed(f"{python}: {error.strerror}") from error
        try:
            yield SchedulerProcess(process, errors)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
