"""Keys for the API and, apart from them, for what shows the service's inside.

Who a request is charged to is its tenant: the one that its API key belongs to, else the
one that the `x-tenant` header names.
"""

from __future__ import annotations

import hmac

from starlette.types import Scope

from service.config import GatewayConfig
from service.gateway.errors import ApiError, unauthorized
from service.gateway.http import header
from service.gateway.witness import label


def identify(config: GatewayConfig, scope: Scope) -> tuple[ApiError | None, str]:
    """The refusal, if the request may not go on, and the tenant."""
    authorization = header(scope, b"authorization")
    owner = _owner(config, _bearer(authorization))
    if owner is not None:
        return None, owner
    tenant = label(header(scope, b"x-tenant"))
    if tenant in config.tenant_keys.values():
        return unauthorized(), ""  # that name is reserved for the holder of its key
    return key_error(config, scope["path"], authorization), tenant


def key_error(config: GatewayConfig, path: str, authorization: str | None) -> ApiError | None:
    """None when the request may go on; otherwise the 401."""
    if path.startswith("/debug/") or path == "/metrics":
        needed, guarded = config.debug_key, config.debug_key is not None
    elif path.startswith("/v1/"):
        needed = config.api_key
        guarded = needed is not None or bool(config.tenant_keys)
    else:
        return None
    given = _bearer(authorization)
    if not guarded or (needed is not None and _equal(given, needed)):
        return None
    if path.startswith("/v1/") and _owner(config, given) is not None:
        return None
    return unauthorized()


def _owner(config: GatewayConfig, given: str) -> str | None:
    """The tenant of a key; every key is compared, so that the time tells nothing."""
    found: str | None = None
    for key, tenant in config.tenant_keys.items():
        if _equal(given, key):
            found = tenant
    return found


def _bearer(authorization: str | None) -> str:
    scheme, _, given = (authorization or "").partition(" ")
    return given if scheme.lower() == "bearer" else ""


def _equal(given: str, needed: str) -> bool:
    return hmac.compare_digest(given.encode(), needed.encode())
