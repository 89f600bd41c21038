"""The output items of a response of /v1/responses: what the model says, in the order of its saying.

One definition for both ways of delivery: a stream sends the events as they come, a whole response
has the items that they leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from service.gateway.generation.choice import Delta
from service.gateway.generation.logprobs import chat_logprobs
from service.text.tokenizer import Tokenizer
from service.text.tools.parser import CallPiece, FoundCall

Event = tuple[str, dict[str, Any]]
"""A name without its `response.`, and the fields."""

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
_PREFIXES = {"message": "msg", "reasoning": "rs"}
_CALL = "function_call"


class ResponseItems:
    """Items of one response; at most one is open, and it is the last."""

    def __init__(self, request_id: str, tokenizer: Tokenizer, may_call: bool = False) -> None:
        """`may_call`: the output may have calls, so not every token is one of a message."""
        self._request_id = request_id
        self._may_call = may_call
        self._tokenizer = tokenizer
        self.items: list[dict[str, Any]] = []
        self._open: str | None = None
        self._text: list[str] = []
        self._logprobs: list[Any] = []
        self._unsaid: list[Any] = []  # the same of tokens of a message, if text of them comes

    def add(self, delta: Delta) -> Iterator[Event]:
        """Take new output: reasoning, then text of the answer, then calls. The text comes after
        the pieces of a call that is open: it was held back, or follows the call."""
        if delta.reasoning:
            yield from self._append("reasoning", delta.reasoning, [])
        pieces = iter(delta.calls)
        if self._open == _CALL:
            yield from self._add_calls(pieces)
        self._unsaid += self._entries(delta)
        if delta.text or (self._unsaid and not self._may_call):
            yield from self._say(delta.text)
        yield from self._add_calls(pieces)
        if self._open == _CALL:
            self._unsaid = []  # they are the call's

    def finish(self, is_whole: bool) -> Iterator[Event]:
        """The output has ended, by itself or (not `is_whole`) at a limit of tokens."""
        if self._open == "message" and self._unsaid:
            yield from self._say("")
        if is_whole and not any(item["type"] in ("message", _CALL) for item in self.items):
            yield from self._begin("message")  # a client expects an answer, if an empty one
        yield from self._end("completed" if is_whole else "incomplete")

    def _say(self, text: str) -> Iterator[Event]:
        """Add to the message, with all tokens that were not said yet."""
        entries, self._unsaid = self._unsaid, []
        yield from self._append("message", text, entries)

    def _entries(self, delta: Delta) -> list[Any]:
        if delta.entries is not None:
            return delta.entries
        found: list[Any] = chat_logprobs(self._tokenizer, delta.scored)["content"]
        return found

    def _add_calls(self, pieces: Iterator[CallPiece]) -> Iterator[Event]:
        for piece in pieces:
            if piece.begins:
                yield from self._end("completed")
                yield self._begin_call(piece.call)
            if piece.arguments:
                self._text.append(piece.arguments)
                yield f"{_CALL}_arguments.delta", {**self._item(), "delta": piece.arguments}

    def _append(self, kind: str, text: str, entries: list[Any]) -> Iterator[Event]:
        if self._open != kind:
            yield from self._end("completed")
            yield from self._begin(kind)
        self._text.append(text)
        fields: dict[str, Any] = {"delta": text}
        if kind == "message":
            self._logprobs += entries
            fields["logprobs"] = entries
        yield f"{_PARTS[kind]}.delta", {**self._place(), **fields}

    def _begin(self, kind: str) -> Iterator[Event]:
        index = len(self.items)
        item: dict[str, Any] = {
            "id": f"{_PREFIXES[kind]}_{self._request_id}_{index}",
            "type": kind,
            "status": "in_progress",
            "content": [],
        }
        if kind == "message":
            item["role"] = "assistant"
        else:
            item["summary"] = []
        self._open = kind
        self.items.append(item)
        self._text.clear()
        self._logprobs = []
        yield "output_item.added", {"output_index": index, "item": dict(item)}
        yield "content_part.added", {**self._place(), "part": self._part(kind)}

    def _begin_call(self, call: FoundCall) -> Event:
        index = len(self.items)
        item = {
            "id": f"fc_{self._request_id}_{index}",
            "type": _CALL,
            "status": "in_progress",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": "",
        }
        self._open = _CALL
        self.items.append(item)
        self._text.clear()
        return "output_item.added", {"output_index": index, "item": dict(item)}

    def _end_call(self, status: str) -> Iterator[Event]:
        item, arguments = self.items[-1], "".join(self._text)
        fields = {**self._item(), "arguments": arguments, "name": item["name"]}
        yield f"{_CALL}_arguments.done", fields
        item |= {"status": status, "arguments": arguments}
        yield "output_item.done", {"output_index": fields["output_index"], "item": dict(item)}

    def _end(self, status: str) -> Iterator[Event]:
        kind, self._open = self._open, None
        if kind is None:
            return
        if kind == _CALL:
            yield from self._end_call(status)
            return
        item, part, place = self.items[-1], self._part(kind), self._place()
        done: dict[str, Any] = {"text": part["text"]}
        if kind == "message":
            done["logprobs"] = part["logprobs"]
        yield f"{_PARTS[kind]}.done", {**place, **done}
        yield "content_part.done", {**place, "part": part}
        item |= {"status": status, "content": [part]}
        yield "output_item.done", {"output_index": place["output_index"], "item": dict(item)}

    def _part(self, kind: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": _PARTS[kind], "text": "".join(self._text)}
        if kind == "message":
            part |= {"annotations": [], "logprobs": list(self._logprobs)}
        return part

    def _item(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _place(self) -> dict[str, Any]:
        return {**self._item(), "content_index": 0}
