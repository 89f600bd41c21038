"""Routes of any server of ours, with an engine of its own or of others: health, readiness, metrics,
debug views, dumps and tracing.

The views take a lock that the pump may hold for a while, so they are called on a thread: a scrape
must not delay the tokens of a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.gateway.errors import ApiError, Interrupted, bad_request, conflict, not_found
from service.gateway.http.asgi import read_body
from service.gateway.http.security import refusal
from service.gateway.routes import followed_routes, recorder_routes
from service.gateway.server_state import ServerState
from telemetry.numbers.windows import WINDOWS_S
from telemetry.stats.histogram_report import TOTAL
from telemetry.traces.sampling import TracingMode

State = TypeVar("State", bound=ServerState)
Handler = Callable[[State, Request], Awaitable[Response]]
Body = TypeVar("Body", bound=msgspec.Struct)


def json_response(
    body: bytes, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(body, status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    return json_response(error.body(), error.status, error.headers)


def guarded(state: State, path: str, handler: Handler[State], method: str = "GET") -> Route:
    """A route that checks the key of its path."""

    async def endpoint(request: Request) -> Response:
        refused = refusal(state.config, request.scope)
        if refused is not None:
            return error_response(refused)
        try:
            return await handler(state, request)
        except ApiError as error:
            return error_response(error)

    return Route(path, endpoint, methods=[method])


def view_routes(state: ServerState) -> list[Route]:
    """All of them; each checks the key of its path."""
    table: list[tuple[str, Handler[ServerState]]] = [
        ("/health", _health),
        ("/ready", _ready),
        ("/metrics", _metrics),
        ("/debug/snapshot", _snapshot),
        ("/debug/diagnosis", _diagnosis),
        ("/debug/root", _root),
        ("/debug/autopilot", _autopilot),
        ("/debug/harm", _harm),
        ("/debug/host", _host),
        ("/debug/roofline", _roofline),
        ("/debug/tracing", _tracing),
        ("/debug/histograms", _histograms),
        ("/debug/slo", _slo),
        ("/debug/requests", followed_routes.requests),
        ("/debug/requests/{request_id}", _request),
        ("/debug/batch", followed_routes.batch),
        ("/debug/journal", recorder_routes.journal),
    ]
    return [
        *(guarded(state, path, handler) for path, handler in table),
        guarded(state, "/debug/dump", recorder_routes.dump, "POST"),
        guarded(state, "/debug/tracing", _set_tracing, "PUT"),
    ]


async def _health(state: ServerState, request: Request) -> Response:
    return json_response(b'{"status":"ok"}')


async def _ready(state: ServerState, request: Request) -> Response:
    if state.engine.ready and not state.drain.active:
        return json_response(b'{"ready":true}')
    why, hung_ns = state.not_ready_why, state.engine.health.hung_ns
    if hung_ns is not None:
        why = f"the engine has not responded for {hung_ns / 1e9:.1f} s"
    if state.drain.active:
        why = "the server is shutting down"
    body = msgspec.json.encode({"ready": False, "reason": why})
    return json_response(body, 503, {"retry-after": "1"})


async def _metrics(state: ServerState, request: Request) -> Response:
    accept = ",".join(request.headers.getlist("accept"))
    full = request.query_params.get("classes") == "full"
    content_type, body = await asyncio.to_thread(state.views.metrics, accept, full)
    return Response(body, headers={"content-type": content_type})


async def _snapshot(state: ServerState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.snapshot))


async def _diagnosis(state: ServerState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.diagnosis))


async def _root(state: ServerState, request: Request) -> Response:
    """The last root cause analysis."""
    return json_response(state.views.root())


async def _autopilot(state: ServerState, request: Request) -> Response:
    """What the autopilot does, and has decided."""
    return json_response(await asyncio.to_thread(state.views.autopilot))


async def _harm(state: ServerState, request: Request) -> Response:
    """Time that requests took from others."""
    return json_response(await asyncio.to_thread(state.views.harm))


async def _host(state: ServerState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.host))


async def _roofline(state: ServerState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.roofline))


async def _histograms(state: ServerState, request: Request) -> Response:
    """Encoded histograms, to be merged with those of other processes; `?window=1m`, else since the
    start."""
    window = request.query_params.get("window", TOTAL)
    body = await asyncio.to_thread(state.views.histograms, window)
    if body is None:
        known = ", ".join((TOTAL, *WINDOWS_S))
        return error_response(bad_request(f"window must be one of {known}", "window"))
    return json_response(body)


async def _slo(state: ServerState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.slo))


async def _request(state: ServerState, request: Request) -> Response:
    request_id = request.path_params["request_id"]
    body = await asyncio.to_thread(state.views.request, request_id)
    if body is None:
        return error_response(
            not_found(f"request {request_id!r} is not known (any more)", "request_not_found")
        )
    return json_response(body)


class TracingChange(msgspec.Struct, forbid_unknown_fields=True):
    """Body of PUT /debug/tracing; an absent field is not changed."""

    mode: TracingMode | None = None
    rate: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


async def read_json(state: ServerState, request: Request, kind: type[Body]) -> Body:
    """The body as type `kind`. Raises ApiError."""
    try:
        raw = await read_body(request.scope, request.receive, state.config, state.bodies)
        return msgspec.json.decode(raw, type=kind)
    except Interrupted as interruption:
        raise bad_request("the body broke off", code="invalid_body") from interruption
    except msgspec.DecodeError as error:
        raise bad_request(str(error), code="invalid_body") from error


async def _tracing(state: ServerState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.tracing))


async def _set_tracing(state: ServerState, request: Request) -> Response:
    """Change tracing, from the next request that ends."""
    change = await read_json(state, request, TracingChange)
    if not state.views.set_tracing(change.mode, change.rate):
        raise conflict("spans go nowhere: start the server with --otlp-endpoint", "no_endpoint")
    return await _tracing(state, request)
