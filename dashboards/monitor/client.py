"""Fetches what the screen shows from a running server."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TypeVar

import msgspec

from diagnosis.classifier import Diagnosis
from telemetry.window import Snapshot

_TIMEOUT_S = 3.0

T = TypeVar("T")


class Unreachable(Exception):
    """The server does not answer, or not as phasescope does; the message is one line."""


class Client:
    """Reads `/debug/snapshot` and `/debug/diagnosis`."""

    def __init__(self, url: str, debug_key: str | None = None) -> None:
        self.url = url.rstrip("/") if "//" in url else f"http://{url.rstrip('/')}"
        self._headers = {"authorization": f"Bearer {debug_key}"} if debug_key else {}

    def snapshot(self) -> Snapshot:
        """Raises Unreachable."""
        return self._get("/debug/snapshot", Snapshot)

    def diagnosis(self) -> Diagnosis:
        """Raises Unreachable."""
        return self._get("/debug/diagnosis", Diagnosis)

    def _get(self, path: str, kind: type[T]) -> T:
        try:
            request = urllib.request.Request(self.url + path, headers=self._headers)
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return msgspec.json.decode(answer.read(), type=kind)
        except urllib.error.HTTPError as error:
            hint = "; give --debug-key" if error.code == 401 else ""
            raise Unreachable(f"{self.url}{path} answers {error.code}{hint}") from error
        except (OSError, ValueError, HTTPException, msgspec.MsgspecError) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"{self.url} cannot be read: {reason}") from error
