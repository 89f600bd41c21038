"""Reads the debug routes for agents. Only GET; every error has a kind and one line."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from enum import StrEnum
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from dashboards.monitor.client import server_url
from telemetry.facts.credentials import KeyUnusable, bearer, shown_url

_TIMEOUT_S = 10.0
_JOURNAL_TIMEOUT_S = 60.0


class ErrorKind(StrEnum):
    """Why a tool has no answer."""

    UNREACHABLE = "unreachable"  # nothing answers at that address, or not like phasescope
    UNAUTHORIZED = "unauthorized"  # the server wants its debug key
    NOT_FOUND = "not_found"  # unknown, or no longer kept
    BAD_ARGUMENT = "bad_argument"  # the tool was called in a wrong way
    NOT_AVAILABLE = "not_available"  # this server does not have it: it is switched off
    REFUSED = "refused"  # the server answers with another error


_KINDS = {401: ErrorKind.UNAUTHORIZED, 403: ErrorKind.UNAUTHORIZED, 404: ErrorKind.NOT_FOUND}


class ToolFailed(Exception):
    """A tool has no answer; the message is one line."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class DebugReader:
    """GET requests to one server; `name` is its URL as it may be shown."""

    def __init__(self, url: str, debug_key: str | None = None) -> None:
        self.url = server_url(url)
        self.name = shown_url(self.url)
        self._debug_key = debug_key

    def get(self, path: str, *parts: str) -> Any:
        """The JSON at `path`, with `parts` added to it as path segments. Raises ToolFailed."""
        whole = "/".join([path, *(quote(part, safe="") for part in parts)])
        with self._open(whole, _TIMEOUT_S) as answer:
            try:
                return msgspec.json.decode(answer.read())
            except (OSError, HTTPException, msgspec.MsgspecError) as error:
                raise self._unreadable(error) from error

    def status(self, path: str) -> tuple[int, Any]:
        """The status and the JSON of a route that tells something by its status too. Raises
        ToolFailed."""
        try:
            return 200, self.get(path)
        except ToolFailed as failed:
            cause = failed.__cause__
            if not isinstance(cause, urllib.error.HTTPError) or cause.code != 503:
                raise
            return cause.code, {"reason": str(failed)}

    def download_journal(self, path: Path) -> None:
        """Raises ToolFailed, OSError."""
        with self._open("/debug/journal", _JOURNAL_TIMEOUT_S) as answer, path.open("wb") as file:
            try:
                shutil.copyfileobj(answer, file)
            except HTTPException as error:
                raise self._unreadable(error) from error

    def _open(self, path: str, timeout_s: float) -> Any:
        try:
            request = urllib.request.Request(self.url + path, headers=bearer(self._debug_key))
            return urllib.request.urlopen(request, timeout=timeout_s)
        except KeyUnusable as error:
            raise ToolFailed(ErrorKind.UNAUTHORIZED, str(error)) from error
        except urllib.error.HTTPError as error:
            kind = _KINDS.get(error.code, ErrorKind.REFUSED)
            raise ToolFailed(kind, f"{path} answers {error.code}{_said(error)}") from error
        except (OSError, ValueError, HTTPException) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ToolFailed:
        reason = getattr(error, "reason", error)
        return ToolFailed(ErrorKind.UNREACHABLE, f"{self.name} cannot be read: {reason}")


def _said(error: urllib.error.HTTPError) -> str:
    """The server's own words, where it has any."""
    try:
        body = msgspec.json.decode(error.read())
        said = body["reason"] if "reason" in body else body["error"]["message"]
    except (OSError, HTTPException, msgspec.MsgspecError, LookupError, TypeError):
        return ""
    return f": {said}"
