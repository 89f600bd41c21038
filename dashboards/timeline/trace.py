"""Writes Chrome's trace format, which Perfetto and chrome://tracing open. The file appears under
its name only when it is complete.

Times are monotonic ns; in the file they are microseconds since the origin, with the digits of a
nanosecond. Times before the origin are moved to it. Slices of one row must nest: callers use
`nested`.
"""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

import msgspec

from telemetry.journal.atomic_file import atomic_file

Args = dict[str, Any]
_GZIP_LEVEL = 4


@dataclass(frozen=True, slots=True)
class Row:
    """A track: in the format, a thread of a process."""

    pid: int
    tid: int


@dataclass(frozen=True, slots=True)
class Slice:
    """A named interval, [start, end)."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    args: Args = field(default_factory=dict)


class TraceWriter:
    """`with TraceWriter(path, origin_ns) as trace: ...`; gzip when the name ends in .gz."""

    def __init__(self, path: Path, origin_ns: int, other: Args) -> None:
        """`other` is metadata of the whole trace."""
        self.events = 0
        self.origin_ns = origin_ns
        self._encode = msgspec.json.Encoder().encode
        self._other = other
        self._flows = 0
        self._path = path
        self._file: BinaryIO
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> TraceWriter:
        """Raises OSError, as the end of the block does."""
        with contextlib.ExitStack() as stack:
            partial = stack.enter_context(atomic_file(self._path))
            file: BinaryIO = stack.enter_context(partial.open("wb"))
            if self._path.suffix == ".gz":
                packed = gzip.GzipFile(self._path.name, "wb", _GZIP_LEVEL, file)
                file = cast(BinaryIO, stack.enter_context(packed))
            file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
            stack.push(self._complete)
            self._file, self._ending = file, stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending.__exit__(kind, error, traceback)

    def _complete(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._file.write(b'\n],"otherData":' + self._encode(self._other) + b"}\n")

    def process(self, pid: int, name: str) -> None:
        self._put({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}})
        self._put(
            {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
        )

    def row(self, row: Row, name: str) -> None:
        at = {"pid": row.pid, "tid": row.tid}
        self._put({"ph": "M", **at, "name": "thread_name", "args": {"name": name}})
        index = {"sort_index": row.tid}
        self._put({"ph": "M", **at, "name": "thread_sort_index", "args": index})

    def slice(self, row: Row, piece: Slice) -> None:
        start_ns = self._since_origin_ns(piece.start_ns)
        event: Args = {
            "ph": "X",
            "pid": row.pid,
            "tid": row.tid,
            "ts": start_ns / 1000,
            "dur": (self._since_origin_ns(piece.end_ns) - start_ns) / 1000,
            "name": piece.name,
            "cat": piece.category,
        }
        if piece.args:
            event["args"] = piece.args
        self._put(event)

    def counter(self, pid: int, name: str, at_ns: int, values: Mapping[str, float]) -> None:
        self._put({"ph": "C", "pid": pid, "name": name, "ts": self._us(at_ns), "args": values})

    def instant(self, row: Row, name: str, at_ns: int, scope: str, args: Args) -> None:
        """`scope` is t (the row), p (its process) or g (the whole trace)."""
        self._put(
            {
                "ph": "i",
                "pid": row.pid,
                "tid": row.tid,
                "ts": self._us(at_ns),
                "name": name,
                "cat": "event",
                "s": scope,
                "args": args,
            }
        )

    def flow(self, name: str, start: tuple[Row, int], finish: tuple[Row, int]) -> None:
        """An arrow from (row, ns) to (row, ns)."""
        self._flows += 1
        common = {"id": self._flows, "name": name, "cat": name}
        for phase, (row, at_ns) in (("s", start), ("f", finish)):
            event = {"ph": phase, **common, "pid": row.pid, "tid": row.tid, "ts": self._us(at_ns)}
            if phase == "f":
                event["bp"] = "e"
            self._put(event)

    def _us(self, at_ns: int) -> float:
        return self._since_origin_ns(at_ns) / 1000

    def _since_origin_ns(self, at_ns: int) -> int:
        return max(0, at_ns - self.origin_ns)

    def _put(self, event: Args) -> None:
        self._file.write((b",\n" if self.events else b"") + self._encode(event))
        self.events += 1


def nested(slices: Iterable[Slice]) -> list[Slice]:
    """Slices sorted by begin, each cut so that it ends within the slice that contains its begin.

    Slices without length are left out.
    """
    ordered = sorted(slices, key=lambda piece: (piece.start_ns, -piece.end_ns))
    open_ends: list[int] = []
    kept: list[Slice] = []
    for piece in ordered:
        while open_ends and open_ends[-1] <= piece.start_ns:
            open_ends.pop()
        end_ns = min(piece.end_ns, open_ends[-1]) if open_ends else piece.end_ns
        if end_ns <= piece.start_ns:
            continue
        if end_ns != piece.end_ns:
            piece = Slice(piece.name, piece.category, piece.start_ns, end_ns, piece.args)
        kept.append(piece)
        open_ends.append(end_ns)
    return kept


class RowAllocator:
    """Rows for overlapping intervals: each gets the first row that is free at its begin."""

    def __init__(self) -> None:
        self._free_ns: list[int | None] = []

    def allocate(self, start_ns: int) -> int:
        """The number of a row, from 0, that is in use until `release`."""
        for index, free_ns in enumerate(self._free_ns):
            if free_ns is not None and free_ns <= start_ns:
                self._free_ns[index] = None
                return index
        self._free_ns.append(None)
        return len(self._free_ns) - 1

    def release(self, index: int, end_ns: int) -> None:
        """The row is free for intervals that begin at `end_ns` or later."""
        self._free_ns[index] = end_ns

    def __len__(self) -> int:
        return len(self._free_ns)
