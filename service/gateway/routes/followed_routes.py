"""Routes that a screen asks for again and again: requests that have ended since, and the batch.

Both are bounded by the limits of their query, and their views are called on a thread.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from service.gateway.errors import bad_request
from service.gateway.http import limits
from service.gateway.routes.types.query_types import BatchQuery, RequestsQuery
from service.gateway.server_state import ServerState

_ALLOWED = {
    "since": "a whole number from 0 on",
    "limit": f"a whole number from 1 to {limits.LISTED_REQUESTS.value}",
    "rows": f"a whole number from 1 to {limits.BATCH_ROWS.value}",
}

Query = TypeVar("Query", RequestsQuery, BatchQuery)


async def requests(state: ServerState, request: Request) -> Response:
    """Ended requests from number `since` on, and those that are live."""
    query = _query(request, RequestsQuery)
    body = await asyncio.to_thread(state.views.requests, query.since, query.limit)
    return Response(body, media_type="application/json")


async def batch(state: ServerState, request: Request) -> Response:
    """The batch grid."""
    query = _query(request, BatchQuery)
    body = await asyncio.to_thread(state.views.batch, query.rows)
    return Response(body, media_type="application/json")


def _query(request: Request, kind: type[Query]) -> Query:
    """Raises ApiError that names the parameter and says what is allowed."""
    given = {name: request.query_params[name] for name in kind.__struct_fields__
             if name in request.query_params}  # fmt: skip
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        name = next((name for name in given if f"$.{name}" in str(error)), next(iter(given)))
        raise bad_request(f"{name} must be {_ALLOWED[name]}", name) from error
