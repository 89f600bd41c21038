"""One reply: server-sent events in, stamps of content chunks out.

A content chunk is an event that carries output of the model: text, reasoning text, log
probabilities, or an empty text that neither ends the stream nor opens a chat (a token that
has no text of its own yet). The number of tokens is the server's `usage`; when it is higher
than the number of chunks, some chunk carried several.
"""

from __future__ import annotations

import msgspec

from lab.load.result import ErrorKind

_MAX_KEPT_BYTES = 65_536
_MAX_MESSAGE_CHARACTERS = 200


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    logprobs: object = None
    finish_reason: str | None = None


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """The server's own token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None

    @property
    def cached_tokens(self) -> int | None:
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: object = None


_events = msgspec.json.Decoder(_Event)


class Reply:
    """The reply to one request. `chunk_ns` are the time stamps of its content chunks."""

    __slots__ = (
        "_finish_ns", "_rest", "begun_ns", "chunk_ns", "done", "end_ns", "error_kind", "error_text",
        "finish_reason", "intended_ns", "request_id", "retry_after_s", "server", "status", "usage",
    )  # fmt: skip

    def __init__(self, intended_ns: int, begun_ns: int) -> None:
        self.intended_ns = intended_ns
        self.begun_ns = begun_ns
        self.end_ns = 0
        self.status = 0
        self.retry_after_s: float | None = None
        self.server = ""
        self.request_id = ""
        self.chunk_ns: list[int] = []
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.done = False
        self.error_kind: ErrorKind | None = None
        self.error_text = ""
        self._rest = b""
        self._finish_ns = 0

    @property
    def lateness_ns(self) -> int:
        """How long after the intended time the client began to send the request."""
        return self.begun_ns - self.intended_ns

    @property
    def output_tokens(self) -> int:
        """The output tokens by the server's count; without one, a token for each chunk."""
        counted = None if self.usage is None else self.usage.completion_tokens
        return len(self.chunk_ns) if counted is None else counted

    def body(self) -> bytes:
        """The kept part of a reply that is not a stream."""
        return self._rest

    def fail(self, kind: ErrorKind, message: str) -> None:
        """Mark the reply as failed; the first reason is kept."""
        if self.error_kind is None:
            self.error_kind = kind
            self.error_text = message[:_MAX_MESSAGE_CHARACTERS]

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"retry-after":
            try:
                self.retry_after_s = float(value)
            except ValueError:
                self.retry_after_s = None
        elif name == b"server":
            self.server = value.decode("latin-1")
        elif name == b"x-request-id":
            self.request_id = value.decode("latin-1")

    def on_body(self, body: bytes, now_ns: int) -> None:
        self.end_ns = now_ns
        if self.status != 200:
            self._rest = (self._rest + body)[:_MAX_KEPT_BYTES]
            return
        data = self._rest + body if self._rest else body
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        for event in events:
            self._event(event, now_ns)

    def finish(self) -> None:
        """The reply is complete: mark it as failed if something is missing from it."""
        if self._finish_ns and not self.chunk_ns:
            self.chunk_ns.append(self._finish_ns)  # its only token has no text
        if self.status != 200:
            self.fail(ErrorKind.STATUS, error_message(self._rest) or f"status {self.status}")
        elif not self.chunk_ns:
            self.fail(ErrorKind.EMPTY, "a stream without any output")
        elif not self.done and self.finish_reason is None:
            self.fail(ErrorKind.CUT_SHORT, "the stream ended without a finish reason")

    def _event(self, event: bytes, now_ns: int) -> None:
        if not event.startswith(b"data:") or b"\n" in event:
            event = b"".join(
                line for line in event.split(b"\n") if line.startswith(b"data:")
            )  # a name or a comment beside the data
            if not event:
                return
        data = event[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return
        try:
            found = _events.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self.fail(ErrorKind.PROTOCOL, f"an event that is not understood: {error}")
            return
        if found.error is not None:
            self.fail(ErrorKind.STREAM, _message_of(found.error))
        if found.usage is not None:
            self.usage = found.usage
        for choice in found.choices or ():
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason
                self._finish_ns = now_ns
            if _has_output(choice):
                self.chunk_ns.append(now_ns)


def _has_output(choice: _Choice) -> bool:
    if choice.logprobs is not None:
        return True
    if choice.delta is None:
        return bool(choice.text) or (choice.text == "" and not choice.finish_reason)
    delta = choice.delta
    if delta.content or delta.reasoning_content or delta.reasoning:
        return True
    return delta.content == "" and delta.role is None and not choice.finish_reason


def error_message(body: bytes) -> str:
    """The text of an error body of any of the servers, "" if it has none."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body[:_MAX_MESSAGE_CHARACTERS].decode("utf-8", "replace").strip()
    if isinstance(found, dict):
        for key in ("error", "detail", "message"):
            if key in found:
                return _message_of(found[key])
    return ""


def _message_of(error: object) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:_MAX_MESSAGE_CHARACTERS]
