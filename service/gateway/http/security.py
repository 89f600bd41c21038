"""API keys, and a separate key for the server's internals.

A request's tenant is that of its API key, else the `x-tenant` header. Which key a path needs is
decided by the path that is routed, never by a URL, which contains the client's `Host` header.
"""

from __future__ import annotations

import hmac

from starlette.types import Scope

from service.config.settings import GatewayConfig
from service.gateway.errors import ApiError, unauthorized
from service.gateway.http.asgi import header, label
from service.gateway.http.browsers import ADMIN_PATHS, browser_error, is_internal
from service.gateway.http.http_errors import priority_not_allowed

# routes outside /v1/ that other servers have too, for clients of the model
_API_PATHS = frozenset(
    (
        "/server_info", "/get_server_info", "/model_info", "/get_model_info", "/loads",
        "/tokenize", "/detokenize",
    )
)  # fmt: skip


def identify(config: GatewayConfig, scope: Scope) -> tuple[ApiError | None, str]:
    """The error if the request is refused, else None; and its tenant."""
    foreign = browser_error(config, scope)
    if foreign is not None:
        return foreign, ""
    key = _tenant_key(config, _bearer(header(scope, b"authorization")))
    if key is not None:
        return None, config.tenant_keys[key]
    tenant = label(header(scope, b"x-tenant"))
    if tenant in config.tenant_keys.values():
        return unauthorized(), ""  # that name is reserved for the holder of its key
    return _key_error(config, scope), tenant


def refusal(config: GatewayConfig, scope: Scope) -> ApiError | None:
    """The 401 or 403 if the request is refused, else None."""
    return browser_error(config, scope) or _key_error(config, scope)


def check_priority(config: GatewayConfig, scope: Scope, priority: int) -> None:
    """Whether the request's key allows its priority. Raises ApiError."""
    http = config.http
    key = _tenant_key(config, _bearer(header(scope, b"authorization")))
    best = http.best_priority if key is None else http.key_priorities.get(key, http.best_priority)
    if priority < best:
        raise priority_not_allowed(priority, best)


def is_api_path(path: str) -> bool:
    """Whether a path is for clients of the model, who have an API key."""
    return path.startswith("/v1/") or path in _API_PATHS


def _key_error(config: GatewayConfig, scope: Scope) -> ApiError | None:
    path: str = scope["path"]
    is_admin = path in ADMIN_PATHS  # a tenant's key is not enough
    is_api = is_api_path(path) and not is_admin
    if is_internal(path) and not (is_admin and config.debug_key is None):
        needed, guarded = config.debug_key, config.debug_key is not None
    elif is_api or is_admin:
        needed = config.api_key
        guarded = needed is not None or bool(config.tenant_keys)
    else:
        return None
    given = _bearer(header(scope, b"authorization"))
    if not guarded or (needed is not None and _equal(given, needed)):
        return None
    if is_api and _tenant_key(config, given) is not None:
        return None
    return unauthorized()


def _tenant_key(config: GatewayConfig, given: str) -> str | None:
    """The tenant key that was given; all keys are compared, so that timing reveals nothing."""
    found: str | None = None
    for key in config.tenant_keys:
        if _equal(given, key):
            found = key
    return found


def _bearer(authorization: str | None) -> str:
    scheme, _, given = (authorization or "").partition(" ")
    return given if scheme.lower() == "bearer" else ""


def _equal(given: str, needed: str) -> bool:
    return hmac.compare_digest(given.encode(), needed.encode())
