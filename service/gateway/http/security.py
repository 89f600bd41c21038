"""API keys, and a separate key for the server's internals.

A request's tenant is that of its API key, else the `x-tenant` header. Which key a path needs is
decided by the path that is routed, never by a URL, which contains the client's `Host` header. What
changes something under `/debug/` needs a key where there is any: without a debug key the API key.
"""

from __future__ import annotations

import hmac
from enum import StrEnum

from starlette.types import Scope

from service.config.settings import GatewayConfig
from service.gateway.errors import ApiError, unauthorized
from service.gateway.http.asgi import header, label
from service.gateway.http.browsers import browser_error, is_control, is_internal
from service.gateway.http.http_errors import priority_not_allowed

# routes outside /v1/ that other servers have too, for clients of the model
_API_PATHS = frozenset(
    (
        "/server_info", "/get_server_info", "/model_info", "/get_model_info", "/loads",
        "/tokenize", "/detokenize",
    )
)  # fmt: skip


class RequiredKey(StrEnum):
    """Which API key a route requires."""

    DEBUG = "debug"  # that of --debug-key
    ADMIN = "admin"  # that of --api-key, and no tenant's: there is no --debug-key
    API = "api"  # that of --api-key, or a tenant's


_NEEDED = {
    RequiredKey.DEBUG: "the server's debug key (--debug-key)",
    RequiredKey.ADMIN: "the server's own API key (--api-key), since it has no --debug-key",
    RequiredKey.API: "an API key (--api-key, or a tenant's)",
}


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
        # that name is reserved for the holder of its key
        return unauthorized("the key of the tenant that it names"), ""
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


def guard_of(config: GatewayConfig, method: str, path: str) -> RequiredKey | None:
    """The key that a request needs; None for none."""
    is_admin = is_control(method, path)
    if is_internal(path) and config.debug_key is not None:
        return RequiredKey.DEBUG
    if not is_admin and not is_api_path(path):
        return None
    if config.api_key is None and not config.tenant_keys:
        return None
    return RequiredKey.ADMIN if is_admin else RequiredKey.API


def _key_error(config: GatewayConfig, scope: Scope) -> ApiError | None:
    guard = guard_of(config, scope["method"], scope["path"])
    if guard is None:
        return None
    needed = config.debug_key if guard is RequiredKey.DEBUG else config.api_key
    given = _bearer(header(scope, b"authorization"))
    if needed is not None and _equal(given, needed):
        return None
    if guard is RequiredKey.API and _tenant_key(config, given) is not None:
        return None
    return unauthorized(_NEEDED[guard])


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
