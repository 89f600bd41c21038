"""Response bodies of both routes, whole and in chunks; pure functions of what was generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from service.gateway.generation.choice import Choice, Delta, chat_logprobs, text_logprobs
from service.gateway.generation.tool_text import delta_calls, message_calls
from service.gateway.ingest.schemas import Operation
from service.text.tokenizer import Tokenizer
from telemetry.requests.timings import RequestTimings

_PLACEHOLDER = "\0"  # nothing after the text in a chunk can contain it
_encode = msgspec.json.Encoder().encode
DONE_EVENT = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What all chunks of one response have in common."""

    operation: Operation
    request_id: str
    created_unix_s: int
    model: str
    with_logprobs: bool
    include_usage: bool
    only_calls: bool = False

    def envelope(self, chunk: bool) -> dict[str, Any]:
        if self.operation is Operation.CHAT:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
            name = f"chatcmpl-{self.request_id}"
        else:
            kind, name = "text_completion", f"cmpl-{self.request_id}"
        return {"id": name, "object": kind, "created": self.created_unix_s, "model": self.model}


def usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int = 0
) -> dict[str, Any]:
    """`cached_tokens` of the prompt were in the prefix cache; `reasoning_tokens` are a part of
    `completion_tokens`."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def event(body: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def role_events(head: ResponseHead, choices: list[Choice]) -> list[bytes]:
    """The first chunk of each choice of a chat stream, which has its role."""
    if head.operation is not Operation.CHAT:
        return []
    # an answer that is nothing but calls has no text
    delta = {"role": "assistant", "content": None if head.only_calls else ""}
    return [
        _chunk(head, {"index": c.index, "delta": delta, "logprobs": None, "finish_reason": None})
        for c in choices
    ]


class ChunkWriter:
    """Encodes the chunks of one response.

    Most chunks have a piece of text and nothing else that is new. The bytes around the text are
    the same from chunk to chunk, so they are encoded once for each choice.
    """

    def __init__(self, head: ResponseHead, tokenizer: Tokenizer) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._around: dict[tuple[int, bool], tuple[bytes, bytes]] = {}

    def chunk(self, choice: Choice, delta: Delta) -> bytes:
        """The same bytes as `delta_event`."""
        is_plain = bool(delta.text) != bool(delta.reasoning)
        if delta.scored or delta.calls or not is_plain or delta.finish_reason is not None:
            return delta_event(self._head, choice, delta, self._tokenizer)
        key = choice.index, bool(delta.reasoning)
        around = self._around.get(key)
        if around is None:
            around = self._around[key] = self._frame(choice, is_reasoning=key[1])
        return around[0] + _encode(delta.text or delta.reasoning) + around[1]

    def _frame(self, choice: Choice, is_reasoning: bool) -> tuple[bytes, bytes]:
        texts = ("", _PLACEHOLDER) if is_reasoning else (_PLACEHOLDER, "")
        delta = Delta(texts[0], [], None, texts[1])
        whole = delta_event(self._head, choice, delta, self._tokenizer)
        before, mark, after = whole.rpartition(_encode(_PLACEHOLDER))
        assert mark, "a chunk without its text"
        return before, after


def delta_event(head: ResponseHead, choice: Choice, delta: Delta, tokenizer: Tokenizer) -> bytes:
    """One chunk of one choice."""
    body: dict[str, Any] = {"index": choice.index}
    if head.operation is Operation.CHAT:
        texts = (("reasoning_content", delta.reasoning), ("content", delta.text))
        body["delta"] = {name: text for name, text in texts if text}
        if delta.calls:
            body["delta"]["tool_calls"] = delta_calls(delta.calls)
    else:
        body["text"] = delta.text
    body["logprobs"] = _logprobs(head, delta, tokenizer)
    body["finish_reason"] = delta.finish_reason
    return _chunk(head, body)


def last_event(head: ResponseHead, counts: dict[str, Any], timings: RequestTimings | None) -> bytes:
    """The last chunk: usage and metrics, if they were asked for; else no bytes."""
    body: dict[str, Any] = {**head.envelope(chunk=True), "choices": []}
    if head.include_usage:
        body["usage"] = counts
    if timings is not None:
        body["metrics"] = timings
    return event(body) if head.include_usage or timings is not None else b""


def full_body(
    head: ResponseHead,
    choices: list[Choice],
    deltas: list[Delta],
    counts: dict[str, Any],
    tokenizer: Tokenizer,
    timings: RequestTimings | None = None,
) -> bytes:
    """A response in one piece."""
    bodies: list[dict[str, Any]] = []
    for choice, delta in zip(choices, deltas, strict=True):
        body: dict[str, Any] = {"index": choice.index}
        if head.operation is Operation.CHAT:
            body["message"] = _message(choice, delta)
        else:
            body["text"] = delta.text
        body["logprobs"] = _logprobs(head, delta, tokenizer)
        body["finish_reason"] = delta.finish_reason
        bodies.append(body)
    whole = {**head.envelope(chunk=False), "choices": bodies, "usage": counts}
    if timings is not None:
        whole["metrics"] = timings
    return msgspec.json.encode(whole)


def _message(choice: Choice, delta: Delta) -> dict[str, Any]:
    """The message of a chat choice that is complete. Beside calls, white space is no text."""
    message: dict[str, Any] = {"role": "assistant", "content": delta.text, "refusal": None}
    if delta.reasoning:
        message["reasoning_content"] = delta.reasoning
    calls = [] if choice.tools is None else choice.tools.calls
    if calls:
        message["content"] = delta.text if delta.text.strip() else None
        message["tool_calls"] = message_calls(calls)
    return message


def _chunk(head: ResponseHead, choice: dict[str, Any]) -> bytes:
    body = {**head.envelope(chunk=True), "choices": [choice]}
    if head.include_usage:
        body["usage"] = None
    return event(body)


def _logprobs(head: ResponseHead, delta: Delta, tokenizer: Tokenizer) -> dict[str, Any] | None:
    if not head.with_logprobs or not delta.scored:
        return None
    if head.operation is Operation.CHAT:
        return chat_logprobs(tokenizer, delta.scored)
    return text_logprobs(tokenizer, delta.scored)
