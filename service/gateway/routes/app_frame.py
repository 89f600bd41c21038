"""What is around the routes of any server of ours: request ids, CORS, errors in OpenAI's shape."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.gateway.errors import ApiError, internal
from service.gateway.http.asgi import header
from service.gateway.http.connection import body_is_whole
from service.gateway.http.limits import REQUEST_ID_CHARACTERS
from service.gateway.routes.view_routes import error_response
from service.gateway.server_state import ServerState

log = logging.getLogger("phasescope.gateway")

_REQUEST_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{REQUEST_ID_CHARACTERS.value}}}")
_CLOSE = (b"connection", b"close")


class IdClaims(Protocol):
    """Which ids of live requests other processes of this server have."""

    async def claim(self, request_id: str) -> bool:
        """Whether a request may have the id that its client sent."""
        ...

    def release(self, request_id: str) -> None:
        """The request that had claimed the id has ended."""
        ...


def framed_app(
    state: ServerState, routes: Sequence[Route], direct: Mapping[str, ASGIApp]
) -> ASGIApp:
    """The routes as an app; a POST to a path in `direct` goes to its own app at once."""
    app = Starlette(
        routes=list(routes), exception_handlers={HTTPException: _http_error, Exception: _crash}
    )
    app.router.redirect_slashes = False
    return with_ids(state, app, direct)


def with_ids(
    state: ServerState,
    app: ASGIApp,
    direct: Mapping[str, ASGIApp],
    claims: IdClaims | None = None,
) -> ASGIApp:
    """`app` behind request ids and CORS."""
    return _with_cors(state, RequestIds(app, state.live_request_ids, direct, claims))


def _with_cors(state: ServerState, app: ASGIApp) -> ASGIApp:
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


class RequestIds:
    """Gives every request an id, which its response has in `x-request-id`.

    A client's own id is used if it is well formed and no live request has it, so that an id never
    names two requests at once; `claims` knows those of other processes. A POST to a path in
    `direct` bypasses Starlette's middleware, which would be called for every token; those endpoints
    handle all errors themselves.
    """

    def __init__(
        self,
        app: ASGIApp,
        live: set[str],
        direct: Mapping[str, ASGIApp],
        claims: IdClaims | None = None,
    ) -> None:
        self._app = app
        self._live = live
        self._direct = direct
        self._claims = claims

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own = self._well_formed(header(scope, b"x-request-id"))
        if own is not None and self._claims is not None and not await self._claims.claim(own):
            own = None
        # another request of this process may have taken it meanwhile
        request_id = secrets.token_hex(12) if own is None or own in self._live else own
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
            if self._claims is not None and request_id == own:
                self._claims.release(own)

    def _well_formed(self, requested: str | None) -> str | None:
        """The client's id if a request may have it, as far as this process knows."""
        if requested and _REQUEST_ID.fullmatch(requested) and requested not in self._live:
            return requested
        return None


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
