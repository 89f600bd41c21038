"""`GET /openapi.json` (OpenAPI 3.1), generated from the types that parse the bodies.

The document is generated once; the keys that it requires are those the server was started with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.config.settings import GatewayConfig
from service.gateway.http.security import RequiredKey, guard_of
from service.gateway.routes.types.response_types import ErrorBody, StreamAccepted, StreamCompleted
from service.gateway.routes.view_routes import json_response
from service.gateway.routes.view_table import (
    EVENTS,
    JSON,
    REQUEST_HEADERS,
    STATUS_TEXTS,
    Description,
)
from service.gateway.server_state import ServerState

_NAMED_EVENTS = (StreamAccepted, StreamCompleted)
_REFERENCE = "#/components/schemas/{name}"
_ABOUT = """An LLM inference server built around its own observability.

Errors have one shape, whatever the route. A path that is not here is answered with 404, a method
that is not here with 405. Every answer names its request in `x-request-id`. Caps on what is sent
are in the schemas; the body as a whole is bounded by `--max-body`."""
_EVENT = (
    "One server-sent event of a stream (`stream: true`). Its data is a chunk, an error that ends "
    "the stream, or `[DONE]` at the end. Events have names where `stream_options.include_events` "
    "asked for them. Lines that begin with a colon are comments."
)


def openapi_route(state: ServerState, descriptions: Sequence[Description]) -> Route:
    """The route needs no key: the document only says which keys this server needs."""

    @cache
    def body() -> bytes:
        return document(state.config, descriptions)

    async def endpoint(request: Request) -> Response:
        return json_response(body())

    return Route("/openapi.json", endpoint, methods=["GET"])


def document(config: GatewayConfig, descriptions: Sequence[Description]) -> bytes:
    """The document, as JSON."""
    types = _types(descriptions)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in descriptions:
        described = _operation(one, schema_of, _guard(config, one))
        paths.setdefault(one.path, {})[one.method.lower()] = described
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "phasescope", "version": "1", "description": _ABOUT},
            "paths": paths,
            "components": {
                "schemas": components,
                "headers": {"RequestId": _REQUEST_ID_HEADER},
                "securitySchemes": _SECURITY,
            },
        }
    )


_REQUEST_ID_HEADER = {
    "description": "Names the request, here and everywhere else.",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
}
_SECURITY = {
    "apiKey": {"type": "http", "scheme": "bearer", "description": "Of `--api-key` or a tenant."},
    "debugKey": {"type": "http", "scheme": "bearer", "description": "Of `--debug-key`."},
}


def _types(descriptions: Sequence[Description]) -> list[Any]:
    """All types of request and response bodies, each once."""
    found: list[Any] = [ErrorBody, *_NAMED_EVENTS]
    for one in descriptions:
        found += [one.body, one.not_ready, *one.answer.values()]
    return [kind for kind in dict.fromkeys(found) if kind is not None]


_SCHEMES = {RequiredKey.DEBUG: "debugKey", RequiredKey.ADMIN: "apiKey", RequiredKey.API: "apiKey"}


def _guard(config: GatewayConfig, one: Description) -> str | None:
    """The security scheme of a route; None if it needs no key."""
    guard = guard_of(config, one.method, one.path)
    return None if guard is None else _SCHEMES[guard]


def _operation(one: Description, schema_of: dict[Any, Any], guard: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": _operation_id(one),
        "summary": one.summary,
        "tags": [one.tag],
        "parameters": [*_path_parameters(one), *_query(one), *_headers(one)],
        "responses": _responses(one, schema_of),
    }
    if one.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": schema_of[one.body]}},
        }
    if guard is not None:
        found["security"] = [{guard: []}]
    return found


def _operation_id(one: Description) -> str:
    words = "".join(c if c.isalnum() else " " for c in f"{one.method.lower()} {one.path}").split()
    return "_".join(words)


def _path_parameters(one: Description) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": about,
            "schema": {"type": "string", "minLength": 1},
        }
        for name, about in one.path_parameters.items()
    ]


def _query(one: Description) -> list[dict[str, Any]]:
    if one.query is None:
        return []
    (_,), components = msgspec.json.schema_components([one.query], ref_template=_REFERENCE)
    properties = components[one.query.__name__]["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]


def _headers(one: Description) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "header",
            "description": REQUEST_HEADERS[name],
            "schema": {"type": "string"},
        }
        for name in one.headers
    ]


def _responses(one: Description, schema_of: dict[Any, Any]) -> dict[str, Any]:
    content = {kind: _media(kind, answer, schema_of) for kind, answer in one.answer.items()}
    found = {"200": _response("Done.", content)}
    for status in one.statuses:
        schema = schema_of[one.not_ready if status == 503 else ErrorBody]
        if one.not_ready is not ErrorBody and status == 503:
            schema = {"anyOf": [schema, schema_of[ErrorBody]]}
        found[str(status)] = _response(STATUS_TEXTS[status], {JSON: {"schema": schema}})
    return found


def _media(kind: str, answer: Any, schema_of: dict[Any, Any]) -> dict[str, Any]:
    if answer is None:
        return {}
    if kind == EVENTS:
        return {"schema": _event(answer, schema_of)}
    return {"schema": schema_of[answer]}


def _event(chunk: Any, schema_of: dict[Any, Any]) -> dict[str, Any]:
    """The schema of a server-sent event: its data is JSON in a string; that of `first_token` is an
    empty object."""
    kinds = [schema_of[kind] for kind in (chunk, ErrorBody, *_NAMED_EVENTS)]
    data = {
        "type": "string",
        "contentMediaType": JSON,
        "contentSchema": {"anyOf": [*kinds, {"type": "object", "maxProperties": 0}]},
    }
    return {
        "description": _EVENT,
        "type": "object",
        "properties": {
            "event": {"type": "string"},
            "data": {"anyOf": [{"const": "[DONE]"}, data]},
        },
        "required": ["data"],
    }


def _response(about: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": about,
        "headers": {"x-request-id": {"$ref": "#/components/headers/RequestId"}},
        "content": content,
    }
