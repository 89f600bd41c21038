"""The ASGI application of a server with an engine of its own."""

from __future__ import annotations

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.gateway.generation.handler import GenerationHandler
from service.gateway.generation.state import GatewayState
from service.gateway.ingest.schemas import Operation
from service.gateway.routes.app_frame import framed_app
from service.gateway.routes.openapi import openapi_route
from service.gateway.routes.ops import ops_routes
from service.gateway.routes.peer_routes import peer_routes
from service.gateway.routes.route_table import DESCRIPTIONS
from service.gateway.routes.token_routes import token_routes


def build_app(state: GatewayState) -> ASGIApp:
    """The whole HTTP surface over `state`."""
    generation = generation_apps(state)
    return framed_app(state, routes_of(state, generation), generation)


def generation_apps(state: GatewayState) -> dict[str, ASGIApp]:
    """The routes that generate, by path; all others are for operators."""
    return {
        "/v1/chat/completions": GenerationEndpoint(state, Operation.CHAT),
        "/v1/completions": GenerationEndpoint(state, Operation.TEXT),
        "/v1/responses": GenerationEndpoint(state, Operation.RESPONSES),
        "/v1/embeddings": GenerationEndpoint(state, Operation.EMBEDDINGS),
    }


def routes_of(state: GatewayState, generation: dict[str, ASGIApp]) -> list[Route]:
    """All routes; `generation` are ASGI apps by path."""
    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in generation.items()),
        *ops_routes(state),
        *token_routes(state),
        *peer_routes(state),
        openapi_route(state, DESCRIPTIONS),
    ]


class GenerationEndpoint:
    """ASGI app of a route whose requests go to the engine."""

    def __init__(self, state: GatewayState, operation: Operation) -> None:
        self._state = state
        self._operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = GenerationHandler(self._state, self._operation, scope, receive, send)
        self._state.handlers[handler.request_id] = handler
        try:
            await handler.run()
        finally:
            del self._state.handlers[handler.request_id]
