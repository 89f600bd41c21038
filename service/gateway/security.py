"""Keys for the API and, apart from them, for what shows the service's inside."""

from __future__ import annotations

import hmac

from service.config import GatewayConfig
from service.gateway.errors import ApiError, unauthorized


def key_error(config: GatewayConfig, path: str, authorization: str | None) -> ApiError | None:
    """None when the request may go on; otherwise the 401."""
    needed = key_for(config, path)
    if needed is None:
        return None
    scheme, _, given = (authorization or "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), needed.encode()):
        return None
    return unauthorized()


def key_for(config: GatewayConfig, path: str) -> str | None:
    if path.startswith("/v1/"):
        return config.api_key
    if path.startswith("/debug/") or path == "/metrics":
        return config.debug_key
    return None
