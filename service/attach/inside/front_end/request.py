"""What is observed of one request in the front end of an attached engine, and how it ended."""

from __future__ import annotations

import re

import msgspec

from telemetry.facts.reasons import EndReason, Outcome
from telemetry.facts.records import RequestEnded

_STREAM_ERROR = b'data: {"error"'
_ERROR_BYTES = 64 * 1024
_ERROR_TYPE = re.compile(r"[A-Za-z][A-Za-z_ ]{0,63}")


class _Error(msgspec.Struct):
    type: str = ""
    code: int | str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


_read_error = msgspec.json.Decoder(_ErrorBody).decode


class FrontRequest:
    """One live request. The event loop's thread owns it."""

    __slots__ = (
        "accepted_ns",
        "answered_ns",
        "bytes_sent",
        "detected_ns",
        "detokenize_busy_ns",
        "detokenized_ns",
        "error_code",
        "error_type",
        "finish",
        "first_sent_ns",
        "has_own_id",
        "is_cancelled",
        "is_named_by_body",
        "is_over",
        "is_parsed",
        "is_tokenized",
        "names",
        "output_tokens",
        "raised",
        "received_ns",
        "refused",
        "request_id",
        "status",
    )

    def __init__(self, request_id: str, accepted_ns: int) -> None:
        self.request_id = request_id
        self.accepted_ns = accepted_ns
        self.names: list[str] = []  # the engine's names of its sequences, by choice
        self.has_own_id = False  # the client sent none
        self.is_named_by_body = False  # the engine's name of it has an id that is in the body
        self.is_parsed = self.is_tokenized = self.is_over = False
        self.status = self.bytes_sent = self.output_tokens = self.detokenize_busy_ns = 0
        self.first_sent_ns: int | None = None
        self.received_ns: int | None = None
        self.detokenized_ns: int | None = None
        self.detected_ns: int | None = None
        self.answered_ns: int | None = None
        self.finish: EndReason | None = None  # of the first choice
        self.refused: EndReason | None = None
        self.error_type: str | None = None
        self.error_code: int | None = None
        self.is_cancelled = self.raised = False

    def started(self, status: int) -> None:
        """The head of the answer is on its way."""
        if self.detected_ns is None:
            self.status = status

    def sent(self, body: bytes, has_more: bool, at_ns: int) -> None:
        """A part of the answer was handed to the socket. What a server sends to a client that is
        gone reaches nobody."""
        if self.detected_ns is not None:
            return
        if body:
            self.bytes_sent += len(body)
            if self.status >= 400:
                self._read_error(body)
            elif body.startswith(_STREAM_ERROR):
                self._read_error(body[len(b"data: ") :])
            elif self.first_sent_ns is None and not body.startswith(b":"):
                self.first_sent_ns = at_ns  # a comment of an event stream is no content
        if not has_more:
            self.answered_ns = at_ns

    def disconnected(self, at_ns: int) -> None:
        """The client is gone. After the whole answer that is no news."""
        if self.answered_ns is None and self.detected_ns is None:
            self.detected_ns = at_ns

    def end(self, at_ns: int, is_engine_dead: bool) -> RequestEnded:
        """The terminal fact."""
        reason = self._reason(is_engine_dead)
        is_finished = reason.outcome is Outcome.FINISHED
        return RequestEnded(
            request_id=self.request_id,
            at_ns=at_ns if self.answered_ns is None else self.answered_ns,
            reason=reason,
            status=self.status or (500 if self.raised else 0),
            error_type=None if is_finished else self.error_type or reason.value,
            output_tokens=self.output_tokens,
            first_sent_ns=self.first_sent_ns,
            detokenized_ns=self.detokenized_ns,
            detokenize_busy_ns=self.detokenize_busy_ns,
            bytes_sent=self.bytes_sent,
            detected_ns=self.detected_ns,
            received_ns=self.received_ns,
        )

    def _reason(self, is_engine_dead: bool) -> EndReason:
        """A whole answer whose sequence was not observed counts as ended by the model."""
        if self.detected_ns is not None:
            return EndReason.DISCONNECT
        code = self.error_code or self.status
        if code < 400 and self.answered_ns is not None and self.error_type is None:
            return self.finish or EndReason.EOS
        if is_engine_dead:
            return EndReason.ENGINE_DIED
        if self.refused is not None:
            return self.refused
        if self.is_cancelled and self.answered_ns is None:
            return EndReason.SHUTDOWN
        if code in (429, 503):
            return EndReason.QUEUE_FULL if code == 429 else EndReason.NOT_READY
        return EndReason.INVALID if 400 <= code < 500 else EndReason.INTERNAL

    def _read_error(self, body: bytes) -> None:
        """The error's type and code; its text stays where it is."""
        if self.error_type is not None:
            return
        self.error_type = ""
        if len(body) > _ERROR_BYTES:
            return
        try:
            error = _read_error(body).error
        except msgspec.MsgspecError:
            return
        if _ERROR_TYPE.fullmatch(error.type):
            self.error_type = error.type
        if isinstance(error.code, int) and 400 <= error.code < 600:
            self.error_code = error.code


class Choice:
    """One sequence of a live request. `most_tokens`: the output tokens that it may have at most."""

    __slots__ = ("_is_first", "most_tokens", "output_tokens", "request")

    def __init__(self, request: FrontRequest, most_tokens: int | None, is_first: bool) -> None:
        self.request = request
        self.most_tokens = most_tokens
        self.output_tokens = 0
        self._is_first = is_first

    @property
    def has_all_tokens(self) -> bool:
        return self.most_tokens is not None and self.output_tokens >= self.most_tokens

    def received(self, tokens: int, begin_ns: int, end_ns: int, share_ns: int) -> None:
        """Tokens arrived at `begin_ns` and were text at `end_ns`; `share_ns` was spent on them."""
        request = self.request
        self.output_tokens += tokens
        request.output_tokens += tokens
        request.received_ns, request.detokenized_ns = begin_ns, end_ns
        request.detokenize_busy_ns += share_ns

    def finished(self, reason: EndReason) -> None:
        """The engine ended it. A request ends as its first choice does."""
        if self._is_first and self.request.finish is None:
            self.request.finish = reason
