"""Limits what a web page can do to this server through its visitor's browser.

A browser sends the page's `Origin` with its requests. A page of another origin can change nothing
and cannot read the internal paths, unless `--cors-origins` names it. A server on a loopback
address also refuses a `Host` that is not its name: with DNS rebinding, a page could point its own
name at 127.0.0.1 and pass for the same origin. Addresses are always accepted, because they cannot
be rebound. Clients that are not browsers send no Origin.
"""

from __future__ import annotations

import ipaddress

from starlette.types import Scope

from service.config.http_settings import ANY_HOST, is_loopback
from service.config.settings import GatewayConfig
from service.gateway.errors import ApiError, bad_request
from service.gateway.http.http_errors import host_not_allowed, origin_not_allowed

ADMIN_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""They change what all clients are served, where other servers have them."""
_SAFE = ("GET", "HEAD", "OPTIONS")


def is_control(method: str, path: str) -> bool:
    """Whether a request changes what the server does for all its clients."""
    return path in ADMIN_PATHS or (path.startswith("/debug/") and method not in _SAFE)


def is_internal(path: str) -> bool:
    """Whether the path shows or changes the server's internals."""
    return path.startswith("/debug/") or path == "/metrics" or path in ADMIN_PATHS


def browser_error(config: GatewayConfig, scope: Scope) -> ApiError | None:
    """The error for a request that a page may not send; None if it is allowed."""
    hosts = _values(scope, b"host")
    if len(hosts) > 1:
        return bad_request("more than one Host header", code="invalid_host")
    host = hosts[0] if hosts else ""
    if host and not _is_allowed_host(config, host):
        return host_not_allowed(host)
    is_guarded = scope["method"] not in _SAFE or is_internal(scope["path"])
    for origin in _values(scope, b"origin") if is_guarded else ():
        if not _is_allowed_origin(config, scope["path"], origin, host):
            return origin_not_allowed(origin)
    return None


def _is_allowed_host(config: GatewayConfig, host: str) -> bool:
    allowed = config.http.allowed_hosts
    if not allowed and (config.http.uds is not None or not is_loopback(config.host)):
        return True
    name = _name(host)
    if ANY_HOST in allowed or name in allowed or host.lower() in allowed:
        return True
    if name == "localhost" or name.endswith(".localhost") or name == config.host.lower():
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _is_allowed_origin(config: GatewayConfig, path: str, origin: str, host: str) -> bool:
    """`*` allows API paths only; internal paths need the origin by name."""
    origins = config.http.cors_origins
    if origin in origins or (ANY_HOST in origins and not is_internal(path)):
        return True
    scheme, _, place = origin.partition("://")
    return scheme in ("http", "https") and bool(host) and place.lower() == host.lower()


def _name(host: str) -> str:
    """A Host header without its port; an IPv6 address keeps its brackets."""
    name, colon, port = host.lower().rpartition(":")
    is_port = bool(colon) and (not port or port.isdecimal())
    return name if is_port and (":" not in name or name.startswith("[")) else host.lower()


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [str(value, "latin-1") for name, value in scope["headers"] if name == wanted]
