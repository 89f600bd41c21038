"""Lines of files, plain or gzip, within bounds: what cannot be read is counted, never guessed."""

from __future__ import annotations

import gzip
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

MAX_LINE_BYTES = 16 << 20
MAX_WHOLE_BYTES = 64 << 20
MAX_BYTES = 8 << 30
MAX_KEPT = 300_000
_TELL_EVERY_LINES = 1000
_GZIP = b"\x1f\x8b"

T = TypeVar("T")
Progress = Callable[[str], None]


class NotImportable(Exception):
    """The evidence cannot be read as this kind; the message is one line that says what to do."""


class Newest(Generic[T]):
    """The newest records, at most as many as are given; `dropped` older ones are not kept."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._kept: deque[T] = deque(maxlen=most)
        self._added = 0

    def add(self, record: T) -> None:
        self._kept.append(record)
        self._added += 1

    @property
    def dropped(self) -> int:
        return self._added - len(self._kept)

    def all(self) -> list[T]:
        return list(self._kept)


class Tally:
    """How much of the input was read, and why the first of the rest was not. `skipped` lines are of
    another type that is known and not needed."""

    def __init__(self) -> None:
        self.read = self.unread = self.skipped = self.dropped = 0
        self.first_unread = ""

    def refuse(self, why: str) -> None:
        """A line that should have been read."""
        self.unread += 1
        self.first_unread = self.first_unread or why

    @property
    def text(self) -> str:
        """In one line; empty where everything was read."""
        parts = []
        if self.unread:
            parts.append(f"{self.unread} of {self.unread + self.read} records could not be read "
                         f"(the first: {self.first_unread})")  # fmt: skip
        if self.dropped:
            parts.append(f"{self.dropped} older records are more than is kept")
        return "; ".join(parts)


def opened(path: Path) -> BinaryIO | gzip.GzipFile:
    """The file, decompressed where it is gzip. Raises NotImportable."""
    try:
        with path.open("rb") as file:
            is_gzip = file.read(len(_GZIP)) == _GZIP
        return gzip.open(path, "rb") if is_gzip else path.open("rb")
    except OSError as error:
        raise NotImportable(f"{path}: {error.strerror or error}") from error


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file's text, fewer where it ends before. Raises NotImportable."""
    with opened(path) as file:
        return _read(file, path, count)


def lines(
    paths: Sequence[Path],
    tally: Tally,
    progress: Progress,
    *,
    most_bytes: int = MAX_BYTES,
    must_end: bool = False,
) -> Iterator[bytes]:
    """Every line that is not empty, of one file after another. A line over the bound is refused;
    with `must_end` also the last one of a file if it has no line break, as of a file that was cut.
    Raises NotImportable, also for more than `most_bytes` of text, with what is refused."""
    count, budget = 0, _Budget(most_bytes)
    for path in paths:
        with opened(path) as file:
            while line := _next_line(file, path, tally, budget):
                count += 1
                if count % _TELL_EVERY_LINES == 0:
                    progress(f"{path.name}: {count:,} lines")
                if must_end and not line.endswith(b"\n"):
                    tally.refuse(f"{path.name} ends in the middle of a line")
                elif stripped := line.strip():
                    yield stripped


class _Budget:
    """How much text may be read, of all files together."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = self._left = most_bytes

    def line(self, file: BinaryIO | gzip.GzipFile, path: Path, most: int) -> bytes:
        """A line, or `most` bytes of it. Raises NotImportable; OSError, EOFError, zlib.error."""
        found = file.readline(most)
        self._left -= len(found)
        if self._left < 0:
            raise NotImportable(
                f"{path}: more than {self._most_bytes / (1 << 30):.3g} GiB of text; give the files "
                "of the time in question"
            )
        return found


def _next_line(file: BinaryIO | gzip.GzipFile, path: Path, tally: Tally, budget: _Budget) -> bytes:
    """The next line that is not too long; empty at the end. A gzip file that ends early ends
    there."""
    while True:
        try:
            line = budget.line(file, path, MAX_LINE_BYTES + 1)
            if len(line) <= MAX_LINE_BYTES:
                return line
            while line and not line.endswith(b"\n"):
                line = budget.line(file, path, MAX_LINE_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            tally.refuse(f"{path.name} ends early: {error}")
            return b""
        tally.refuse(f"a line of more than {MAX_LINE_BYTES >> 20} MiB")


def whole(path: Path) -> bytes:
    """All of a file that cannot be read line by line. Raises NotImportable."""
    with opened(path) as file:
        data = _read(file, path, MAX_WHOLE_BYTES + 1)
    if len(data) > MAX_WHOLE_BYTES:
        raise NotImportable(
            f"{path}: more than {MAX_WHOLE_BYTES >> 20} MiB in one piece; give it as JSON lines"
        )
    return data


def _read(file: BinaryIO | gzip.GzipFile, path: Path, count: int) -> bytes:
    """Raises NotImportable."""
    try:
        return file.read(count)
    except (OSError, EOFError, zlib.error) as error:
        raise NotImportable(f"{path}: {error}") from error
