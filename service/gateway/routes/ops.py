"""Routes for operators of a server with an engine of its own: models, start, limits, profile; and
those that change something: DELETE of a live request, flush of the prefix cache, recording. Those
of any server are in `view_routes`.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.engine.inbox import FlushCache, SetRecording
from service.gateway.engine_client.adapters import KnownAdapter
from service.gateway.errors import conflict, not_found, not_ready
from service.gateway.generation.state import GatewayState
from service.gateway.http.security import identify
from service.gateway.routes import adapter_routes, limits_route, profile_route
from service.gateway.routes.view_routes import (
    Handler,
    error_response,
    guarded,
    json_response,
    read_json,
    view_routes,
)
from telemetry.facts.reasons import EndReason


def ops_routes(state: GatewayState) -> list[Route]:
    """All routes for operators; each checks the key of its path."""
    table: list[tuple[str, str, Handler[GatewayState]]] = [
        ("GET", "/v1/models", _models),
        ("GET", "/v1/models/{name:path}", _model),
        ("POST", "/v1/load_lora_adapter", adapter_routes.load_adapter),
        ("POST", "/v1/unload_lora_adapter", adapter_routes.unload_adapter),
        ("GET", "/debug/startup", _startup),
        ("GET", "/debug/telemetry", _telemetry),
        ("GET", "/debug/limits", limits_route.limits_in_force),
        ("DELETE", "/v1/requests/{request_id}", _delete),
        ("POST", "/debug/cache/flush", _flush),
        ("POST", "/debug/profile", profile_route.profile),
        ("PUT", "/debug/limits", limits_route.set_limits),
        ("PUT", "/debug/telemetry", _set_telemetry),
    ]
    mine = [guarded(state, path, handler, method) for method, path, handler in table]
    return [*view_routes(state), *mine]


def _model_object(state: GatewayState) -> dict[str, object]:
    started = state.engine.started
    found: dict[str, object] = {
        "id": state.model,
        "object": "model",
        "created": state.created_unix_s,
        "owned_by": "phasescope",
        "root": state.model,
        "parent": None,
        "default_sampling": state.sampling_defaults,
    }
    if started is not None:
        found["max_model_len"] = started.max_model_tokens
        found["backend"] = started.backend
        found["dtype"] = started.dtype
    return found


def _adapter_object(state: GatewayState, known: KnownAdapter) -> dict[str, object]:
    """An adapter in vLLM's shape, with what it takes and whether it is in memory now."""
    found = {**_model_object(state), "id": known.name, "root": known.source, "parent": state.model}
    if known.bytes is not None:
        found |= {"rank": known.rank, "bytes": known.bytes, "placed": known.placed}
    return found


async def _models(state: GatewayState, request: Request) -> Response:
    adapters = [_adapter_object(state, known) for known in state.engine.adapters.listed()]
    body = {"object": "list", "data": [_model_object(state), *adapters]}
    return json_response(msgspec.json.encode(body))


async def _model(state: GatewayState, request: Request) -> Response:
    name = request.path_params["name"]
    found = [known for known in state.engine.adapters.listed() if known.name == name]
    if not found:
        state.adapter_of(name)  # raises unless it is the base model
    body = _adapter_object(state, found[0]) if found else _model_object(state)
    return json_response(msgspec.json.encode(body))


async def _startup(state: GatewayState, request: Request) -> Response:
    """Duration of the start, by stage."""
    report = state.start_report()
    return error_response(not_ready()) if report is None else json_response(report.as_json())


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


class TelemetryChange(msgspec.Struct, forbid_unknown_fields=True):
    """Body of PUT /debug/telemetry."""

    recording: bool


async def _telemetry(state: GatewayState, request: Request) -> Response:
    return json_response(msgspec.json.encode({"recording": state.views.is_recording()}))


async def _set_telemetry(state: GatewayState, request: Request) -> Response:
    """Turn all recording on or off, to measure its cost. Only while no request runs, so that none
    is recorded in part."""
    change = await read_json(state, request, TelemetryChange)
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
