"""A phasescope server of a benchmark's own, in processes of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.load.processes import ended, free_port

START_TIMEOUT_S = 300
SAY_EVERY_S, STOP_WITHIN_S = 2.0, 30.0


@dataclass(frozen=True)
class Started:
    """A server that takes requests."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(
    *flags: str,
    checkout: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path = Path(os.devnull),
) -> Iterator[Started]:
    """`phasescope serve` with these flags, from the code in `checkout` if given, with more in its
    environment, its words in `log`. SystemExit when it does not start."""
    port = free_port()
    command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port), *flags]
    variables = dict(os.environ)
    if checkout is not None:
        variables["PYTHONPATH"] = str(checkout)
    variables |= environment or {}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=checkout, env=variables, stderr=errors, start_new_session=True
        )
    try:
        started = Started(process, port)
        _wait_ready(started)
        yield started
    finally:
        ended(process, STOP_WITHIN_S)


def _wait_ready(started: Started) -> None:
    began_s = told_s = time.monotonic()
    while not _is_ready(started.url):
        now_s = time.monotonic()
        if started.process.poll() is not None or now_s - began_s > START_TIMEOUT_S:
            raise SystemExit("the server ended, or was not ready in time")
        if now_s - told_s > SAY_EVERY_S:
            told_s = now_s
            print(f"  starting a server: {now_s - began_s:.0f} s", flush=True)
        time.sleep(0.1)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
