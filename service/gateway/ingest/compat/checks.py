"""Refuses the foreign fields that the server does not take, or cannot honour."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from msgspec import Struct

from service.config.settings import Compat
from service.gateway.errors import ApiError, bad_request
from service.gateway.ingest.compat.dialects import (
    Dialect,
    Foreign,
    Treatment,
    foreign_fields,
    untaken,
)

_NAMES = {Dialect.OPENAI: "OpenAI", Dialect.VLLM: "vLLM", Dialect.SGLANG: "SGLang"}


def check_foreign(sent: Struct, compat: Compat) -> None:
    """Check a decoded body or part of one. Raises ApiError that names the field.

    Types refuse every value of a refused field that does not mean "off", but for switches.
    """
    kind = type(sent)
    if compat != "all":
        for name, mark in untaken(kind, compat):
            if getattr(sent, name) is not None:
                raise _not_taken(name, mark.dialects)
    for name, mark in _refused(kind):
        if getattr(sent, name) is mark.wrong:
            raise unsupported(name, reason=mark.reason)


def unsupported(path: str, param: str | None = None, reason: str = "") -> ApiError:
    """The error for a field that this server does not support; `reason` ends the sentence."""
    why = f": {reason}" if reason else ""
    message = f"{path} is not supported by this server{why}"
    return bad_request(message, param or path, "unsupported")


@cache
def _refused(kind: type[Struct]) -> tuple[tuple[str, Foreign], ...]:
    marks = foreign_fields(kind).items()
    return tuple((name, mark) for name, mark in marks if mark.treatment is Treatment.REFUSED)


def _not_taken(name: str, dialects: Iterable[Dialect]) -> ApiError:
    whose = " and ".join(f"{_NAMES[one]}'s" for one in dialects)
    flags = " or ".join([*(f"--compat {one.value}" for one in dialects), "--compat all"])
    message = f"unknown field {name!r}: it is {whose}; a server with {flags} takes it"
    return bad_request(message, name, "unknown_field")
