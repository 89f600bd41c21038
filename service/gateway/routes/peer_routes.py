"""Routes that routers and clients of other servers ask a worker for; each is a view of what other
routes and `/metrics` have, and tells no secrets.

`/server_info`, `/model_info` and the loads need the key of `/v1/*`.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.gateway.errors import ApiError, bad_request, not_ready
from service.gateway.generation.state import GatewayState
from service.gateway.routes.types.peer_types import (
    LOAD_SECTIONS,
    Loads,
    ModelInfo,
    ServerInfo,
    Version,
    WorkerLoad,
    server_info,
    worker_load,
)
from service.gateway.routes.view_routes import Handler, guarded, json_response
from telemetry.facts.version import installed_version


def peer_routes(state: GatewayState) -> list[Route]:
    """All of them; `/get_...` are SGLang's older names."""
    table: list[tuple[str, Handler[GatewayState]]] = [
        ("/ping", _ping),
        ("/version", _version),
        ("/server_info", _server_info),
        ("/get_server_info", _server_info),
        ("/model_info", _model_info),
        ("/get_model_info", _model_info),
        ("/loads", _loads),
        ("/v1/loads", _loads),
    ]
    return [guarded(state, path, handler) for path, handler in table]


async def _ping(state: GatewayState, request: Request) -> Response:
    """200 with an empty body, as container hosts want it; 503 while no engine is ready."""
    if not state.engine.ready or state.drain.active:
        raise not_ready()
    return Response(b"")


async def _version(state: GatewayState, request: Request) -> Response:
    return json_response(msgspec.json.encode(Version(version=installed_version())))


def _info(state: GatewayState) -> ServerInfo:
    started, ready = state.engine.started, state.engine.ready and not state.drain.active
    return server_info(state.model, state.sampling_defaults, installed_version(), started, ready)


async def _server_info(state: GatewayState, request: Request) -> Response:
    return json_response(msgspec.json.encode(_info(state)))


async def _model_info(state: GatewayState, request: Request) -> Response:
    info = _info(state)
    found = ModelInfo(**{name: getattr(info, name) for name in ModelInfo.__struct_fields__})
    return json_response(msgspec.json.encode(found))


async def _loads(state: GatewayState, request: Request) -> Response:
    sections = _sections(request.query_params.get("include"))
    loads: list[WorkerLoad] = []
    started = state.engine.started
    if started is not None and state.engine.has_engine:
        now = await asyncio.to_thread(state.views.current)
        loads = [worker_load(now, started, sections)]
    found = Loads(version=installed_version(), dp_rank_count=1, loads=loads)
    return json_response(msgspec.json.encode(found))


def _sections(include: str | None) -> frozenset[str]:
    """Raises ApiError."""
    asked = frozenset((include or LOAD_SECTIONS[-1]).split(","))
    wrong = asked - set(LOAD_SECTIONS)
    if wrong:
        raise _unknown_section()
    return asked


def _unknown_section() -> ApiError:
    return bad_request(f"include takes a list of {', '.join(LOAD_SECTIONS)}", "include")
