"""How connections are taken, and what a client may make of one. Frozen, checked once."""

from __future__ import annotations

import ipaddress
import os

import msgspec

ANY_HOST = "*"
_PRIORITIES = range(-100, 101)


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Connections, their deadlines, who may speak to us from a browser, TLS, a unix socket.

    A head is a request's line and headers: it must be complete within `header_timeout_s` and hold
    at most `max_header_bytes`; a body must be complete within `body_timeout_s`. `allowed_hosts`
    are names that a `Host` header may give, empty for the rule of `service.gateway.http.browsers`;
    `cors_origins` are origins whose pages may call us. `best_priority` is the lowest number that
    a request may ask for as its priority; `key_priorities` says so for single keys.
    """

    max_connections: int = 4096
    max_header_bytes: int = 32 * 1024
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    keep_alive_timeout_s: float = 75.0
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    uds: str | None = None
    best_priority: int = 0
    key_priorities: dict[str, int] = {}

    def problem(self) -> str | None:
        """What cannot work and its remedy, in one line."""
        if self.max_connections < 1:
            return f"--max-connections must be at least 1, not {self.max_connections}"
        if self.max_header_bytes < 1024:
            return f"--max-header-bytes must be at least 1024, not {self.max_header_bytes}"
        for flag, value in (
            ("--header-timeout", self.header_timeout_s),
            ("--body-timeout", self.body_timeout_s),
            ("--keep-alive-timeout", self.keep_alive_timeout_s),
        ):
            if not 0 < value < float("inf"):
                return f"{flag} must be positive"
        for host in self.allowed_hosts:
            if not host or "/" in host:
                return f"--allowed-hosts {host!r}: give names without scheme or path, as in my.host"
        for origin in self.cors_origins:
            if origin != ANY_HOST and not origin.startswith(("http://", "https://")):
                return f"--cors-origins {origin!r}: give scheme and host, as in https://my.host"
        if self.best_priority not in _PRIORITIES:
            return f"--best-priority {self.best_priority}: choose -100 (the best) to 100"
        return self._tls_problem() or self._socket_problem()

    @property
    def is_tls(self) -> bool:
        return self.ssl_certfile is not None

    def _tls_problem(self) -> str | None:
        if self.ssl_certfile is None:
            return None if self.ssl_keyfile is None else "--ssl-keyfile needs --ssl-certfile"
        import ssl  # only where it is wanted: the start must not wait for it

        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, lambda: "")
        except (OSError, ValueError) as error:
            return f"--ssl-certfile {self.ssl_certfile}: certificate or key cannot be used: {error}"
        return None

    def _socket_problem(self) -> str | None:
        if self.uds is not None and (not self.uds or len(os.fsencode(self.uds)) > 100):
            return "--uds: give a path of 1 to 100 bytes"
        return None


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
