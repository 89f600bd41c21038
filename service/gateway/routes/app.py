"""The ASGI application: routes, request ids, and errors in OpenAI's shape."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.gateway.errors import ApiError, internal
from service.gateway.generation.handler import GenerationHandler
from service.gateway.generation.state import GatewayState
from service.gateway.http.asgi import header
from service.gateway.http.connection import body_is_whole
from service.gateway.http.limits import REQUEST_ID_CHARACTERS
from service.gateway.ingest.schemas import Operation
from service.gateway.routes.openapi import openapi_route
from service.gateway.routes.ops import ops_routes
from service.gateway.routes.view_routes import error_response

log = logging.getLogger("phasescope.gateway")

_REQUEST_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{REQUEST_ID_CHARACTERS.value}}}")
_CLOSE = (b"connection", b"close")


def build_app(state: GatewayState) -> ASGIApp:
    """The whole HTTP surface over `state`."""
    generation: dict[str, ASGIApp] = {
        "/v1/chat/completions": GenerationEndpoint(state, Operation.CHAT),
        "/v1/completions": GenerationEndpoint(state, Operation.TEXT),
    }
    app = Starlette(
        routes=routes_of(state, generation),
        exception_handlers={HTTPException: _http_error, Exception: _crash},
    )
    app.router.redirect_slashes = False
    return _with_cors(state, RequestIds(app, state.live_request_ids, generation))


def _with_cors(state: GatewayState, app: ASGIApp) -> ASGIApp:
    """Add CORS headers if --cors-origins is set."""
    origins = state.config.http.cors_origins
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "PUT", "DELETE"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "server-timing", "retry-after"),
    )


def routes_of(state: GatewayState, generation: dict[str, ASGIApp]) -> list[Route]:
    """All routes; `generation` are ASGI apps by path."""
    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in generation.items()),
        *ops_routes(state),
        openapi_route(state),
    ]


class GenerationEndpoint:
    """ASGI app of one of the two generation routes."""

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


class RequestIds:
    """Gives every request an id, which its response has in `x-request-id`.

    A client's own id is used if it is well formed and no live request has it, so that an id never
    names two requests at once. A POST to a path in `direct` bypasses Starlette's middleware, which
    would be called for every token; those endpoints handle all errors themselves.
    """

    def __init__(self, app: ASGIApp, live: set[str], direct: dict[str, ASGIApp]) -> None:
        self._app = app
        self._live = live
        self._direct = direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._choose(header(scope, b"x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id

        def send_with_id(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                more = [(b"x-request-id", request_id.encode())]
                if not body_is_whole(scope):
                    more.append(_CLOSE)  # the next bytes are the rest of this body
                message["headers"] = [*message.get("headers", ()), *more]
            return send(message)

        is_post = scope["method"] == "POST"
        app = self._direct.get(scope["path"], self._app) if is_post else self._app
        self._live.add(request_id)
        try:
            await app(scope, receive, send_with_id)
        finally:
            self._live.discard(request_id)

    def _choose(self, requested: str | None) -> str:
        if requested and _REQUEST_ID.fullmatch(requested) and requested not in self._live:
            return requested
        return secrets.token_hex(12)


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown route or method."""
    assert isinstance(error, HTTPException)
    path, method = request.scope["path"], request.method
    if error.status_code == 405:
        message = f"{method} is not allowed on {path}"
        api_error = ApiError(405, message, "invalid_request_error", "method_not_allowed")
    else:
        message = f"there is no route {method} {path}"
        api_error = ApiError(error.status_code, message, "invalid_request_error", "route_not_found")
    api_error.headers.update(error.headers or {})
    return error_response(api_error)


async def _crash(request: Request, error: Exception) -> Response:
    request_id = request.scope["state"]["request_id"]
    log.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
    return error_response(internal())
