"""Whose fields a server takes, and what it may do with one.

A foreign field is a field of a request type whose annotation carries a `Foreign`. Parsing, the page
`docs/reference/compatibility.md` and the tests read the same annotations, so they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, get_args, get_origin, get_type_hints

from msgspec import Struct

from service.config.settings import Compat


class Dialect(StrEnum):
    """Whose API has the field."""

    OPENAI = "openai"
    VLLM = "vllm"
    SGLANG = "sglang"


class Treatment(StrEnum):
    """What happens to a field.

    REFUSED fields are taken with the values that mean "off", because clients and routers send
    those unasked.
    """

    HONOURED = "honoured"
    ACCEPTED = "accepted"
    REFUSED = "refused"


VLLM = (Dialect.VLLM,)
SGLANG = (Dialect.SGLANG,)
BOTH = (Dialect.VLLM, Dialect.SGLANG)
OPENAI = (Dialect.OPENAI,)


@dataclass(frozen=True, slots=True)
class Foreign:
    """The annotation of a foreign field: whose it is, what is done with it, and why.

    A refused switch has `wrong`, the value that its type allows and the server does not.
    """

    dialects: tuple[Dialect, ...]
    treatment: Treatment
    reason: str
    wrong: bool | None = None


def honoured(dialects: tuple[Dialect, ...], what: str) -> Foreign:
    """It does what it says; `what` it does here, in a few words."""
    return Foreign(dialects, Treatment.HONOURED, what)


def accepted(dialects: tuple[Dialect, ...], why: str) -> Foreign:
    """It has no effect, and `why` that withholds nothing that was asked for."""
    return Foreign(dialects, Treatment.ACCEPTED, why)


def refused(dialects: tuple[Dialect, ...], why: str, wrong: bool = True) -> Foreign:
    """To ignore it would be a lie; `why` ends the sentence "... is not supported: "."""
    return Foreign(dialects, Treatment.REFUSED, why, wrong)


@cache
def foreign_fields(kind: type[Struct]) -> dict[str, Foreign]:
    """The foreign fields of a request type, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Foreign] = {}
    for name in kind.__struct_fields__:
        hint = hints[name]
        if get_origin(hint) is Annotated:
            marks = [part for part in get_args(hint)[1:] if isinstance(part, Foreign)]
            found.update((name, mark) for mark in marks)
    return found


def refused_names(kind: type[Struct]) -> frozenset[str]:
    """The foreign fields of a request type that are refused."""
    marks = foreign_fields(kind).items()
    return frozenset(name for name, mark in marks if mark.treatment is Treatment.REFUSED)


@cache
def untaken(kind: type[Struct], compat: Compat) -> tuple[tuple[str, Foreign], ...]:
    """The foreign fields that a server with this setting does not take."""
    return tuple(
        (name, mark)
        for name, mark in foreign_fields(kind).items()
        if not any(is_taken(dialect, compat) for dialect in mark.dialects)
    )


def is_taken(dialect: Dialect, compat: Compat) -> bool:
    """Whether the setting takes a dialect; everyone who takes one takes OpenAI's too."""
    if compat == "off":
        return False
    return compat == "all" or dialect is Dialect.OPENAI or dialect.value == compat
