"""Routes for operators: health, readiness, models, metrics and debug views; and those that change
something: DELETE of a live request, flush of the prefix cache, limits, a dump, tracing, recording.

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

from service.engine.inbox import FlushCache, SetRecording
from service.gateway.errors import (
    ApiError,
    Interrupted,
    bad_request,
    conflict,
    model_not_found,
    not_found,
    not_ready,
)
from service.gateway.generation.state import GatewayState
from service.gateway.http.asgi import read_body
from service.gateway.http.security import identify, refusal
from service.gateway.routes import (
    followed_routes,
    limits_route,
    profile_route,
    recorder_routes,
)
from telemetry.facts.reasons import EndReason
from telemetry.numbers.windows import WINDOWS_S
from telemetry.stats.histogram_report import TOTAL
from telemetry.traces.sampling import TracingMode

Handler = Callable[[GatewayState, Request], Awaitable[Response]]


def json_response(
    body: bytes, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(body, status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    return json_response(error.body(), error.status, error.headers)


def ops_routes(state: GatewayState) -> list[Route]:
    """All routes for operators; each checks the key of its path."""
    table: list[tuple[str, Handler]] = [
        ("/health", _health),
        ("/ready", _ready),
        ("/v1/models", _models),
        ("/v1/models/{name:path}", _model),
        ("/metrics", _metrics),
        ("/debug/startup", _startup),
        ("/debug/snapshot", _snapshot),
        ("/debug/diagnosis", _diagnosis),
        ("/debug/root", _root),
        ("/debug/autopilot", _autopilot),
        ("/debug/harm", _harm),
        ("/debug/host", _host),
        ("/debug/roofline", _roofline),
        ("/debug/tracing", _tracing),
        ("/debug/telemetry", _telemetry),
        ("/debug/histograms", _histograms),
        ("/debug/slo", _slo),
        ("/debug/requests", followed_routes.requests),
        ("/debug/requests/{request_id}", _request),
        ("/debug/batch", followed_routes.batch),
        ("/debug/journal", recorder_routes.journal),
        ("/debug/limits", limits_route.limits_in_force),
    ]
    routes = [Route(path, _guarded(state, handler), methods=["GET"]) for path, handler in table]
    delete, flush = _guarded(state, _delete), _guarded(state, _flush)
    dump = _guarded(state, recorder_routes.dump)
    profile = _guarded(state, profile_route.profile)
    return [
        *routes,
        Route("/v1/requests/{request_id}", delete, methods=["DELETE"]),
        Route("/debug/cache/flush", flush, methods=["POST"]),
        Route("/debug/dump", dump, methods=["POST"]),
        Route("/debug/profile", profile, methods=["POST"]),
        Route("/debug/limits", _guarded(state, limits_route.set_limits), methods=["PUT"]),
        Route("/debug/tracing", _guarded(state, _set_tracing), methods=["PUT"]),
        Route("/debug/telemetry", _guarded(state, _set_telemetry), methods=["PUT"]),
    ]


def _guarded(state: GatewayState, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        refused = refusal(state.config, request.scope)
        if refused is not None:
            return error_response(refused)
        try:
            return await handler(state, request)
        except ApiError as error:
            return error_response(error)

    return endpoint


async def _health(state: GatewayState, request: Request) -> Response:
    return json_response(b'{"status":"ok"}')


async def _ready(state: GatewayState, request: Request) -> Response:
    if state.engine.ready and not state.drain.active:
        return json_response(b'{"ready":true}')
    why, hung_ns = "the engine is loading or restarting", state.engine.health.hung_ns
    if hung_ns is not None:
        why = f"the engine has not responded for {hung_ns / 1e9:.1f} s"
    if state.drain.active:
        why = "the server is shutting down"
    body = msgspec.json.encode({"ready": False, "reason": why})
    return json_response(body, 503, {"retry-after": "1"})


def _model_object(state: GatewayState) -> dict[str, object]:
    started = state.engine.started
    found: dict[str, object] = {
        "id": state.model,
        "object": "model",
        "created": state.created_unix_s,
        "owned_by": "phasescope",
        "default_sampling": state.sampling_defaults,
    }
    if started is not None:
        found["max_model_len"] = started.max_model_tokens
        found["backend"] = started.backend
        found["dtype"] = started.dtype
    return found


async def _models(state: GatewayState, request: Request) -> Response:
    return json_response(msgspec.json.encode({"object": "list", "data": [_model_object(state)]}))


async def _model(state: GatewayState, request: Request) -> Response:
    name = request.path_params["name"]
    if name != state.model:
        return error_response(model_not_found(name, state.model))
    return json_response(msgspec.json.encode(_model_object(state)))


async def _metrics(state: GatewayState, request: Request) -> Response:
    accept = ",".join(request.headers.getlist("accept"))
    full = request.query_params.get("classes") == "full"
    content_type, body = await asyncio.to_thread(state.views.metrics, accept, full)
    return Response(body, headers={"content-type": content_type})


async def _startup(state: GatewayState, request: Request) -> Response:
    """Duration of the start, by stage."""
    report = state.start_report()
    return error_response(not_ready()) if report is None else json_response(report.as_json())


async def _snapshot(state: GatewayState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.snapshot))


async def _diagnosis(state: GatewayState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.diagnosis))


async def _root(state: GatewayState, request: Request) -> Response:
    """The last root cause analysis."""
    return json_response(state.views.root())


async def _autopilot(state: GatewayState, request: Request) -> Response:
    """What the autopilot does, and has decided."""
    return json_response(await asyncio.to_thread(state.views.autopilot))


async def _harm(state: GatewayState, request: Request) -> Response:
    """Time that requests took from others."""
    return json_response(await asyncio.to_thread(state.views.harm))


async def _host(state: GatewayState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.host))


async def _roofline(state: GatewayState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.roofline))


async def _histograms(state: GatewayState, request: Request) -> Response:
    """Encoded histograms, to be merged with those of other processes; `?window=1m`, else since the
    start."""
    window = request.query_params.get("window", TOTAL)
    body = await asyncio.to_thread(state.views.histograms, window)
    if body is None:
        known = ", ".join((TOTAL, *WINDOWS_S))
        return error_response(bad_request(f"window must be one of {known}", "window"))
    return json_response(body)


async def _slo(state: GatewayState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.slo))


async def _request(state: GatewayState, request: Request) -> Response:
    request_id = request.path_params["request_id"]
    body = await asyncio.to_thread(state.views.request, request_id)
    if body is None:
        return error_response(
            not_found(f"request {request_id!r} is not known (any more)", "request_not_found")
        )
    return json_response(body)


async def _delete(state: GatewayState, request: Request) -> Response:
    """Cancel a live request: its blocks are freed, its client gets a typed error."""
    request_id = request.path_params["request_id"]
    live = state.handlers.get(request_id)
    if live is None or (state.config.tenant_keys and live.tenant != tenant_of(state, request)):
        message = f"request {request_id!r} is not live; it may have ended"
        return error_response(not_found(message, "request_not_found"))
    live.interrupt(EndReason.DELETED)
    body = {"id": request_id, "object": "request", "deleted": True}
    return json_response(msgspec.json.encode(body))


def tenant_of(state: GatewayState, request: Request) -> str:
    """The tenant of a request; with tenant keys, it can only delete its own requests."""
    _, tenant = identify(state.config, request.scope)
    return tenant


async def _flush(state: GatewayState, request: Request) -> Response:
    """Empty the prefix cache before the next step."""
    if not state.engine.ready:
        return error_response(not_ready())
    state.engine.send(FlushCache())
    return json_response(b'{"flushed":true}')


class TracingChange(msgspec.Struct, forbid_unknown_fields=True):
    """Body of PUT /debug/tracing; an absent field is not changed."""

    mode: TracingMode | None = None
    rate: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class TelemetryChange(msgspec.Struct, forbid_unknown_fields=True):
    """Body of PUT /debug/telemetry."""

    recording: bool


Body = TypeVar("Body", TracingChange, TelemetryChange)


async def _read(state: GatewayState, request: Request, kind: type[Body]) -> Body:
    """The body as type `kind`. Raises ApiError."""
    try:
        raw = await read_body(request.scope, request.receive, state.config)
        return msgspec.json.decode(raw, type=kind)
    except Interrupted as interruption:
        raise bad_request("the body broke off", code="invalid_body") from interruption
    except msgspec.DecodeError as error:
        raise bad_request(str(error), code="invalid_body") from error


async def _tracing(state: GatewayState, request: Request) -> Response:
    return json_response(await asyncio.to_thread(state.views.tracing))


async def _set_tracing(state: GatewayState, request: Request) -> Response:
    """Change tracing, from the next request that ends."""
    change = await _read(state, request, TracingChange)
    if not state.views.set_tracing(change.mode, change.rate):
        raise conflict("spans go nowhere: start the server with --otlp-endpoint", "no_endpoint")
    return await _tracing(state, request)


async def _telemetry(state: GatewayState, request: Request) -> Response:
    return json_response(msgspec.json.encode({"recording": state.views.is_recording()}))


async def _set_telemetry(state: GatewayState, request: Request) -> Response:
    """Turn all recording on or off, to measure its cost. Only while no request runs, so that none
    is recorded in part."""
    change = await _read(state, request, TelemetryChange)
    _require_idle(state)
    await asyncio.to_thread(state.views.snapshot)  # folds the last facts of the last request
    _require_idle(state)
    if not state.engine.ready:
        raise not_ready()
    state.views.set_recording(change.recording)
    state.engine.send(SetRecording(change.recording))
    return await _telemetry(state, request)


def _require_idle(state: GatewayState) -> None:
    if state.handlers:
        raise conflict("requests are running; switch recording when none is", "not_idle")
