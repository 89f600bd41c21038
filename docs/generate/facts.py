"""Every fact that is recorded, from the structs themselves and their docstrings."""

from __future__ import annotations

import inspect
import re
from enum import StrEnum
from typing import get_args

import msgspec

from docs.generate.markdown import code, one_line, table
from telemetry.facts import (
    adapter_records,
    autopilot_records,
    engine_records,
    engine_start,
    host_records,
    reasons,
    records,
    step_parts,
    tool_records,
)
from telemetry.facts.base import FactStruct
from telemetry.facts.fleet import kv_transfer_records, routing_records, sequence_records

_HEAD = f"""# Facts

Written from `{records.__name__}` and its neighbours by `make docs`. The version of the journal is
{records.SCHEMA_VERSION}.

A fact is a frozen struct, named in the past tense, that is written once by whoever saw it happen.
All that phasescope shows is worked out from facts. All stamps are nanoseconds of one monotonic
clock. No fact has a prompt, an output or a token id in it. None means "not measured".

A *request* is one HTTP exchange, named by `request_id`. A *sequence* is one generated text inside
the engine, named by `seq_id`; a request with n choices has n sequences. A *step* is one turn of
the engine's loop.
"""
_GROUPS = {
    "Written by the engine": engine_records,
    "Written by the engine about adapters": adapter_records,
    "Written by the gateway": records,
    "Written by the gateway, about calls of functions": tool_records,
    "Written by the gateway, about engines on other machines": sequence_records,
    "About KV that goes from one engine to another": kv_transfer_records,
    "About the machine": host_records,
    "Written by the autopilot": autopilot_records,
    "Written by the router of a fleet": routing_records,
}
_HOMES = (
    engine_start,
    engine_records,
    step_parts,
    tool_records,
    sequence_records,
    routing_records,
    kv_transfer_records,
)
_VALUE = re.compile(r'^    ([A-Z_]+) = "([^"]+)"(?:  # (.+))?$', re.MULTILINE)


def document() -> str:
    """The whole page."""
    lines = [_HEAD]
    facts: list[type[FactStruct]] = list(get_args(records.Fact))
    for title, home in _GROUPS.items():
        lines += [f"## {title}", ""]
        for fact in facts:
            if fact.__module__ == home.__name__:
                lines += _struct(fact)
    lines += ["## Parts of facts", ""]
    for part in _parts():
        lines += _struct(part)
    lines += ["## Closed sets", ""]
    for choice in _sets():
        lines += _choice(choice)
    return "\n".join(lines)


def _parts() -> list[type[msgspec.Struct]]:
    """Structs that facts are made of, and that are none themselves."""
    return [
        found
        for home in _HOMES
        for found in vars(home).values()
        if inspect.isclass(found)
        and issubclass(found, msgspec.Struct)
        and not issubclass(found, FactStruct)
        and found.__module__ == home.__name__
    ]


def _sets() -> list[type[StrEnum]]:
    return [
        found
        for home in (reasons, adapter_records, routing_records)
        for found in vars(home).values()
        if inspect.isclass(found) and issubclass(found, StrEnum) and found is not StrEnum
    ]


def _struct(kind: type[msgspec.Struct]) -> list[str]:
    annotations = kind.__annotations__
    defaults = {field.name: field for field in msgspec.structs.fields(kind)}
    rows = []
    for name in kind.__struct_fields__:
        default = defaults[name].default
        shown = "" if default is msgspec.NODEFAULT else code(_value(default))
        rows.append([code(name), code(str(annotations[name])), shown])
    about = one_line(inspect.getdoc(kind))
    return [f"### {kind.__name__}", "", about, "", *table(["field", "type", "default"], rows), ""]


def _value(default: object) -> str:
    return default.value if isinstance(default, StrEnum) else repr(default)


def _choice(kind: type[StrEnum]) -> list[str]:
    """Values with the comment that stands behind each."""
    notes = {value: note for _, value, note in _VALUE.findall(inspect.getsource(kind))}
    rows = [[code(one.value), notes.get(one.value, "")] for one in kind]
    if not any(note for _, note in rows):
        shown = [", ".join(value for value, _ in rows) + "."]
    else:
        shown = table(["value", "meaning"], rows)
    about = one_line(inspect.getdoc(kind))
    return [f"### {kind.__name__}", "", about, "", *shown, ""]
