"""`POST /tokenize` and `POST /detokenize`, as vLLM has them. They need the API key.

They are no generation: no request is recorded, and the engine is not asked.
"""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.gateway.errors import Interrupted, bad_request, draining
from service.gateway.generation.state import GatewayState
from service.gateway.http.asgi import read_body
from service.gateway.ingest.token_reader import TokenTask
from service.gateway.routes.view_routes import guarded, json_response


def token_routes(state: GatewayState) -> list[Route]:
    return [
        guarded(state, f"/{task.value}", partial(_serve, task=task), "POST") for task in TokenTask
    ]


async def _serve(state: GatewayState, request: Request, *, task: TokenTask) -> Response:
    try:
        body = await read_body(request.scope, request.receive, state.config, state.bodies)
    except Interrupted as interruption:
        raise bad_request("the body broke off", code="invalid_body") from interruption
    if state.drain.active:
        raise draining()
    started = state.engine.started
    if started is None:  # nobody has told the context yet
        raise state.engine.unavailable_error()
    adapters = state.adapter_names
    work = asyncio.ensure_future(
        state.ingest.tokens(task, body, started.max_model_tokens, adapters)
    )
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise bad_request("the client went away", code="disconnect")
        answer = work.result()
    finally:
        work.cancel()
        gone.cancel()
    return json_response(answer)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
