"""HTTP client of the debug views of a running server."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TypeVar
from urllib.parse import quote

import msgspec

from dashboards.explain import Explained
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.stats.window import Snapshot

_TIMEOUT_S = 3.0
_HINTS = {401: "; give --debug-key", 404: "; unknown, or no longer kept"}

T = TypeVar("T")


class Unreachable(Exception):
    """The server does not answer, or not like phasescope; the message is one line."""


class Client:
    """Reads the server's debug views."""

    def __init__(self, url: str, debug_key: str | None = None) -> None:
        self.url = url.rstrip("/") if "//" in url else f"http://{url.rstrip('/')}"
        self._headers = {"authorization": f"Bearer {debug_key}"} if debug_key else {}

    def snapshot(self) -> Snapshot:
        """Raises Unreachable."""
        return self._get("/debug/snapshot", Snapshot)

    def diagnosis(self) -> Diagnosis:
        """Raises Unreachable."""
        return self._get("/debug/diagnosis", Diagnosis)

    def explained(self, request_id: str) -> Explained:
        """Raises Unreachable; also when the server does not know the request."""
        return self._get(f"/debug/requests/{quote(request_id, safe='')}", Explained)

    def _get(self, path: str, kind: type[T]) -> T:
        try:
            request = urllib.request.Request(self.url + path, headers=self._headers)
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return msgspec.json.decode(answer.read(), type=kind)
        except urllib.error.HTTPError as error:
            hint = _HINTS.get(error.code, "")
            raise Unreachable(f"{self.url}{path} answers {error.code}{hint}") from error
        except (OSError, ValueError, HTTPException, msgspec.MsgspecError) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"{self.url} cannot be read: {reason}") from error
