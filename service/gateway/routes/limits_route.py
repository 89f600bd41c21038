"""`GET` and `PUT /debug/limits`: the engine's limits while it runs.

The answer to a PUT comes when the engine has put the change in force.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from service.engine.limits_record import LimitError
from service.gateway.engine_client.runtime_limits import CONFIRM_S, EngineGone
from service.gateway.errors import ApiError, Interrupted, bad_request, not_ready
from service.gateway.generation.state import GatewayState
from service.gateway.http import limits
from service.gateway.http.asgi import read_body
from service.gateway.ingest.decoding import decode
from telemetry.facts.limits import LimitValue

_PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"  # they are shown in terminals

Count = Annotated[int, Meta(ge=1, le=limits.TOKENS.value)]
Name = Annotated[str, Meta(max_length=limits.LABEL_CHARACTERS.value, pattern=_PRINTABLE)]
Weight = Annotated[
    float, Meta(ge=1 / limits.TENANT_WEIGHT.value, le=float(limits.TENANT_WEIGHT.value))
]


class LimitsChange(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of PUT /debug/limits; an absent limit is not changed, null takes one away."""

    max_batched_tokens: Literal["auto"] | Count | UnsetType = UNSET
    max_auto_tokens: Count | UnsetType = UNSET
    max_num_seqs: Count | UnsetType = UNSET
    itl_target_ms: (
        Annotated[float, Meta(gt=0, le=float(limits.ITL_TARGET_MS.value))] | UnsetType | None
    ) = UNSET
    queue_limit: Count | UnsetType = UNSET
    queue_limit_tokens: Count | UnsetType = UNSET
    tenant_max_seqs: Count | UnsetType | None = UNSET
    tenant_queue_limit: Count | UnsetType | None = UNSET
    tenant_weights: (
        Annotated[dict[Name, Weight], Meta(max_length=limits.TENANT_WEIGHTS.value)] | UnsetType
    ) = UNSET
    prefix_cache: bool | UnsetType = UNSET
    speculative_tokens: (
        Annotated[int, Meta(ge=0, le=limits.SPECULATIVE_TOKENS.value)] | UnsetType
    ) = UNSET
    order: Literal["slo", "arrival"] | UnsetType = UNSET
    refuse_late: bool | UnsetType = UNSET
    by: Annotated[
        str, Meta(min_length=1, max_length=limits.BY_CHARACTERS.value, pattern=_PRINTABLE)
    ] = "operator"
    why: Annotated[str, Meta(max_length=limits.WHY_CHARACTERS.value, pattern=_PRINTABLE)] = ""

    def values(self) -> dict[str, LimitValue]:
        """The limits to change, by name."""
        given = {name: getattr(self, name) for name in _LIMITS}
        return {name: value for name, value in given.items() if value is not UNSET}


_SIGNED = ("by", "why")
_LIMITS = tuple(name for name in LimitsChange.__struct_fields__ if name not in _SIGNED)
_COUNT = "a whole number from 1 on"
_ALLOWED = {
    "max_batched_tokens": f"auto, or {_COUNT}",
    "max_auto_tokens": _COUNT,
    "max_num_seqs": _COUNT,
    "itl_target_ms": f"a number above 0, at most {limits.ITL_TARGET_MS.value}, or null",
    "queue_limit": _COUNT,
    "queue_limit_tokens": _COUNT,
    "tenant_max_seqs": f"{_COUNT}, or null",
    "tenant_queue_limit": f"{_COUNT}, or null",
    "tenant_weights": f"at most {limits.TENANT_WEIGHTS.value} tenants with a number each, from "
    f"{1 / limits.TENANT_WEIGHT.value:g} to {limits.TENANT_WEIGHT.value}",
    "prefix_cache": "true or false",
    "speculative_tokens": f"a whole number from 0 to {limits.SPECULATIVE_TOKENS.value}",
    "order": "slo or arrival",
    "refuse_late": "true or false",
    "by": f"a text of 1 to {limits.BY_CHARACTERS.value} printable characters",
    "why": f"a text of at most {limits.WHY_CHARACTERS.value} printable characters",
}


async def limits_in_force(state: GatewayState, request: Request) -> Response:
    """The limits in force, and the last changes."""
    view = state.engine.limits.view(state.clock.now_ns())
    if view is None:
        raise not_ready()
    return Response(msgspec.json.encode(view), media_type="application/json")


async def set_limits(state: GatewayState, request: Request) -> Response:
    """Put limits in force, and answer once they are."""
    change = await _read(state, request)
    values = change.values()
    if not values:
        raise bad_request(f"nothing to change; the limits are {', '.join(_LIMITS)}")
    if not state.engine.ready:
        raise state.engine.unavailable_error()
    try:
        await state.engine.limits.change(values, change.by, change.why)
    except LimitError as error:
        raise bad_request(str(error), error.name, "limit_not_possible") from error
    except EngineGone as gone:
        raise _engine_gone() from gone
    except TimeoutError as late:
        raise _not_confirmed() from late
    return await limits_in_force(state, request)


async def _read(state: GatewayState, request: Request) -> LimitsChange:
    """Raises ApiError that names the field and says what is allowed."""
    try:
        raw = await read_body(request.scope, request.receive, state.config, state.bodies)
        return decode(raw, LimitsChange)
    except Interrupted as interruption:
        raise bad_request("the body broke off", code="invalid_body") from interruption
    except ApiError as error:
        name = (error.param or "").partition(".")[0]
        if name in _ALLOWED:
            error.message, error.param = f"{name}: {_ALLOWED[name]}", name
        elif error.code == "unknown_field":
            error.message += f"; the limits are {', '.join(_LIMITS)}"
        raise


def _engine_gone() -> ApiError:
    error = not_ready()
    error.message = "the engine ended before the change was in force; try again"
    error.code = "engine_died"
    return error


def _not_confirmed() -> ApiError:
    return ApiError(
        504,
        f"the engine has not put the change in force within {CONFIRM_S:g} s, and may yet do so: "
        "GET /debug/limits says what holds",
        "timeout_error",
        "limits_not_confirmed",
    )
