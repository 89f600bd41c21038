"""Every route, from the OpenAPI document that the server gives out itself."""

from __future__ import annotations

from typing import Any

import msgspec

from docs.generate.markdown import code, one_line, table
from service.config.settings import GatewayConfig
from service.gateway.ingest.compat.dialects import foreign_fields
from service.gateway.ingest.compat.fields import ForeignFields
from service.gateway.ingest.request_types import NOT_SUPPORTED, ChatBody, CompletionBody
from service.gateway.routes.openapi import document as openapi
from service.gateway.routes.route_table import DESCRIPTIONS
from service.gateway.routes.view_table import REQUEST_HEADERS, STATUS_TEXTS, Description

_HEAD = """# HTTP

Written from the route table by `make docs`. A running server gives out the same as
`GET /openapi.json` (OpenAPI 3.1), with every cap. [Limits](limits.md) lists the caps with their
reasons.

`/v1/*`, `/tokenize`, `/detokenize`, `/server_info`, `/model_info` and `/loads` ask for `--api-key`
or a tenant's key, `/debug/*`, `/metrics` and the two adapter routes for `--debug-key`, where those
are set: `Authorization: Bearer KEY`.
Every answer names its request in `x-request-id`. All errors have one
shape, OpenAI's: `{"error": {"message", "type", "param", "code"}}`.

A fleet's gateway also has `GET /debug/engines` (its engines, and why one is not ready) and
`GET /debug/fleet` (latencies by engine and by role), and answers what concerns one engine with a
501. A sidecar of `phasescope attach` has the debug views and `GET /debug/attach`, and nothing below
`/v1`.
"""
_TAGS = {
    "generation": "Generation",
    "tokens": "Tokens",
    "operations": "Operations",
    "peers": "As other servers have them",
    "debug": "Debug",
}
_WITHOUT_OFF = (ChatBody.__name__, CompletionBody.__name__)
_OFF = (
    "Requests may also have [fields of other dialects](compatibility.md), which are not repeated "
    "here; there is also what is refused unless its value means off. An unknown field is ignored "
    "nowhere: it is a 400."
)
_BOUNDS = {
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "exclusiveMinimum": "> {}",
    "maxLength": "at most {} characters",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
}


def document() -> str:
    """The whole page."""
    spec: dict[str, Any] = msgspec.json.decode(openapi(GatewayConfig(), DESCRIPTIONS))
    schemas = spec["components"]["schemas"]
    lines = [_HEAD]
    for tag, title in _TAGS.items():
        shown = [one for one in DESCRIPTIONS if one.tag == tag]
        lines += [f"## {title}", "", *_routes(shown), ""]
        for one in shown:
            lines += _route(one, spec["paths"][one.path][one.method.lower()])
    lines += ["## Headers of a request", "", *_headers(), ""]
    lines += ["## Errors", "", *_errors(), ""]
    lines += ["## Types", "", _OFF, ""]
    for name, schema in schemas.items():
        lines += _type(name, schema)
    return "\n".join(lines)


def _routes(shown: list[Description]) -> list[str]:
    rows = [[code(f"{one.method} {one.path}"), one.summary + "."] for one in shown]
    return table(["route", "what it does"], rows)


def _route(one: Description, operation: dict[str, Any]) -> list[str]:
    """What a route takes; one that takes nothing is in the table, and needs no more words."""
    parameters = [p for p in operation["parameters"] if p["in"] != "header"]
    if not parameters and one.body is None:
        return []
    lines = [f"### {one.method} {one.path}", ""]
    if one.body is not None:
        lines += [f"Takes [{code(one.body.__name__)}](#{one.body.__name__.lower()}).", ""]
    answers = [answer for answer in one.answer.values() if hasattr(answer, "__name__")]
    named = dict.fromkeys(answer.__name__ for answer in answers if answer.__name__ != "dict")
    if one.query is not None:
        lines += [one_line(one.query.__doc__), ""]
    if named:
        links = ", ".join(f"[{code(name)}](#{name.lower()})" for name in named)
        lines += [f"Answers with {links}.", ""]
    if parameters:
        rows = [
            [code(p["name"]), p["in"], _kind(p["schema"]), _about(p["schema"], p)]
            for p in parameters
        ]
        lines += [*table(["parameter", "in", "type", "about"], rows), ""]
    return lines


def _headers() -> list[str]:
    return table(["header", "meaning"], [[code(k), v] for k, v in REQUEST_HEADERS.items()])


def _errors() -> list[str]:
    return table(
        ["status", "meaning"], [[str(status), text] for status, text in STATUS_TEXTS.items()]
    )


def _type(name: str, schema: dict[str, Any]) -> list[str]:
    hidden = NOT_SUPPORTED | foreign_fields(ForeignFields).keys() if name in _WITHOUT_OFF else ()
    fields = {
        field: about for field, about in schema.get("properties", {}).items() if field not in hidden
    }
    required = set(schema.get("required", ()))
    rows = [
        [
            code(field),
            _kind(about),
            "yes" if field in required else "",
            _about(about, about),
        ]
        for field, about in fields.items()
    ]
    head = [f"### {name}", "", schema.get("description", ""), ""]
    return [*head, *table(["field", "type", "required", "about"], rows), ""] if rows else head


def _kind(schema: dict[str, Any]) -> str:
    """The type in words; a null that only means the default is left out."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{code(name)}](#{name.lower()})"
    if "anyOf" in schema:
        kinds = [_kind(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return " or ".join(code(str(one)) for one in schema["enum"] if one is not None)
    if "const" in schema:
        return code(str(schema["const"]).lower())
    kind = str(schema.get("type", "anything"))
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"list of {_kind(schema['items'])}"
    return kind


def _about(schema: dict[str, Any], holder: dict[str, Any]) -> str:
    """Description, bounds and default."""
    parts = [holder.get("description", "").removesuffix(".")]
    for part in [schema, *schema.get("anyOf", ())]:
        found = [text.format(part[key]) for key, text in _BOUNDS.items() if key in part]
        parts.append(", ".join(found))
    if schema.get("default") not in (None, ""):
        parts.append(f"default {code(str(schema['default']).lower())}")
    return "; ".join(dict.fromkeys(part for part in parts if part))
