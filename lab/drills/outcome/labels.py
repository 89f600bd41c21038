"""The sealed label of an episode, in a folder of its own that no server knows.

The file is written once, readable by its owner only, and identified by its SHA-256. Whoever
publishes the hash before any verdict is scored cannot change the label afterwards. An episode that
is run again has a label of its own beside the earlier one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from pathlib import Path

import msgspec

FOLDER = "labels"


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """The fault of an episode: what, when, how strong, its victims and its culprits.

    `on_ns` and `off_ns` are None where there was no fault. `victims` and `culprits` are request
    ids, or tenants where the cause is one; a usual request that the fault makes longer may be both.
    """

    symptom: str
    mechanism: str
    intensity: float
    unit: str
    seed: int
    on_ns: int | None
    off_ns: int | None
    victims: tuple[str, ...] = ()
    culprits: tuple[str, ...] = ()


class Sealed(msgspec.Struct, frozen=True):
    """The path of a label and its hash."""

    path: str
    sha256: str


def seal(label: Label, out: Path, name: str) -> Sealed:
    """Write `out/labels/<name>.json`, or the first of `<name>.2.json` and so on that is not there
    yet."""
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    data = msgspec.json.format(msgspec.json.encode(label), indent=1) + b"\n"
    for number in itertools.count(1):
        path = folder / (f"{name}.json" if number == 1 else f"{name}.{number}.json")
        with contextlib.suppress(FileExistsError), open(path, "xb", opener=_for_owner) as file:
            file.write(data)
            break
    return Sealed(str(path), hashlib.sha256(data).hexdigest())


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def unseal(path: Path, sha256: str | None = None) -> Label:
    """Read a label. Raises ValueError when it was changed after it was sealed."""
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if sha256 is not None and found != sha256:
        raise ValueError(f"{path}: the label was changed after it was sealed")
    return msgspec.json.decode(data, type=Label)
