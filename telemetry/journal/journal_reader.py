"""Reads the flight recorder's files back, one piece in memory at a time.

A dump, a folder of rolling files and the journal of a simulated run are read in the same way. A
file that is not a journal, was written by another version, or is damaged raises a JournalError with
one line for people. A missing tail is no error, because a writer that was killed leaves one;
`Journal.truncated` reports it once the facts have been read.
"""

from __future__ import annotations

import errno
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, TypeVar

import msgspec

from telemetry.facts.records import SCHEMA_VERSION, Fact, RequestAccepted, fact_ns
from telemetry.journal import journal_format as form
from telemetry.journal.journal_format import FRAME, MAGIC, PIECE, Header, Kind, Versions

log = logging.getLogger("phasescope.journal")

SUFFIX = ".journal"

T = TypeVar("T")

_header_decoder = msgspec.msgpack.Decoder(Header)
_versions_decoder = msgspec.msgpack.Decoder(Versions)
_Facts = Annotated[list[Fact], msgspec.Meta(max_length=form.MAX_ITEMS)]
_facts_decoder = msgspec.msgpack.Decoder(_Facts)
_groups_decoder = msgspec.msgpack.Decoder(
    Annotated[list[_Facts], msgspec.Meta(max_length=form.MAX_ITEMS)]
)
_count_decoder = msgspec.msgpack.Decoder(int)
_UNDECODABLE = (msgspec.MsgspecError, RecursionError)  # arrays in arrays, without end
_REMEDIES = {errno.EACCES: "; let this user read it, or run as one who may"}


class JournalError(Exception):
    """The file cannot be read; the message is one line with its name."""


class NotAJournal(JournalError):
    """The file is not a journal."""


class UnknownVersion(JournalError):
    """The format, or a fact, is not known to this version."""


class JournalDamaged(JournalError):
    """A frame is complete, but its contents are wrong."""


class _HeaderMissing(JournalDamaged):
    """The file ends before its header does."""


class _Truncated(Exception):
    """The file ends within a frame."""


class Journal:
    """An opened journal: its header, its carried facts, and all facts as a stream."""

    def __init__(self, paths: list[Path]) -> None:
        """`paths` are the files of one run, oldest first. Raises JournalError."""
        self.path = paths[0]
        self.truncated: str | None = None
        self._paths = paths
        with self._open(paths[0]) as file:
            self.header = _read_header(file, paths[0])
            self.carried = _read_carried(file, paths[0])
        self.cut_requests = frozenset(
            fact.request_id for fact in self.carried if isinstance(fact, RequestAccepted)
        )

    def facts(self) -> Iterator[Fact]:
        """The carried facts in order of time, then all others in the order of the folds. May be
        called again. Raises JournalDamaged."""
        self.truncated = None
        yield from self.carried
        for path in self._paths:
            yield from self._facts_of(path)

    def _facts_of(self, path: Path) -> Iterator[Fact]:
        count = 0
        with self._open(path) as file:
            try:
                _read_header(file, path)
                for kind, payload in _frames(file, path):
                    if kind == Kind.FACTS:
                        facts = _decode_piece(payload, _facts_decoder, path)
                        count += len(facts)
                        yield from facts
                    elif kind == Kind.DONE:
                        _check_count(count, payload, path)
                        return
                self._note(path, "its end is missing: the writer was stopped, or still writes")
            except _Truncated as cut:
                self._note(path, str(cut))
            except _HeaderMissing:  # of a later file: the first one has been opened
                self._note(path, "it ends before its header does")

    def _note(self, path: Path, what: str) -> None:
        self.truncated = f"{path}: {what}"
        log.warning("%s", self.truncated)

    def _open(self, path: Path) -> BinaryIO:
        try:
            return path.open("rb")
        except OSError as error:
            raise _unread(path, error) from error


def open_journal(path: Path) -> Journal:
    """A file, or a folder of rolling files, of which the last run is read.

    Raises JournalError.
    """
    if not os.path.isdir(path):  # a Path raises for what cannot be looked at
        return Journal([path])
    try:
        names = os.listdir(path)
    except OSError as error:
        raise _unread(path, error) from error
    files = sorted(path / name for name in names if name.endswith(SUFFIX))
    if not files:
        raise NotAJournal(f"{path}: no *{SUFFIX} file in this folder")
    run = run_of(files[-1])
    return Journal([file for file in files if run_of(file) == run])


def read_journal(path: Path) -> Iterator[Fact]:
    """All facts of a journal, streamed. Raises JournalError."""
    return open_journal(path).facts()


def run_of(path: Path) -> str:
    """Rolling files are named RUN-NUMBER.journal."""
    return path.name.rpartition("-")[0]


def _unread(path: Path, error: OSError) -> JournalError:
    return JournalError(f"{path}: {error.strerror}{_REMEDIES.get(error.errno or 0, '')}")


def _read_header(file: BinaryIO, path: Path) -> Header:
    if file.read(len(MAGIC)) != MAGIC:
        raise NotAJournal(f"{path}: not a phasescope journal")
    try:
        kind, payload = next(_frames(file, path))
    except (_Truncated, StopIteration):
        raise _HeaderMissing(f"{path}: it ends before its header does") from None
    if kind != Kind.HEAD:
        raise JournalDamaged(f"{path}: it does not begin with a header")
    try:
        versions = _versions_decoder.decode(payload)
        if (versions.format, versions.schema) != (form.FORMAT, SCHEMA_VERSION):
            raise UnknownVersion(
                f"{path}: written in format {versions.format} with facts of version "
                f"{versions.schema}; this phasescope reads format {form.FORMAT} with facts of "
                f"version {SCHEMA_VERSION}: use the phasescope that wrote it"
            )
        return _header_decoder.decode(payload)
    except _UNDECODABLE as error:
        raise JournalDamaged(f"{path}: its header cannot be read: {error}") from error


def _read_carried(file: BinaryIO, path: Path) -> tuple[Fact, ...]:
    try:
        kind, payload = next(_frames(file, path))
    except (_Truncated, StopIteration):
        return ()
    if kind != Kind.CARRIED:
        return ()
    groups = _decode_piece(payload, _groups_decoder, path)
    return tuple(sorted((fact for group in groups for fact in group), key=fact_ns))


def _frames(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Kinds and payloads to the end of the file. Raises _Truncated, JournalDamaged."""
    while True:
        offset = file.tell()
        start = file.read(FRAME.size)
        if not start:
            return
        if len(start) < FRAME.size:
            raise _Truncated(f"it ends within a frame, at byte {offset}")
        kind, length, checksum = FRAME.unpack(start)
        if kind not in {known.value for known in Kind} or length > form.MAX_PAYLOAD_BYTES:
            raise JournalDamaged(f"{path}: no frame begins at byte {offset}")
        payload = file.read(length)
        if len(payload) < length:
            raise _Truncated(f"it ends within a frame, at byte {offset}")
        if zlib.crc32(payload) != checksum:
            raise JournalDamaged(f"{path}: the frame at byte {offset} fails its checksum")
        yield kind, payload


def _decode_piece(payload: bytes, decoder: msgspec.msgpack.Decoder[T], path: Path) -> T:
    """What was packed. The file may come from anywhere: its bytes bound what is unpacked, and the
    lengths of arrays what is made of that."""
    try:
        return decoder.decode(_unpacked(payload, path))
    except _UNDECODABLE as error:
        raise UnknownVersion(
            f"{path}: a fact is not known to this phasescope ({error}): use the one that wrote it"
        ) from error


def _unpacked(payload: bytes, path: Path) -> bytes:
    if len(payload) < PIECE.size:
        raise JournalDamaged(f"{path}: a piece of {len(payload)} bytes has no header")
    _, raw_bytes, _, _ = PIECE.unpack_from(payload)
    if not 0 < raw_bytes <= form.MAX_PAYLOAD_BYTES:
        raise JournalDamaged(f"{path}: no piece is written of {raw_bytes} bytes")
    try:
        raw = zlib.decompressobj().decompress(payload[PIECE.size :], raw_bytes)
    except zlib.error as error:
        raise JournalDamaged(f"{path}: a piece cannot be unpacked: {error}") from error
    if len(raw) != raw_bytes:
        raise JournalDamaged(f"{path}: a piece has {len(raw)} bytes, not {raw_bytes}")
    return raw


def _check_count(count: int, payload: bytes, path: Path) -> None:
    try:
        expected = _count_decoder.decode(payload)
    except _UNDECODABLE as error:
        raise JournalDamaged(f"{path}: its number of facts cannot be read: {error}") from error
    if count != expected:
        raise JournalDamaged(f"{path}: {count} facts where {expected} were written")
