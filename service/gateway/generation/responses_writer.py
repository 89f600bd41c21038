"""Writes answers of /v1/responses: typed events with numbers, or one object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from service.gateway.errors import ApiError
from service.gateway.generation.choice import Choice, Delta
from service.gateway.generation.logprobs import chat_entries
from service.gateway.generation.prompt_echo import PromptEcho
from service.gateway.generation.response_items import Event, ResponseItems
from service.gateway.generation.responses import ResponseHead
from service.text.tokenizer import Tokenizer
from telemetry.requests.timings import RequestTimings

_encode = msgspec.json.Encoder().encode


class ResponsesWriter:
    """Writes one response."""

    done = b""

    def __init__(
        self, head: ResponseHead, tokenizer: Tokenizer, repeated: bytes, may_call: bool
    ) -> None:
        """`repeated` is what it repeats of its request, a JSON object; `may_call`: the output may
        have calls."""
        self._head = head
        self._tokenizer = tokenizer
        # the values stay the JSON that they are, however large they are
        self._repeated = msgspec.json.decode(repeated, type=dict[str, msgspec.Raw])
        self._items = ResponseItems(head.request_id, tokenizer, may_call)
        self._was_cut = False
        self._sent = 0

    def opening(self) -> bytes:
        """The client learns at once that its request was taken."""
        response = {"response": self._response("in_progress")}
        return self._events([("created", response), ("in_progress", response)])

    def first(self, choices: list[Choice]) -> list[bytes]:
        """Nothing: an item begins with its first text."""
        return []

    def chunk(self, choice: Choice, delta: Delta, counts: dict[str, Any] | None = None) -> bytes:
        """The events of new output."""
        return self._events(self._taken(delta))

    def last(self, counts: dict[str, Any], timings: RequestTimings | None) -> bytes:
        """The whole response once more, as OpenAI does."""
        status = self._status()
        return self._events([(status, {"response": self._response(status, counts, timings)})])

    def failed(self, error: ApiError) -> bytes:
        """The response as far as it came, and why it goes no further."""
        code = error.code or error.kind
        response = self._response("failed")
        response["error"] = {"code": code, "message": error.message}
        return self._events([("failed", {"response": response})])

    async def whole(
        self,
        choices: list[Choice],
        deltas: list[Delta],
        counts: dict[str, Any],
        timings: RequestTimings | None,
        echoes: Sequence[PromptEcho] = (),
    ) -> bytes:
        """The response as it is after all events."""
        for delta in deltas:
            delta.entries = await chat_entries(self._tokenizer, delta.scored)
            list(self._taken(delta))
        return _encode(self._response(self._status(), counts, timings))

    def _taken(self, delta: Delta) -> Iterable[Event]:
        yield from self._items.add(delta)
        if delta.finish_reason is not None:
            self._was_cut = delta.finish_reason == "length"
            yield from self._items.finish(is_whole=not self._was_cut)

    def _status(self) -> str:
        return "incomplete" if self._was_cut else "completed"

    def _response(
        self,
        status: str,
        counts: dict[str, Any] | None = None,
        timings: RequestTimings | None = None,
    ) -> dict[str, Any]:
        found: dict[str, Any] = {
            "id": f"resp_{self._head.request_id}",
            "object": "response",
            "created_at": self._head.created_unix_s,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if self._was_cut else None,
            "model": self._head.model,
            "output": [dict(item) for item in self._items.items],
            "usage": None if counts is None else _usage(counts),
            **self._repeated,
        }
        if timings is not None:
            found["metrics"] = timings
        return found

    def _events(self, events: Iterable[Event]) -> bytes:
        parts: list[bytes] = []
        for name, fields in events:
            kind = f"response.{name}"
            body = {"type": kind, "sequence_number": self._sent, **fields}
            parts.append(b"event: " + kind.encode() + b"\ndata: " + _encode(body) + b"\n\n")
            self._sent += 1
        return b"".join(parts)


def _usage(counts: dict[str, Any]) -> dict[str, Any]:
    """The same counts in the names of this route."""
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"],
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": counts["completion_tokens_details"],
        "total_tokens": counts["total_tokens"],
    }
