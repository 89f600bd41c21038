"""SLO classes and their targets: the defaults, and how a file states others.

A file is TOML or JSON:

    default = "chat"            # the class of a request that names none, or an unknown one

    [classes.chat]
    ttft_ms = 500
    itl_ms = 100                # 100 without it
    objective = 0.99            # share of requests that must be good; 0.99 without it
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

MAX_CLASSES = 16
_MAX_NAME_CHARACTERS = 64


class SloFileError(ValueError):
    """The file cannot be used; the message is one line with the remedy."""


class SloClass(msgspec.Struct, frozen=True, kw_only=True):
    """An SLO class and its targets.

    The share `objective` of its requests must be good: first token within `ttft_ns` of acceptance,
    and at least 99 of 100 gaps between tokens within `itl_ns`.
    """

    name: str
    ttft_ns: Annotated[int, msgspec.Meta(ge=0)]
    itl_ns: Annotated[int, msgspec.Meta(ge=0)]
    objective: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.99


class SloPolicy(msgspec.Struct, frozen=True):
    """All classes by name; `default` is one of them."""

    classes: dict[str, SloClass]
    default: str

    def __post_init__(self) -> None:
        if self.default not in self.classes:
            raise ValueError("the default is none of the classes")

    def of(self, name: str) -> SloClass:
        """The class of that name, or the default."""
        return self.classes.get(name) or self.classes[self.default]

    def is_unknown(self, name: str) -> bool:
        """A name was given and there is no such class."""
        return bool(name) and name not in self.classes


def _class(name: str, ttft_ms: int) -> SloClass:
    return SloClass(name=name, ttft_ns=ttft_ms * 1_000_000, itl_ns=100_000_000)


DEFAULT_POLICY = SloPolicy(
    {
        name: _class(name, ttft_ms)
        for name, ttft_ms in (("voice", 150), ("code", 200), ("chat", 500), ("batch", 2000))
    },
    "chat",
)


class _ClassEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    ttft_ms: float
    itl_ms: float = 100.0
    objective: float = 0.99


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    classes: dict[str, _ClassEntry]
    default: str | None = None


def policy_of(path: str | None) -> SloPolicy:
    """The policy of a file, or the default one. Raises SloFileError."""
    return DEFAULT_POLICY if path is None else read_policy(path)


def read_policy(path: str) -> SloPolicy:
    """The policy that the file states; it replaces the default classes. Raises SloFileError."""
    try:
        data = Path(path).read_bytes()
        if path.endswith(".json"):
            found = msgspec.json.decode(data, type=_File)
        else:
            found = msgspec.toml.decode(data, type=_File)
    except OSError as error:
        raise SloFileError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SloFileError(f"{path}: {error}") from error
    if not found.classes or len(found.classes) > MAX_CLASSES:
        raise SloFileError(f"{path}: name 1 to {MAX_CLASSES} classes, not {len(found.classes)}")
    default = found.default or next(iter(found.classes))
    if default not in found.classes:
        raise SloFileError(f"{path}: default {default!r} is none of the classes")
    classes = {name: _checked(path, name, entry) for name, entry in found.classes.items()}
    return SloPolicy(classes, default)


def _checked(path: str, name: str, entry: _ClassEntry) -> SloClass:
    if not name.strip() or not name.isprintable() or len(name) > _MAX_NAME_CHARACTERS:
        raise SloFileError(
            f"{path}: class name {name!r} must be 1 to {_MAX_NAME_CHARACTERS} printable characters"
        )
    if not (entry.ttft_ms > 0 and entry.itl_ms > 0):
        raise SloFileError(f"{path}: class {name!r}: ttft_ms and itl_ms must be positive")
    if not 0 < entry.objective < 1:
        raise SloFileError(
            f"{path}: class {name!r}: objective must lie between 0 and 1, as 0.99 does; at 1 "
            "there is no error budget"
        )
    return SloClass(
        name=name,
        ttft_ns=round(entry.ttft_ms * 1e6),
        itl_ns=round(entry.itl_ms * 1e6),
        objective=entry.objective,
    )
