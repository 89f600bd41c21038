"""What a web page may make its visitor's browser do to this server.

A page's requests carry an `Origin`, and the name that the page was loaded from is in `Host`. A page
of another origin may change nothing here and see nothing of the inside, unless `--cors-origins`
names it. And a server that is reached from this machine only answers to no foreign name: a page
whose own name was pointed at 127.0.0.1 (DNS rebinding) would pass for one of ours. Addresses are
always good names, since nobody can point them elsewhere. Who is no browser sends no Origin.
"""

from __future__ import annotations

import ipaddress

from starlette.types import Scope

from service.config.http_settings import ANY_HOST, is_loopback
from service.config.settings import GatewayConfig
from service.gateway.errors import ApiError, bad_request
from service.gateway.http.http_errors import host_not_allowed, origin_not_allowed

_SAFE = ("GET", "HEAD", "OPTIONS")


def is_inside(path: str) -> bool:
    """Shows or changes the service's inside."""
    return path.startswith("/debug/") or path == "/metrics"


def page_error(config: GatewayConfig, scope: Scope) -> ApiError | None:
    """The refusal of what a page should not be able to send; None for all else."""
    hosts = _values(scope, b"host")
    if len(hosts) > 1:
        return bad_request("more than one Host header", code="invalid_host")
    host = hosts[0] if hosts else ""
    if host and not _is_our_name(config, host):
        return host_not_allowed(host)
    is_guarded = scope["method"] not in _SAFE or is_inside(scope["path"])
    for origin in _values(scope, b"origin") if is_guarded else ():
        if not _may_call(config, scope["path"], origin, host):
            return origin_not_allowed(origin)
    return None


def _is_our_name(config: GatewayConfig, host: str) -> bool:
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


def _may_call(config: GatewayConfig, path: str, origin: str, host: str) -> bool:
    """`*` is for the API alone: what shows or changes the inside wants an origin by name."""
    origins = config.http.cors_origins
    if origin in origins or (ANY_HOST in origins and not is_inside(path)):
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
