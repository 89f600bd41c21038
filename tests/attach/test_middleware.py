"""What the middleware sees of a request, and that the server does not notice it."""

from __future__ import annotations

import asyncio
import contextlib
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.attach.inside.front_end.front import CURRENT, LABEL_CHARACTERS, REQUEST_ID, current
from service.attach.inside.middleware import Message, Receive, Scope, Send
from service.gateway.http import limits
from service.gateway.routes.app_frame import _REQUEST_ID
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import RequestAccepted, RequestEnded, RequestsListed
from tests.attach.front_world import CHAT, World, answering, scope_of

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_whole_answer_is_one_accepted_and_one_finished_request() -> None:
    """Stamps of the first and the last byte, bytes, status, and the ids of the client."""
    world = World(answering(200, b"data: a\n\n", b"data: b\n\n", b""))

    headers = {"x-request-id": "abc", "traceparent": TRACEPARENT, "x-tenant": "red"}
    world.exchange(headers | {"x-slo-class": "fast"})

    (accepted,) = world.accepted
    assert (accepted.request_id, accepted.tenant, accepted.slo_class) == ("abc", "red", "fast")
    assert accepted.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert (accepted.parent_span_id, accepted.trace_sampled) == ("b7ad6b7169203331", True)
    assert (accepted.route, accepted.operation, accepted.attached) == (CHAT, "chat", True)
    end = world.end
    assert (end.request_id, end.reason, end.status) == ("abc", EndReason.EOS, 200)
    assert end.bytes_sent == 18
    assert end.first_sent_ns is not None
    assert accepted.at_ns < end.first_sent_ns < end.at_ns
    assert not world.live.requests


def test_a_request_without_an_id_gets_one_that_the_engine_reads_and_the_answer_has() -> None:
    """The id of the facts, in the scope's headers and in those of the answer."""
    seen: list[tuple[bytes, bytes]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(scope["headers"])
        await answering(200, b"{}")(scope, receive, send)

    world = World(app)

    start, _ = world.exchange({"content-type": "application/json"})

    own = (b"x-request-id", world.end.request_id.encode())
    assert seen == [(b"content-type", b"application/json"), own]
    assert start["headers"] == [own]


def test_an_id_that_the_engine_sends_is_not_sent_twice() -> None:
    """vLLM has a flag for it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"X-Request-Id", b"abc")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    start, _ = World(app).exchange({"x-request-id": "abc"})

    assert start["headers"] == [(b"X-Request-Id", b"abc")]


@pytest.mark.parametrize("given_id", ["two words", "x" * 129, ""])
def test_a_clients_header_stays_as_it_is_even_if_it_is_no_good_id(given_id: str) -> None:
    """Routers put addresses into it, which connectors of the engine read."""
    seen: list[tuple[bytes, bytes]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(scope["headers"])
        await answering(200, b"{}")(scope, receive, send)

    world = World(app)

    world.exchange({"x-request-id": given_id})

    assert seen == [(b"x-request-id", given_id.encode())]
    assert REQUEST_ID.fullmatch(world.end.request_id)


def test_two_live_requests_never_have_one_id() -> None:
    """The second client's copy of an id that is in use gets another."""
    ids: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if len(world.accepted) == 1:
            await world.serve(scope_of({"x-request-id": "abc"}))
        await answering(200, b"{}")(scope, receive, send)

    world = World(app)

    world.exchange({"x-request-id": "abc"})

    ids = [one.request_id for one in world.accepted]
    assert ids[0] == "abc" != ids[1]
    assert sorted(ids) == sorted(one.request_id for one in world.ended)


def test_the_rules_for_ids_and_labels_are_those_of_our_own_gateway() -> None:
    """They are written twice, as code inside another engine imports nothing of the gateway."""
    assert REQUEST_ID.pattern == _REQUEST_ID.pattern
    assert limits.LABEL_CHARACTERS.value == LABEL_CHARACTERS


@pytest.mark.parametrize(
    ("status", "body", "reason", "error_type"),
    [
        (400, b'{"error":{"type":"BadRequestError","code":400}}', "invalid", "BadRequestError"),
        (401, b'{"error":"Unauthorized"}', "invalid", "invalid"),
        (404, b"not json", "invalid", "invalid"),
        (503, b'{"error":{"type":"Service Unavailable"}}', "not_ready", "Service Unavailable"),
        (429, b"", "queue_full", "queue_full"),
        (500, b'{"error":{"type":"who is <b>"}}', "internal", "internal"),
        (200, b'data: {"error": {"type": "BadRequestError", "code": 400}}\n\n', "invalid", None),
        (200, b'data: {"error": {"type": "InternalServerError", "code": 500}}', "internal", None),
    ],
)
def test_errors_are_rejected_or_failed_with_their_type(
    status: int, body: bytes, reason: str, error_type: str | None
) -> None:
    """An error in the middle of a stream counts as much as one in the status."""
    world = World(answering(status, body))

    world.exchange()

    assert (world.end.reason, world.end.status) == (EndReason(reason), status)
    assert world.end.first_sent_ns is None
    if error_type is not None:
        assert world.end.error_type == error_type


def test_a_failure_of_a_dead_engine_says_so() -> None:
    """An answer that was whole before is not one."""
    world = World(answering(500, b"{}"))
    world.is_engine_dead = True

    world.exchange()

    assert world.end.reason is EndReason.ENGINE_DIED


def test_a_client_that_goes_away_has_cancelled() -> None:
    """The server reads the disconnect, and gives up without the rest of its answer."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: a\n\n", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"

    world = World(app)

    world.exchange()

    end = world.end
    assert (end.reason, end.error_type) == (EndReason.DISCONNECT, "disconnect")
    assert end.detected_ns is not None
    assert end.first_sent_ns is not None
    assert end.first_sent_ns < end.detected_ns < end.at_ns


def test_what_is_sent_to_a_client_that_is_gone_does_not_count() -> None:
    """vLLM answers `null` then."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await receive()
        await answering(200, b"null")(scope, receive, send)

    world = World(app)

    world.exchange()

    end = world.end
    assert (end.reason, end.status, end.bytes_sent) == (EndReason.DISCONNECT, 0, 0)
    assert end.first_sent_ns is None


def test_a_disconnect_after_the_whole_answer_is_no_news() -> None:
    """uvicorn says so to whoever asks later."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answering(200, b"{}")(scope, receive, send)
        await receive()

    world = World(app)

    world.exchange()

    assert (world.end.reason, world.end.detected_ns) == (EndReason.EOS, None)


def test_a_send_that_fails_is_a_disconnect_that_the_server_still_sees() -> None:
    """The exception goes on to the server."""
    world = World(answering(200, b"a", b"b"))

    def fail(message: Message) -> None:
        if message.get("body") == b"b":
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        world.exchange(on_send=fail)

    assert (world.end.reason, world.end.bytes_sent) == (EndReason.DISCONNECT, 1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyError("x"), EndReason.INTERNAL), (asyncio.CancelledError(), EndReason.SHUTDOWN)],
)
def test_a_server_that_raises_has_ended_the_request(
    error: BaseException, reason: EndReason
) -> None:
    """The exception goes on to the outer layers."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    world = World(app)

    with pytest.raises(type(error)):
        world.exchange()

    assert (world.end.reason, world.end.status) == (reason, 500)


@pytest.mark.parametrize(
    "more",
    [{"method": "GET"}, {"path": "/v1/models"}, {"type": "websocket"}, {"type": "lifespan"}],
)
def test_other_traffic_is_not_observed(more: dict[str, str]) -> None:
    """It passes with the very same messages."""
    world = World(answering(200, b"{}"))

    messages = world.exchange(**more)

    assert not world.sink.facts
    assert messages[0]["headers"] == []


def test_a_middleware_within_the_middleware_writes_nothing() -> None:
    """The plugin and a flag may both have put one in."""
    world = World(answering(200, b"{}"))
    outer = World(world.app)

    outer.exchange()

    assert len(outer.ended) == 1
    assert not world.sink.facts


def test_the_task_that_serves_a_request_knows_it_and_later_ones_do_not() -> None:
    """A hook in a task that outlives its request finds none."""
    seen: list[str | None] = []

    async def note() -> None:
        request = current()
        seen.append(request.request_id if request else None)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.create_task(note())
        await answering(200, b"{}")(scope, receive, send)
        await asyncio.create_task(note())

    World(app).exchange({"x-request-id": "abc"})

    assert seen == ["abc", None]
    assert CURRENT.get() is None


@pytest.mark.parametrize("kind", [RequestAccepted, RequestEnded])
def test_an_exception_of_ours_never_reaches_the_server(kind: type) -> None:
    """After three of them requests pass unseen, the sidecar hears why, and that none is live."""
    world = World(answering(200, b"{}"))
    world.sink.fails_on = (kind,)

    for _ in range(4):
        assert world.exchange()[1] == {
            "type": "http.response.body",
            "body": b"{}",
            "more_body": False,
        }

    ((hook, reason, is_all),) = world.sink.turned_off
    assert (hook, is_all) == ("middleware", True)
    assert reason.startswith("RuntimeError at front_world.py")
    assert not world.live.requests
    assert not world.live.listing()[0].request_ids
    assert kind is RequestAccepted or isinstance(world.sink.facts[-1], RequestsListed)


_incoming = st.lists(
    st.sampled_from(
        [
            {"type": "http.request", "body": b"{", "more_body": True},
            {"type": "http.request", "body": b"}", "more_body": False},
            {"type": "http.disconnect"},
        ]
    ),
    max_size=4,
)
_bodies = st.sampled_from([b"", b": ping\n\n", b"data: x\n\n", b'data: {"error": {}}\n\n'])
_action = st.one_of(
    st.just(("receive", None)),
    st.tuples(st.just("start"), st.sampled_from([200, 400, 500])),
    st.tuples(st.just("more"), _bodies),
    st.tuples(st.just("last"), _bodies),
    st.just(("raise", None)),
    st.just(("cancel", None)),
)


@settings(max_examples=300, deadline=None)
@given(_incoming, st.lists(_action, max_size=8), st.integers(0, 9))
def test_whatever_passes_there_is_one_begin_and_one_end_and_nothing_changes(
    incoming: list[Message], actions: list[tuple[str, object]], fails_at: int
) -> None:
    """Random servers, clients and sockets, legal or not."""
    said: list[Message] = []
    heard: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for kind, value in actions:
            if kind == "receive":
                heard.append(await receive())
            elif kind == "raise":
                raise KeyError("of the server")
            elif kind == "cancel":
                raise asyncio.CancelledError
            else:
                message: Message = {"type": "http.response.body", "body": value}
                if kind == "start":
                    headers = [(b"x-request-id", b"abc")]
                    message = {
                        "type": "http.response.start",
                        "status": value,
                        "headers": headers,
                    }
                elif kind == "more":
                    message["more_body"] = True
                said.append(copy.deepcopy(message))
                await send(message)

    world = World(app)
    at_socket: list[Message] = []

    def on_send(message: Message) -> None:
        at_socket.append(copy.deepcopy(message))
        if len(at_socket) > fails_at:
            raise OSError("gone")

    with contextlib.suppress(KeyError, OSError, asyncio.CancelledError):
        world.exchange({"x-request-id": "abc"}, incoming, on_send)

    assert at_socket == said
    rest = [{"type": "http.disconnect"}] * len(heard)
    assert heard == (incoming + rest)[: len(heard)]
    (accepted,) = world.accepted
    end = world.end
    stamps = [accepted.at_ns, end.first_sent_ns, end.detected_ns, end.at_ns]
    assert max(one for one in stamps if one is not None) == end.at_ns
    assert min(one for one in stamps if one is not None) == accepted.at_ns
    assert not world.sink.turned_off
    assert not world.live.requests
