"""The fields of other dialects, from the types that bodies are parsed by."""

from __future__ import annotations

from docs.generate.markdown import code, table
from service.gateway.ingest.compat.dialects import Foreign, Treatment, foreign_fields
from service.gateway.ingest.compat.fields import OWN
from service.gateway.ingest.request_types import (
    ChatBody,
    CompletionBody,
    NotSupported,
    StreamOptions,
)

_HEAD = """# Fields of other dialects

Written from `service.gateway.ingest.compat.fields` by `make docs`. What a request may have beside
the fields in [HTTP](http.md), whose it is, and what becomes of it; which clients and routers were
tried: [Clients and routers](../compatibility.md).

`--compat` says whose fields a server takes: `all` (unless told otherwise), `openai`, `vllm` or
`sglang` (either with OpenAI's), `off` for none. A field that is not taken, or that nobody knows, is
a 400 with the code `unknown_field`, which names the nearest field that is known.
"""
_ABOUT = {
    Treatment.HONOURED: "It does what it says.",
    Treatment.ACCEPTED: "It may be sent and has no effect, which withholds nothing from a client.",
    Treatment.REFUSED: "To ignore it would be a lie: a 400 with the code `unsupported` and this "
    "reason, unless its value means off (null, false, empty, or the one value that there is).",
}
_OWN = """## The server's own

Fields of others that it has itself, with their meaning, under every setting; `priority` as vLLM has
it: a lower number goes first.
"""
_OFF = """## OpenAI's own that are missing

Taken with values that mean off, else refused in the same way, whatever `--compat` says: {names}.
"""


def document() -> str:
    """The whole page."""
    marks = all_marks()
    lines = [_HEAD]
    for treatment, about in _ABOUT.items():
        rows = [
            [code(name), _whose(mark), _sentence(mark.reason)]
            for name, mark in sorted(marks.items())
            if mark.treatment is treatment
        ]
        lines += [f"## {treatment.value.capitalize()}", "", about, ""]
        lines += [*table(["field", "whose", _COLUMN[treatment]], rows), ""]
    rows = [[code(dialect.value), ", ".join(map(code, names))] for dialect, names in OWN.items()]
    lines += [_OWN, *table(["whose", "fields"], rows), ""]
    own = sorted(set(NotSupported.__struct_fields__) - set(marks))
    lines.append(_OFF.format(names=", ".join(map(code, own))))
    return "\n".join(lines)


_COLUMN = {
    Treatment.HONOURED: "what it does",
    Treatment.ACCEPTED: "why",
    Treatment.REFUSED: "why",
}


def all_marks() -> dict[str, Foreign]:
    """Every foreign field, those of nested objects by their path."""
    found = {**foreign_fields(ChatBody), **foreign_fields(CompletionBody)}
    nested = foreign_fields(StreamOptions)
    return found | {f"stream_options.{name}": mark for name, mark in nested.items()}


def _whose(mark: Foreign) -> str:
    return ", ".join(code(dialect.value) for dialect in mark.dialects)


def _sentence(reason: str) -> str:
    return reason[0].upper() + reason[1:] + "."
