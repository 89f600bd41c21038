"""Streams of `client` in a process of their own, what they count, and their end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.load.processes import ended

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Counts:
    """Counts of all streams of a process, from its start."""

    tokens: int = 0
    requests: int = 0
    errors: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.tokens + other.tokens, self.requests + other.requests, self.errors + other.errors
        )

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.tokens - other.tokens, self.requests - other.requests, self.errors - other.errors
        )


class Streams:
    """`with Streams(port, 8, 256, 60.0, folder) as streams:`; the process ends with it."""

    def __init__(
        self, port: int, streams: int, output_tokens: int, seconds: float, folder: Path
    ) -> None:
        self._path = folder / f"streams-{id(self):x}.lines"
        self._command = [
            sys.executable, "-m", "benchmarks.gateway_scale.client", str(port),
            "--streams", str(streams), "--output", str(output_tokens), "--seconds", str(seconds),
        ]  # fmt: skip

    def __enter__(self) -> Streams:
        with self._path.open("wb") as lines:
            self._process = subprocess.Popen(
                self._command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=lines,
                start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        ended(self._process)

    @property
    def counts(self) -> Counts:
        """So far: at most a second old."""
        found = [one for one in self._said() if isinstance(one, list)]
        return Counts(*found[-1][1:]) if found else Counts()

    @property
    def errors(self) -> list[str]:
        """The errors of streams that failed, and were begun again."""
        return [one for one in self._said() if isinstance(one, str)]

    @property
    def status(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return self._process.poll()

    def _said(self) -> list[object]:
        """What the process has said, by whole lines."""
        return [json.loads(line) for line in self._path.read_text().split("\n")[:-1]]
