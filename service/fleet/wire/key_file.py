"""The key that a fleet's gateways and nodes share, from a file."""

from __future__ import annotations

from pathlib import Path

LEAST_BYTES = 32
MOST_BYTES = 4096


class KeyFileError(Exception):
    """The file holds no usable key; the message is one line with the remedy."""


def read_key(path: str) -> bytes:
    """The file's content without the blanks around it. Raises KeyFileError."""
    try:
        with Path(path).open("rb") as file:
            key = file.read(MOST_BYTES + 1).strip()
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    if len(key) > MOST_BYTES:
        raise KeyFileError(f"{path}: longer than {MOST_BYTES} bytes, so it is no key")
    if len(key) < LEAST_BYTES:
        raise KeyFileError(
            f"{path}: {len(key)} bytes are too few for a key; make one of at least {LEAST_BYTES} "
            "with `openssl rand -hex 32`"
        )
    return key
