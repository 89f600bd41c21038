"""HTTP client of the debug views of a running server, and of its limits."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from dashboards.explain import Explained
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.facts.credentials import KeyUnusable, bearer, shown_url
from telemetry.facts.limits import LimitsView
from telemetry.requests.request_list import RequestsPage
from telemetry.stats.snapshot import Batch, Snapshot

_TIMEOUT_S = 3.0
_CHANGE_TIMEOUT_S = 10.0  # the server waits for the engine
_UNAUTHORIZED, _UNKNOWN = 401, 404
_HINTS = {_UNAUTHORIZED: "; give --debug-key with it", _UNKNOWN: "; unknown, or no longer kept"}
_HOST_PORT = re.compile(r"([\w.-]+|\[[\w:.%]+\]):\d+")

T = TypeVar("T")


def is_server(source: str) -> bool:
    """Whether `source` is the URL of a server, or its HOST:PORT. All else is a file: a mistyped
    name of one is no host to be sent a key."""
    is_named_so = source.startswith(("http://", "https://")) or _HOST_PORT.fullmatch(source)
    return bool(is_named_so) and not os.path.exists(source)


def server_url(source: str) -> str:
    """The URL of a server that is named by its URL or its HOST:PORT; no slash ends it."""
    return source.rstrip("/") if "//" in source else f"http://{source.rstrip('/')}"


class _Owned(msgspec.Struct):
    tenant: str = ""


class Unreachable(Exception):
    """The server does not answer, or not like phasescope; the message is one line. `status` is that
    of an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Reads the server's debug views. `name` is its URL as it may be shown."""

    def __init__(self, url: str, debug_key: str | None = None) -> None:
        self.url = server_url(url)
        self.name = shown_url(self.url)
        self.debug_key = debug_key

    def snapshot(self) -> Snapshot:
        """Raises Unreachable."""
        return self._get("/debug/snapshot", Snapshot)

    def diagnosis(self) -> Diagnosis:
        """Raises Unreachable."""
        return self._get("/debug/diagnosis", Diagnosis)

    def requests(self, since: int, limit: int) -> RequestsPage:
        """Requests that have ended, from that number on. Raises Unreachable."""
        return self._get(f"/debug/requests?since={since}&limit={limit}", RequestsPage)

    def batch(self, rows: int) -> Batch:
        """Raises Unreachable."""
        return self._get(f"/debug/batch?rows={rows}", Batch)

    def root(self) -> dict[str, Any]:
        """The last root cause analysis. Raises Unreachable."""
        return self._get("/debug/root", dict[str, Any])

    def explained(self, request_id: str) -> Explained:
        """Raises Unreachable; also when the server does not know the request."""
        return self._get(f"/debug/requests/{quote(request_id, safe='')}", Explained)

    def histograms(self, window: str) -> bytes:
        """The histograms as they came, for `telemetry.stats.histogram_report.merge`. Raises
        Unreachable."""
        return bytes(self._get(f"/debug/histograms?window={quote(window)}", msgspec.Raw))

    def tenant(self, request_id: str) -> str:
        """Whose request it is; empty where it is unknown, or no longer kept."""
        try:
            return self._get(f"/debug/requests/{quote(request_id, safe='')}", _Owned).tenant
        except Unreachable:
            return ""

    def limits(self) -> LimitsView:
        """Raises Unreachable."""
        return self._get("/debug/limits", LimitsView)

    def set_limits(self, change: dict[str, Any]) -> LimitsView:
        """Raises Unreachable; also when the server refuses the change, with its reason."""
        headers = {"content-type": "application/json"}
        return self._ask(
            "/debug/limits", LimitsView, _CHANGE_TIMEOUT_S,
            data=msgspec.json.encode(change), headers=headers, method="PUT",
        )  # fmt: skip

    def _get(self, path: str, kind: type[T]) -> T:
        return self._ask(path, kind, _TIMEOUT_S)

    def _ask(self, path: str, kind: type[T], timeout_s: float, **more: Any) -> T:
        """`more` are arguments of a request that is no GET. Raises Unreachable."""
        try:
            key = bearer(self.debug_key)
            request = urllib.request.Request(self.url + path, **more)
            for name, value in key.items():
                request.add_header(name, value)
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return msgspec.json.decode(answer.read(), type=kind)
        except KeyUnusable as error:
            raise Unreachable(f"{self.name}: {error}", _UNAUTHORIZED) from error
        except urllib.error.HTTPError as error:
            said = "" if error.code == _UNKNOWN else _said(error)
            message = f"{self.name}{path} answers {error.code}{said}{_HINTS.get(error.code, '')}"
            raise Unreachable(message, error.code) from error
        except (OSError, ValueError, HTTPException, msgspec.MsgspecError) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"{self.name} cannot be read: {reason}") from error


def _said(error: urllib.error.HTTPError) -> str:
    """The server's own words, where it has any."""
    try:
        message = msgspec.json.decode(error.read())["error"]["message"]
    except (OSError, HTTPException, msgspec.MsgspecError, LookupError, TypeError):
        return ""
    return f": {message}"
