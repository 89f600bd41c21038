"""The front end of an attached engine: which requests are live, and the facts about them.

The middleware accepts and ends requests; the hooks in the engine tell what happens in between.
`CURRENT` ties the two: it is set for the task that serves a request, and for the tasks it starts.
All methods run on the event loop's thread, except `listing`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Protocol

import msgspec

from service.attach.inside.front_end.request import Choice, FrontRequest
from service.attach.wire import SequenceName, Submitted, sent_name
from telemetry.facts.clock import Clock
from telemetry.facts.records import (
    Fact,
    RequestAccepted,
    RequestParsed,
    RequestsListed,
    RequestTokenized,
)
from telemetry.facts.traceparent import new_trace_id, parse_traceparent, parse_tracestate

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
LABEL_CHARACTERS = 64
CURRENT: ContextVar[FrontRequest | None] = ContextVar("phasescope_request", default=None)


class Sink(Protocol):
    """Where facts go (`service.attach.inside.transport.Sender`)."""

    def append(self, fact: Fact) -> None: ...
    def submit(self, submitted: Submitted) -> None: ...
    def turn_off(self, hook: str, reason: str, *, is_all: bool = False) -> None: ...


class Parameters(msgspec.Struct, frozen=True):
    """What a parsed body asks for, as in `RequestParsed`."""

    model: str
    stream: bool
    choices: int
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    presence_penalty: float
    frequency_penalty: float
    output_type: str


class Live:
    """The live requests. Bounded by what the server itself keeps of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.requests: dict[str, FrontRequest] = {}

    def listing(self) -> tuple[RequestsListed, list[SequenceName]]:
        """For a sidecar that comes late; from the sending thread."""
        return RequestsListed(self._clock.now_ns(), tuple(self.requests)), []


class Front:
    """Writes the facts of the requests of one server process."""

    def __init__(
        self, sink: Sink, clock: Clock, live: Live, is_engine_dead: Callable[[], bool]
    ) -> None:
        self.sink = sink
        self.clock = clock
        self._live = live.requests
        self._choices: dict[str, Choice] = {}
        self._is_engine_dead = is_engine_dead

    def begin(self) -> None:
        """The server starts: a sidecar hears of this process before its first request."""
        self.sink.append(RequestsListed(self.clock.now_ns(), ()))

    def accept(self, headers: Mapping[bytes, bytes], route: str, operation: str) -> FrontRequest:
        """The server has read a request's head. `headers` has the first of each name."""
        at_ns = self.clock.now_ns()
        wanted = _text(headers, b"x-request-id")
        is_good = REQUEST_ID.fullmatch(wanted) is not None and wanted not in self._live
        request = FrontRequest(wanted if is_good else secrets.token_hex(12), at_ns)
        request.has_own_id = b"x-request-id" not in headers
        parent = parse_traceparent(_text(headers, b"traceparent"))
        accepted = RequestAccepted(
            request_id=request.request_id,
            at_ns=at_ns,
            trace_id=parent.trace_id if parent else new_trace_id(),
            parent_span_id=parent.span_id if parent else None,
            trace_sampled=parent.sampled if parent else None,
            trace_state=parse_tracestate(_text(headers, b"tracestate")) if parent else None,
            route=route,
            operation=operation,
            tenant=_label(headers, b"x-tenant"),
            slo_class=_label(headers, b"x-slo-class"),
            read_ns=at_ns,
            attached=True,
        )
        self._live[request.request_id] = request  # before its first fact, see `Sender`
        self.sink.append(accepted)
        return request

    def parsed(self, request: FrontRequest, what: Parameters) -> None:
        """The body is valid; only the first call counts."""
        if request.is_parsed or request.is_over:
            return
        request.is_parsed = True
        self.sink.append(
            RequestParsed(
                request_id=request.request_id,
                at_ns=self.clock.now_ns(),
                **msgspec.structs.asdict(what),
            )
        )

    def tokenized(self, request: FrontRequest, prompt_tokens: int) -> None:
        """The prompts are tokens; only the first call counts."""
        if request.is_tokenized or request.is_over:
            return
        request.is_tokenized = True
        fact = RequestTokenized(request.request_id, self.clock.now_ns(), prompt_tokens)
        self.sink.append(fact)

    def submitted(self, request: FrontRequest, name: str, most_tokens: int | None) -> None:
        """A sequence goes to the engine core, which knows it as `name`. Choices are numbered in the
        order of their submission."""
        if request.is_over or name in self._choices:
            return
        choice = len(request.names)
        request.names.append(name)
        self._choices[name] = Choice(request, most_tokens, choice == 0)
        now_ns = self.clock.now_ns()
        self.sink.submit(Submitted(request.request_id, now_ns, sent_name(name), choice))

    def choice(self, name: str) -> Choice | None:
        """The live sequence that the engine core knows as `name`."""
        return self._choices.get(name)

    def end(self, request: FrontRequest) -> None:
        """The request is over; only the first call counts."""
        if request.is_over:
            return
        request.is_over = True
        is_dead = (request.status >= 400 or request.answered_ns is None) and self._is_engine_dead()
        for name in request.names:
            self._choices.pop(name, None)
        try:
            self.sink.append(request.end(self.clock.now_ns(), is_dead))
        finally:
            self._live.pop(request.request_id, None)

    def turn_off(self, hook: str, reason: str, is_all: bool) -> None:
        """A hook observes nothing any more."""
        self.sink.turn_off(hook, reason, is_all=is_all)

    def abandon(self) -> None:
        """Nothing more will be known of the live requests: they have ended, as far as a sidecar can
        tell."""
        for request in list(self._live.values()):
            request.is_over = True
        self._live.clear()
        self._choices.clear()
        self.sink.append(RequestsListed(self.clock.now_ns(), ()))


def current() -> FrontRequest | None:
    """The live request that the running task serves."""
    request = CURRENT.get()
    return None if request is None or request.is_over else request


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return str(headers.get(name, b""), "latin-1").strip()


def _label(headers: Mapping[bytes, bytes], name: bytes) -> str:
    """A header that becomes a label of metrics; empty if it is too long or not printable."""
    text = _text(headers, name)
    return text if len(text) <= LABEL_CHARACTERS and text.isprintable() else ""
