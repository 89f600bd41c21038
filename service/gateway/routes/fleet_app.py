"""The ASGI application of a fleet gateway: what clients ask, and what it knows itself. What only an
engine can answer is refused with the remedy: ask the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from service.gateway.errors import not_at_a_gateway
from service.gateway.fleet.engines_view import EnginesView
from service.gateway.fleet.replica_latency import FleetLatency
from service.gateway.generation.state import GatewayState
from service.gateway.routes.app import generation_apps, routes_of
from service.gateway.routes.app_frame import framed_app
from service.gateway.routes.openapi import openapi_route
from service.gateway.routes.route_table import DESCRIPTIONS
from service.gateway.routes.view_routes import guarded, json_response
from service.gateway.routes.view_table import view

# of one engine: there is none here, and to ask all nodes at once is not built
_OF_ENGINES = (
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("GET", "/debug/limits"),
    ("PUT", "/debug/limits"),
    ("POST", "/debug/cache/flush"),
    ("POST", "/debug/profile"),
    ("PUT", "/debug/telemetry"),
    ("GET", "/loads"),
    ("GET", "/v1/loads"),
)


def fleet_app(
    state: GatewayState,
    engines: Callable[[], EnginesView],
    latency: Callable[[], FleetLatency],
) -> ASGIApp:
    """The whole HTTP surface over `state`."""

    async def show(state: GatewayState, request: Request) -> Response:
        return json_response(msgspec.json.encode(engines()))

    async def show_latency(state: GatewayState, request: Request) -> Response:
        return json_response(msgspec.json.encode(await asyncio.to_thread(latency)))

    generation = generation_apps(state)
    refused = [guarded(state, path, _ask_a_node, method) for method, path in _OF_ENGINES]
    own = [one for one in routes_of(state, generation) if one.path != "/openapi.json"]
    described = [
        *(one for one in DESCRIPTIONS if (one.method, one.path) not in _OF_ENGINES),
        view("/debug/engines", "The engines of the fleet", answer=EnginesView),
        view("/debug/fleet", "Latencies by engine and by role", answer=FleetLatency),
    ]
    routes = [
        *refused,
        guarded(state, "/debug/engines", show),
        guarded(state, "/debug/fleet", show_latency),
        *own,
        openapi_route(state, described),
    ]
    return framed_app(state, routes, generation)


async def _ask_a_node(state: GatewayState, request: Request) -> Response:
    raise not_at_a_gateway(request.method, request.url.path)
