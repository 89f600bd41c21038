"""A baseline file: the `Reference` of one run, to compare another run with."""

from __future__ import annotations

from pathlib import Path

import msgspec

from diagnosis.detection.reference import Reference
from telemetry.journal.atomic_file import write_atomically


class BaselineError(Exception):
    """The file cannot be used; the message is one line with the remedy."""


def save_baseline(reference: Reference, path: Path) -> None:
    """Write it as indented JSON. Raises BaselineError."""
    try:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(reference)) + b"\n")
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror}") from error


def read_baseline(path: Path) -> Reference:
    """Raises BaselineError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Reference)
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise BaselineError(f"{path}: no baseline of this version: {error}") from error
