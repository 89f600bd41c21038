"""The flight recorder on disk, which survives a gateway that is killed.

Sealed pieces are appended to files in a folder, each of which can be read by itself. The kernel
keeps what was written when the process is gone. When the folder is over its capacity the oldest
file is deleted, those of earlier runs first. A killed gateway loses the piece that is not sealed:
about the last second.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import BinaryIO

from telemetry.facts.clock import utc_stamp
from telemetry.journal import journal_format as form
from telemetry.journal.journal import Journal, Segment
from telemetry.journal.journal_reader import SUFFIX

log = logging.getLogger("phasescope.journal")

REASON = "rolling"
_FILES = 8
_FILES_KEPT = 256


class FolderInUse(Exception):
    """Another server writes its journal to this folder."""


class JournalFiles:
    """Rolling files of one run in `folder`. Used by one thread."""

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        """Raises OSError if the folder cannot be used, FolderInUse if another server uses it."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.error: str | None = None
        self._folder = folder
        self._capacity_bytes = capacity_bytes
        self._lock = self._take_folder()
        self._run = f"{utc_stamp()}-{os.getpid()}"
        self._files = 0
        self._file: BinaryIO | None = None
        self._file_bytes = 0
        self._file_facts = 0
        self._last_piece = -1
        self._last_segment = -1

    def write(self, journal: Journal) -> None:
        """Append the pieces sealed since the last call. An error of the disk ends the writing, not
        the service."""
        if self.error is not None:
            return
        try:
            for segment, piece in journal.after(self._last_piece):
                self._append(journal, segment, piece.frame, piece.facts)
                self._last_piece, self._last_segment = piece.number, segment.number
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self.error = f"{self._folder}: {error.strerror}"
            log.warning("the journal folder is given up (%s); dumps go on", self.error)

    def close(self) -> None:
        """Complete the last file and release the folder."""
        if self.error is None:
            try:
                self._end_file()
            except OSError as error:
                self.error = f"{self._folder}: {error.strerror}"
        os.close(self._lock)

    def _take_folder(self) -> int:
        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise FolderInUse(f"{self._folder}: another server writes its journal here") from error
        return fd

    def _append(self, journal: Journal, segment: Segment, frame: bytes, facts: int) -> None:
        """Append a piece. A file begins only where a segment does, because that has the facts about
        what was live."""
        is_full = self._file_bytes >= self._capacity_bytes // _FILES
        if self._file is None or (is_full and segment.number != self._last_segment):
            self._end_file()
            self._begin_file(journal, segment)
        assert self._file is not None
        self._file.write(frame)
        self._file_bytes += len(frame)
        self._file_facts += facts

    def _begin_file(self, journal: Journal, segment: Segment) -> None:
        self._prune()
        path = self._folder / f"{self._run}-{self._files:06d}{SUFFIX}"
        self._files += 1
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(fd, "wb")
        self._file_bytes = self._file_facts = 0
        for frame in journal.opening(segment, REASON):
            self._file.write(frame)
            self._file_bytes += len(frame)

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.write(form.done(self._file_facts))
            self._file.close()
            self._file = None

    def _prune(self) -> None:
        """Delete old files to make room for one more."""
        files = sorted(self._folder.glob(f"*{SUFFIX}"))
        sizes = [file.stat().st_size for file in files]
        total_bytes = sum(sizes) + self._capacity_bytes // _FILES
        for index, (file, size_bytes) in enumerate(zip(files, sizes, strict=True)):
            if total_bytes <= self._capacity_bytes and len(files) - index < _FILES_KEPT:
                break
            file.unlink()
            total_bytes -= size_bytes
