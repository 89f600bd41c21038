"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, in vLLM's shape.

They need --lora-root, and are for operators: the key of `/debug/*` guards them. The answer to a
load comes when the files have been read, so a broken adapter is an error here and not of the first
request that names it. The answer to an unload comes when the memory is free.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from service.config.adapter_settings import check_name
from service.config.settings import ConfigError
from service.gateway.engine_client.adapters import (
    AdapterBroken,
    AdapterEngineGone,
    AdaptersRefused,
)
from service.gateway.errors import ApiError, bad_request, conflict, not_found
from service.gateway.generation.state import GatewayState
from service.gateway.http import limits
from service.gateway.routes.view_routes import read_json
from telemetry.facts.adapter_records import AdapterRefusal, UnloadMode

_READ_SLACK_S = 5.0

AdapterName = Annotated[str, Meta(min_length=1, max_length=limits.ADAPTER_NAME_CHARACTERS.value)]


class LoadLora(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/load_lora_adapter. `load_inplace` gives the name to new weights: requests
    that have begun keep the old ones."""

    lora_name: AdapterName
    lora_path: Annotated[str, Meta(min_length=1, max_length=limits.PATH_CHARACTERS.value)]
    load_inplace: bool = False


class UnloadLora(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/unload_lora_adapter. While requests use the adapter, `wait` serves them to
    their end, up to `timeout` seconds of waiting here; `refuse` changes nothing; `force` ends
    them."""

    lora_name: AdapterName
    mode: Literal["wait", "refuse", "force"] = "wait"
    timeout: Annotated[float, Meta(gt=0, le=limits.UNLOAD_WAIT_S.value)] = 30.0


async def load_adapter(state: GatewayState, request: Request) -> Response:
    """Load an adapter under a name."""
    body = await read_json(state, request, LoadLora)
    _require_allowed(state)
    try:
        check_name("lora_name", body.lora_name)
    except ConfigError as error:
        raise bad_request(str(error), "lora_name", "invalid_name") from error
    if body.lora_name == state.model:
        raise bad_request("the base model has this name", "lora_name", "name_taken")
    folder = _folder(state, body.lora_path)
    within_s = state.adapters.lora_read_timeout_s + _READ_SLACK_S
    try:
        await state.engine.adapters.load(body.lora_name, str(folder), body.load_inplace, within_s)
    except AdaptersRefused as refused:
        raise _refusal(refused, body.lora_name) from refused
    except AdapterBroken as broken:
        raise bad_request(str(broken), "lora_path", "adapter_failed") from broken
    except AdapterEngineGone as gone:
        raise _gone() from gone
    except TimeoutError as late:
        raise _late("the adapter has not been read; GET /v1/models says whether it is") from late
    return _text(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(state: GatewayState, request: Request) -> Response:
    """Unload the adapter of a name."""
    body = await read_json(state, request, UnloadLora)
    _require_allowed(state)
    try:
        await state.engine.adapters.unload(body.lora_name, UnloadMode(body.mode), body.timeout)
    except AdaptersRefused as refused:
        raise _refusal(refused, body.lora_name) from refused
    except AdapterEngineGone as gone:
        raise _gone() from gone
    except TimeoutError as late:
        raise _late(
            "requests still use the adapter, new ones do not: it is unloaded after the last of "
            "them; mode force ends them"
        ) from late
    return _text(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _require_allowed(state: GatewayState) -> None:
    """Raises ApiError."""
    if state.adapters.lora_root is None:
        error = not_found(
            "adapters are those of the start; --lora-root FOLDER allows to load others",
            "lora_loading_off",
        )
        error.status = 403
        raise error
    if not state.engine.ready:
        raise state.engine.unavailable_error()


def _folder(state: GatewayState, asked: str) -> Path:
    """The folder with its links resolved; a relative one is below the root. Raises ApiError."""
    root = Path(state.adapters.lora_root or "").expanduser().resolve()
    try:
        folder = (root / asked).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise bad_request("lora_path is not a path", "lora_path", "path_not_allowed") from error
    if not folder.is_relative_to(root):
        raise bad_request(
            "lora_path must be below the folder of --lora-root", "lora_path", "path_not_allowed"
        )
    return folder


def _refusal(refused: AdaptersRefused, name: str) -> ApiError:
    match refused.why:
        case AdapterRefusal.NAME_TAKEN:
            message = f"an adapter {name!r} is loaded; load_inplace replaces it"
            return bad_request(message, "lora_name", "name_taken")
        case AdapterRefusal.UNKNOWN:
            return not_found(f"no adapter {name!r} is loaded", "adapter_not_found")
        case AdapterRefusal.IN_USE:
            return conflict(f"{refused.live} sequences use adapter {name!r}", "adapter_in_use")
        case AdapterRefusal.TOO_MANY:
            message = f"{limits.ADAPTERS.value} adapters are loaded; unload one"
            return conflict(message, "too_many_adapters")
        case AdapterRefusal.OFF:
            return conflict("the engine has no memory for adapters", "lora_loading_off")


def _gone() -> ApiError:
    return ApiError(
        503, "the engine ended meanwhile; try again", "service_unavailable_error", "engine_died"
    )


def _late(message: str) -> ApiError:
    return ApiError(504, message, "timeout_error", "adapter_not_confirmed")


def _text(said: str) -> Response:
    return Response(said, media_type="text/plain")
