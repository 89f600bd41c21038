"""The ASGI application of a server that observes an engine of others: views, and nothing that
changes that engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from service.gateway.errors import not_ready
from service.gateway.routes.app_frame import framed_app
from service.gateway.routes.openapi import openapi_route
from service.gateway.routes.view_routes import guarded, json_response, view_routes
from service.gateway.routes.view_table import VIEWS, view
from service.gateway.server_state import ServerState
from telemetry.facts.limits import LimitInForce, LimitsView


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedState(ServerState):
    """`attachment` is what `/debug/attach` answers; `attachment_type` describes it."""

    attachment: Callable[[], Any]
    attachment_type: type


def attached_app(state: AttachedState) -> ASGIApp:
    """The whole HTTP surface over `state`."""
    descriptions = [
        *VIEWS,
        view("/debug/limits", "The limits that the engine was started with", answer=LimitsView),
        view(
            "/debug/attach", "What is attached, and what is not observed",
            answer=state.attachment_type,
        ),
    ]  # fmt: skip
    routes = [
        *view_routes(state),
        guarded(state, "/debug/limits", _limits),
        guarded(state, "/debug/attach", _attachment),
        openapi_route(state, descriptions),
    ]
    return framed_app(state, routes, {})


async def _limits(state: AttachedState, request: Request) -> Response:
    """The engine's own limits under its own names; nothing changes them from here."""
    started = state.engine.started
    if started is None:
        raise not_ready()
    limits = {
        name: LimitInForce(value=value, at_start=value, changed=None)
        for name, value in started.settings.items()
    }
    return json_response(msgspec.json.encode(LimitsView(limits=limits, changes=[])))


async def _attachment(state: AttachedState, request: Request) -> Response:
    return json_response(msgspec.json.encode(state.attachment()))
