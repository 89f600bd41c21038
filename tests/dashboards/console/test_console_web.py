"""The console's process without its pages: polling, who may call, and what a key is kept from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from dashboards.console.model.link import LinkState
from dashboards.console.web.guard import Guard, is_own_host, is_same_origin
from dashboards.console.web.poller import Poller
from dashboards.explain import Explained
from dashboards.monitor.client import Client, Unreachable
from dashboards.monitor.limit_values import limit_value
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.facts.clock import ManualClock
from telemetry.facts.limits import LimitsView
from telemetry.requests.request_list import RequestsPage
from telemetry.stats.window import Batch, Snapshot
from tests.dashboards.console.samples import SECOND, finding, line, moment, page


class Answers(Client):
    """A server that answers from memory; `fail` is raised by all of its routes."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.asked: list[str] = []
        self.fail: Unreachable | None = None
        self.now = moment(5 * SECOND)
        self.lines = [line(number) for number in range(3)]
        self.run_ns = 1

    def snapshot(self) -> Snapshot:
        return self._answer("snapshot", self.now.snapshot)

    def diagnosis(self) -> Diagnosis:
        return self._answer("diagnosis", self.now.diagnosis)

    def requests(self, since: int, limit: int) -> RequestsPage:
        lines = [one for one in self.lines if one.number >= since][:limit]
        number = since + len(lines)
        return self._answer("requests", page(*lines, run_ns=self.run_ns, next=number))

    def batch(self, rows: int) -> Batch:
        return self._answer("batch", Batch(at_ns=0, step_ids=None, total=0, rows=(),
                            step_tokens=None, step_budget_tokens=None))  # fmt: skip

    def root(self) -> dict[str, Any]:
        return self._answer("root", {"promises": {"prefill_interference": "less"}})

    def limits(self) -> LimitsView:
        return self._answer("limits", LimitsView(limits={}, changes=[]))

    def explained(self, request_id: str) -> Explained:
        raise Unreachable("unknown", 404)

    def _answer(self, name: str, answer: Any) -> Any:
        self.asked.append(name)
        if self.fail is not None:
            raise self.fail
        return answer


def polled(answers: Answers, *views: str, times: int = 1) -> Poller:
    poller = Poller(answers, ManualClock(1000))
    for view in views:
        poller.watchers.enter(view)
    for _ in range(times):
        asyncio.run(poller.poll())
    return poller


def test_what_no_tab_shows_is_not_asked_for() -> None:
    quiet, watched = Answers(), Answers()
    polled(quiet)
    polled(watched, "batch", "limits")

    assert sorted(quiet.asked) == ["diagnosis", "requests", "snapshot"]
    assert sorted(watched.asked) == ["batch", "diagnosis", "limits", "requests", "snapshot"]


def test_the_replay_is_asked_only_while_something_is_wrong_and_seldom() -> None:
    answers = Answers()
    answers.now = moment(5 * SECOND, finding())
    poller = polled(answers, "overview", times=5)

    assert answers.asked.count("root") == 1
    assert poller.known.root is not None
    assert answers.asked.count("snapshot") == 5


def test_a_server_that_goes_away_leaves_what_is_known_and_comes_back() -> None:
    answers = Answers()
    poller = polled(answers)
    assert poller.known.link.state is LinkState.UP

    answers.fail = Unreachable("http://x cannot be read: refused")
    asyncio.run(poller.poll())
    down = poller.known.link
    assert (down.state, down.why) == (LinkState.DOWN, "http://x cannot be read: refused")
    assert poller.known.moment == answers.now
    assert len(poller.known.index) == 3

    answers.fail = Unreachable("x answers 401", 401)
    asyncio.run(poller.poll())
    assert poller.known.link.state is LinkState.WANTS_KEY

    answers.fail, answers.run_ns, answers.lines = None, 2, [line(0)]
    answers.now = moment(9 * SECOND)
    asyncio.run(poller.poll())
    assert poller.known.link.state is LinkState.UP
    assert len(poller.known.index) == 1, "the requests of another run are its own"


def test_the_first_answer_is_told_once() -> None:
    told: list[int] = []
    poller = Poller(Answers(), ManualClock(), on_first=lambda: told.append(1))
    asyncio.run(poller.poll())
    asyncio.run(poller.poll())

    assert told == [1]


def test_a_key_that_was_given_goes_in_a_header_and_into_no_address() -> None:
    poller = Poller(Client("127.0.0.1:9"), ManualClock())
    poller.use_key("secret")

    assert poller.client.debug_key == "secret"
    assert "secret" not in poller.client.url
    with pytest.raises(Unreachable) as caught:
        poller.client.snapshot()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:8090", True), ("localhost:8090", True), ("[::1]:8090", True),
        ("10.0.0.7", True), ("ops.example", True), ("evil.example:8090", False), ("", False),
        ("localhost.evil.example", False), ("[", False),
    ],
)  # fmt: skip
def test_a_page_of_another_name_does_not_reach_the_console(host: str, own: bool) -> None:
    assert is_own_host(host, "ops.example") is own


def test_an_origin_must_be_the_host() -> None:
    assert is_same_origin(None, "127.0.0.1:8090")
    assert is_same_origin("http://127.0.0.1:8090", "127.0.0.1:8090")
    assert not is_same_origin("http://127.0.0.1:9999", "127.0.0.1:8090")
    assert not is_same_origin("null", "127.0.0.1:8090")


def answered(kind: str, headers: dict[bytes, bytes]) -> list[Message]:
    """What the guard, before an app that says yes, sends for one request."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": kind, "headers": list(headers.items())}
    asyncio.run(Guard(app, "127.0.0.1")(scope, _nothing, send))
    return sent


async def _nothing() -> Message:
    return {}


def test_the_guard_refuses_requests_and_sockets_of_other_pages() -> None:
    own = {b"host": b"127.0.0.1:8090", b"origin": b"http://127.0.0.1:8090"}
    other = {b"host": b"127.0.0.1:8090", b"origin": b"https://evil.example"}
    rebound = {b"host": b"evil.example:8090"}

    (start,) = answered("http", own)
    assert start["status"] == 200
    assert (b"x-frame-options", b"DENY") in start["headers"]
    for headers in (other, rebound):
        assert answered("http", headers)[0]["status"] == 403
        assert answered("websocket", headers) == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_num_seqs", "16", 16), ("max_batched_tokens", "auto", "auto"),
        ("itl_target_ms", " 12.5 ", 12.5), ("itl_target_ms", "none", None),
        ("prefix_cache", "off", False), ("tenant_weights", "a:2,b:0.5", {"a": 2.0, "b": 0.5}),
        ("tenant_weights", "none", {}), ("order", "nan", "nan"),
    ],
)  # fmt: skip
def test_limits_are_read_as_people_type_them(name: str, text: str, value: object) -> None:
    assert limit_value(name, text) == value


@pytest.mark.parametrize("text", ["a", "a:", "a:x", "a:nan"])
def test_a_weight_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TENANT:WEIGHT"):
        limit_value("tenant_weights", text)
