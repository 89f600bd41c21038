"""The flight recorder on disk, which survives a gateway that is killed.

Sealed pieces are appended to files in a folder, each of which can be read by itself. The kernel
keeps what was written when the process is gone. When the folder is over its capacity the oldest
file is deleted, those of earlier runs first. A killed gateway loses the piece that is not sealed:
about the last second.

After an error of the disk the file is cut back to where its last segment begins, and after a pause
a new file begins with that segment, as long as it is in memory. Where pieces are lost, because
memory dropped them before, another run begins: what is read as one run has no hole.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from io import FileIO
from pathlib import Path

from telemetry.facts.clock import Clock, utc_stamp
from telemetry.journal import journal_format as form
from telemetry.journal.journal import Journal, Piece, Segment
from telemetry.journal.journal_reader import SUFFIX

log = logging.getLogger("phasescope.journal")

REASON = "rolling"
_FILES = 8
_FILES_KEPT = 256
_FIRST_PAUSE_NS, _LONGEST_PAUSE_NS = 1_000_000_000, 60_000_000_000


class FolderInUse(Exception):
    """Another server writes its journal to this folder."""


class JournalFiles:
    """Rolling files of one run in `folder`. Used by one thread. `error` is the last one of the
    disk, `errors` counts them, and `pieces_lost` those that memory dropped unwritten."""

    def __init__(self, folder: Path, capacity_bytes: int, clock: Clock) -> None:
        """Raises OSError if the folder cannot be used, FolderInUse if another server uses it."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.error: str | None = None
        self.errors = self.pieces_lost = 0
        self._folder = folder
        self._capacity_bytes = capacity_bytes
        self._clock = clock
        self._lock = self._take_folder()
        self._first_run = self._run = f"{utc_stamp()}-{os.getpid()}"
        self._runs = self._files = 0
        self._path = folder
        self._file: FileIO | None = None
        self._file_bytes = self._file_facts = 0
        self._segment_bytes = self._segment_facts = self._segment_piece = 0  # where it begins
        self._last_piece = -1
        self._last_segment = -1
        self._pause_ns = _FIRST_PAUSE_NS
        self._resumes_ns: int | None = None

    def write(self, journal: Journal) -> None:
        """Append the pieces sealed since the last call. An error of the disk interrupts the
        writing, not the service."""
        resumes_ns = self._resumes_ns
        if resumes_ns is not None and self._clock.now_ns() < resumes_ns:
            return
        try:
            if resumes_ns is not None:
                self._keep_folder()
            for segment, piece in journal.after(self._last_piece):
                self._append(journal, segment, piece)
        except (OSError, FolderInUse) as error:
            self._failed(error)
            return
        if resumes_ns is not None:
            log.warning("the journal folder %s is written again", self._folder)
        self._pause_ns, self._resumes_ns = _FIRST_PAUSE_NS, None

    def close(self) -> None:
        """Complete the last file and release the folder."""
        try:
            self._end_file()
        except OSError as error:
            self._note(error)
        os.close(self._lock)

    def _note(self, error: OSError | FolderInUse) -> None:
        self.errors += 1
        why = error.strerror if isinstance(error, OSError) else "another server uses it"
        self.error = f"{self._folder}: {why}"

    def _failed(self, error: OSError | FolderInUse) -> None:
        """Leave the file as it can be read, and pause."""
        self._note(error)
        log.warning(
            "the journal folder cannot be written (%s); it is tried again in %d s, and dumps go on",
            self.error,
            self._pause_ns // 1_000_000_000,
        )
        self._resumes_ns = self._clock.now_ns() + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)
        self._cut_file()

    def _cut_file(self) -> None:
        """End the file before its last segment, which is written again. A file of that segment
        alone is removed."""
        file, self._file = self._file, None
        if file is None:
            return
        self._last_piece, self._last_segment = self._segment_piece - 1, -1
        try:
            file.truncate(self._segment_bytes)
        except OSError:
            self._begin_run()  # what comes again is in the file still
        with contextlib.suppress(OSError):
            if self._segment_facts:
                file.seek(self._segment_bytes)
                file.write(form.done(self._segment_facts))
            else:
                self._path.unlink()
        with contextlib.suppress(OSError):
            file.close()

    def _begin_run(self) -> None:
        """Files from now on are not read as one with those before."""
        self._runs += 1
        self._files = 0
        self._run = f"{self._first_run}.{self._runs:06d}"  # sorts after `-`

    def _keep_folder(self) -> None:
        """The folder is there, and in use: somebody may have removed it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._lock), (self._folder / "lock").stat()):
                return
        taken = self._take_folder()
        os.close(self._lock)
        self._lock = taken

    def _take_folder(self) -> int:
        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise FolderInUse(f"{self._folder}: another server writes its journal here") from error
        return fd

    def _append(self, journal: Journal, segment: Segment, piece: Piece) -> None:
        """Append a piece. A file begins only where a segment does, because that has the facts about
        what was live."""
        lost = piece.number - self._last_piece - 1
        if lost:
            self._end_file()
            self._begin_run()
            self.pieces_lost += lost
            self._last_piece += lost
        is_new = segment.number != self._last_segment
        is_full = self._file_bytes >= self._capacity_bytes // _FILES
        if self._file is None or (is_full and is_new):
            self._end_file()
            self._begin_file(journal, segment, piece)
        elif is_new:
            self._segment_bytes, self._segment_facts = self._file_bytes, self._file_facts
            self._segment_piece = piece.number
        self._write(piece.frame)
        self._file_facts += piece.facts
        self._last_piece, self._last_segment = piece.number, segment.number

    def _begin_file(self, journal: Journal, segment: Segment, piece: Piece) -> None:
        self._prune()
        self._path = self._folder / f"{self._run}-{self._files:06d}{SUFFIX}"
        self._files += 1
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = FileIO(fd, "wb")
        self._file_bytes = self._file_facts = 0
        self._segment_bytes, self._segment_facts, self._segment_piece = 0, 0, piece.number
        for frame in journal.opening(segment, REASON):
            self._write(frame)

    def _write(self, data: bytes) -> None:
        """Nothing is kept back: what is counted as written the kernel has."""
        assert self._file is not None
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        self._file_bytes += len(data)

    def _end_file(self) -> None:
        if self._file is not None:
            self._write(form.done(self._file_facts))
            self._file.close()
            self._file = None

    def _prune(self) -> None:
        """Delete old files to make room for one more. Others may delete some at the same time."""
        files: list[tuple[Path, int]] = []
        for file in sorted(self._folder.glob(f"*{SUFFIX}")):
            with contextlib.suppress(FileNotFoundError):
                files.append((file, file.stat().st_size))
        total_bytes = sum(size for _, size in files) + self._capacity_bytes // _FILES
        for index, (file, size_bytes) in enumerate(files):
            if total_bytes <= self._capacity_bytes and len(files) - index < _FILES_KEPT:
                break
            file.unlink(missing_ok=True)
            total_bytes -= size_bytes
