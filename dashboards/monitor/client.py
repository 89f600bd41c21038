"""HTTP client of the debug views of a running server, and of its limits."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from dashboards.explain import Explained
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.facts.limits import LimitsView
from telemetry.requests.request_list import RequestsPage
from telemetry.stats.window import Batch, Snapshot

_TIMEOUT_S = 3.0
_CHANGE_TIMEOUT_S = 10.0  # the server waits for the engine
_HINTS = {401: "; give --debug-key", 404: "; unknown, or no longer kept"}
_HOST_PORT = re.compile(r"([\w.-]+|\[[\w:.%]+\]):\d+")

T = TypeVar("T")


def is_server(source: str) -> bool:
    """Whether `source` is the URL of a server, or its HOST:PORT. All else is a file: a mistyped
    name of one is no host to be sent a key."""
    is_named_so = source.startswith(("http://", "https://")) or _HOST_PORT.fullmatch(source)
    return bool(is_named_so) and not Path(source).exists()


class _Owned(msgspec.Struct):
    tenant: str = ""


class Unreachable(Exception):
    """The server does not answer, or not like phasescope; the message is one line. `status` is that
    of an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Reads the server's debug views."""

    def __init__(self, url: str, debug_key: str | None = None) -> None:
        self.url = url.rstrip("/") if "//" in url else f"http://{url.rstrip('/')}"
        self.debug_key = debug_key
        self._headers = {"authorization": f"Bearer {debug_key}"} if debug_key else {}

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
        """As they came, for `telemetry.stats.histogram_report.merge`. Raises Unreachable."""
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
        path, body = "/debug/limits", msgspec.json.encode(change)
        headers = {**self._headers, "content-type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers, method="PUT")
        return self._ask(request, path, LimitsView, _CHANGE_TIMEOUT_S)

    def _get(self, path: str, kind: type[T]) -> T:
        request = urllib.request.Request(self.url + path, headers=self._headers)
        return self._ask(request, path, kind, _TIMEOUT_S)

    def _ask(
        self, request: urllib.request.Request, path: str, kind: type[T], timeout_s: float
    ) -> T:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return msgspec.json.decode(answer.read(), type=kind)
        except urllib.error.HTTPError as error:
            hint = _HINTS.get(error.code) or _said(error)
            message = f"{self.url}{path} answers {error.code}{hint}"
            raise Unreachable(message, error.code) from error
        except (OSError, ValueError, HTTPException, msgspec.MsgspecError) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"{self.url} cannot be read: {reason}") from error


def _said(error: urllib.error.HTTPError) -> str:
    """The server's own words, where it has any."""
    try:
        message = msgspec.json.decode(error.read())["error"]["message"]
    except (OSError, HTTPException, msgspec.MsgspecError, LookupError, TypeError):
        return ""
    return f": {message}"
