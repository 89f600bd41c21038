"""The OpenAPI document describes what is served, all of it, from the types that parse it."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import msgspec
import pytest

from service.config.settings import GatewayConfig
from service.gateway.generation.state import GatewayState
from service.gateway.http import limits
from service.gateway.ingest.request_types import ChatBody, CompletionBody
from service.gateway.ingest.responses_body import ResponsesBody
from service.gateway.routes.app import routes_of
from service.gateway.routes.openapi import document
from service.gateway.routes.route_table import DESCRIPTIONS

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
GENERATION: dict[str, Any] = dict.fromkeys(PATHS)


def described(config: GatewayConfig | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(document(config or GatewayConfig(), DESCRIPTIONS))
    return found


def served() -> set[tuple[str, str]]:
    """Methods and paths of the app; its routes are made without a look at the state."""
    routes = routes_of(cast(GatewayState, None), GENERATION)
    return {
        (method, re.sub(r":\w+}", "}", route.path))
        for route in routes
        for method in (route.methods or ()) if method != "HEAD"
    }  # fmt: skip


def test_every_route_is_described_and_every_description_is_of_a_route() -> None:
    named = {
        (method.upper(), path)
        for path, methods in described()["paths"].items()
        for method in methods
    }

    assert named == served()


def test_the_document_is_valid_and_every_operation_can_be_generated_from() -> None:
    import schemathesis  # seconds of import

    schema = schemathesis.openapi.from_dict(described())
    schema.validate()

    for result in schema.get_all_operations():
        assert result.ok()


def test_bodies_are_described_with_the_caps_that_parsing_keeps() -> None:
    schemas = described()["components"]["schemas"]
    for kind in (ChatBody, CompletionBody, ResponsesBody):
        shown = schemas[kind.__name__]
        assert shown["additionalProperties"] is False
        assert set(shown["properties"]) == set(kind.__struct_fields__)
    for kind in (ChatBody, CompletionBody):
        shown = schemas[kind.__name__]
        ids = shown["properties"]["stop_token_ids"]["anyOf"]
        assert ids[0]["maxItems"] == limits.STOP_IDS.value


def test_references_of_the_document_exist() -> None:
    whole = described()
    for reference in re.findall(r'"\$ref":"(#[^"]*)"', msgspec.json.encode(whole).decode()):
        found: Any = whole
        for step in reference[2:].split("/"):
            found = found[step]


@pytest.mark.parametrize(
    ("config", "path", "guard"),
    [
        (GatewayConfig(), "/v1/models", None),
        (GatewayConfig(api_key="a"), "/v1/models", "apiKey"),
        (GatewayConfig(tenant_keys={"a": "b"}), "/v1/models", "apiKey"),
        (GatewayConfig(debug_key="a"), "/metrics", "debugKey"),
        (GatewayConfig(debug_key="a"), "/debug/snapshot", "debugKey"),
        (GatewayConfig(api_key="a", debug_key="b"), "/health", None),
        (GatewayConfig(api_key="a"), "/debug/limits", None),
    ],
)
def test_keys_are_described_where_they_are_needed(
    config: GatewayConfig, path: str, guard: str | None
) -> None:
    operation = described(config)["paths"][path]["get"]

    assert operation.get("security") == (None if guard is None else [{guard: []}])


def test_what_changes_the_server_is_described_with_a_key_where_there_is_any() -> None:
    guards = {"apiKey": GatewayConfig(api_key="a"), "debugKey": GatewayConfig(debug_key="a")}
    for guard, config in guards.items():
        change = described(config)["paths"]["/debug/limits"]["put"]
        assert change["security"] == [{guard: []}]
    assert "security" not in described()["paths"]["/debug/limits"]["put"]
