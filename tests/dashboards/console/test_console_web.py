"""The console's process without its pages: polling, who may call, and what a key is kept from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from dashboards.console.model.link import Link, LinkState
from dashboards.console.web.guard import Access, Guard, is_own_host, is_same_origin
from dashboards.console.web.poller import Poller
from dashboards.explain import Explained
from dashboards.monitor.client import Client, Unreachable
from dashboards.monitor.limit_values import limit_value
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.facts.clock import ManualClock
from telemetry.facts.limits import LimitsView
from telemetry.requests.request_list import RequestsPage
from telemetry.stats.snapshot import Batch, Snapshot
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
    poller.known.link = Link(state=LinkState.WANTS_KEY)
    poller.use_key("secret")

    assert poller.client.debug_key == "secret"
    assert "secret" not in poller.client.url
    with pytest.raises(Unreachable) as caught:
        poller.client.snapshot()
    assert "secret" not in str(caught.value)


def test_a_key_that_nobody_asked_for_replaces_none() -> None:
    """It would be that of all tabs."""
    poller = polled(Answers())
    before = poller.client
    poller.use_key("another")

    assert poller.client is before


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:8090", True), ("localhost:8090", True), ("[::1]:8090", True),
        ("10.0.0.7", True), ("ops.example", True), ("evil.example:8090", False), ("", False),
        ("localhost.evil.example", False), ("[", False), ("OPS.example:8443", True),
        ("console.example:8443", True), ("console.example", False),
    ],
)  # fmt: skip
def test_a_page_of_another_name_does_not_reach_the_console(host: str, own: bool) -> None:
    assert is_own_host(host, ("ops.example", "console.example:8443")) is own


def test_an_origin_must_be_the_host_or_an_allowed_name() -> None:
    own, allowed = "127.0.0.1:8090", ("console.example",)
    assert is_same_origin(None, own)
    assert is_same_origin("http://127.0.0.1:8090", own)
    assert is_same_origin("https://console.example", own, allowed)
    for origin in (
        "http://127.0.0.1:9999", "null", "http://[", "https://console.example",
        "https://console.example.evil.example", "https://evil.example/console.example",
    ):  # fmt: skip
        assert not is_same_origin(origin, own), origin
    assert not is_same_origin("https://console.example:9999", own, allowed)


TOKEN = "a-token-of-some-length"
ACCESS = Access(
    listens_on="127.0.0.1", port=8090, token=TOKEN, allowed_hosts=("console.example",)
)  # fmt: skip
OWN = {b"host": b"127.0.0.1:8090", b"origin": b"http://127.0.0.1:8090"}
COOKIE = {b"cookie": f"theme=dark; {ACCESS.cookie}={TOKEN}".encode()}
CLOSED = [{"type": "websocket.close", "code": 1008}]


def answered(
    kind: str, headers: dict[bytes, bytes], path: str = "/limits", query: str = ""
) -> list[Message]:
    """What the guard, before an app that says yes, sends for one request."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": kind, "scheme": "http", "path": path, "raw_path": path.encode(),
        "query_string": query.encode(), "headers": list(headers.items()),
    }  # fmt: skip
    asyncio.run(Guard(app, ACCESS)(scope, _nothing, send))
    return sent


async def _nothing() -> Message:
    return {}


def sent_on(query: str, path: str = "/limits", **more: bytes) -> dict[bytes, bytes]:
    """The headers of a redirect."""
    headers = OWN | {name.replace("_", "-").encode(): value for name, value in more.items()}
    start, _ = answered("http", headers, path, query)
    assert start["status"] == 303
    return dict(start["headers"])


def test_the_guard_refuses_requests_and_sockets_of_other_pages() -> None:
    """Also of a browser that has the token."""
    other = {b"host": b"127.0.0.1:8090", b"origin": b"https://evil.example"}
    rebound = {b"host": b"evil.example:8090"}

    (start,) = answered("http", OWN | COOKIE)
    assert start["status"] == 200
    assert (b"x-frame-options", b"DENY") in start["headers"]
    for headers in (other, rebound):
        assert answered("http", headers | COOKIE)[0]["status"] == 403
        assert answered("http", headers, query=f"token={TOKEN}")[0]["status"] == 403
        assert answered("websocket", headers | COOKIE) == CLOSED


@pytest.mark.parametrize(
    "cookie", [b"", b"phasescope-console-8090=", b"phasescope-console-8090=another",
               b"phasescope-console-8091=" + TOKEN.encode(), b"token=" + TOKEN.encode(), b"\xff"]
)  # fmt: skip
def test_who_has_not_the_token_is_told_where_it_is_shown(cookie: bytes) -> None:
    """And gets no page and no socket, also on this machine."""
    headers = OWN | {b"cookie": cookie}

    for query in ("", "token=", "token=another", f"other={TOKEN}", f"token={TOKEN}x"):
        start, body = answered("http", headers, query=query)
        assert start["status"] == 401
        assert (b"x-frame-options", b"DENY") in start["headers"]
        assert b"in the terminal where it was started" in body["body"]
        assert b"PHASESCOPE_CONSOLE_TOKEN" in body["body"]
    assert answered("websocket", headers) == CLOSED
    assert answered("websocket", headers, query=f"token={TOKEN}") == CLOSED


def test_the_token_in_an_address_becomes_a_cookie_and_leaves_it() -> None:
    headers = sent_on(f"order=slowest&token={TOKEN}&q=%26", "/requests/a%2Fb")

    assert headers[b"location"] == b"/requests/a%2Fb?order=slowest&q=%26"
    cookie = headers[b"set-cookie"].decode().split("; ")
    assert cookie == [f"{ACCESS.cookie}={TOKEN}", "Path=/", "HttpOnly", "SameSite=Strict"]
    assert headers[b"cache-control"] == b"no-store"
    assert answered("websocket", OWN | COOKIE)[0]["type"] == "http.response.start"  # the app's


def test_behind_https_the_cookie_goes_by_nothing_else() -> None:
    headers = sent_on(f"token={TOKEN}", x_forwarded_proto=b"https")

    assert headers[b"set-cookie"].endswith(b"; Secure")


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "///evil.example"])
def test_the_token_leads_to_no_other_host(path: str) -> None:
    to = sent_on(f"token={TOKEN}", path)[b"location"]

    assert to.startswith(b"/")
    assert not to.startswith((b"//", b"/\\"))


@pytest.mark.parametrize("host", [b"127.0.0.1:8090", b"console.example"])
def test_behind_a_proxy_of_a_stated_name_pages_and_sockets_are_answered(host: bytes) -> None:
    """It sends its own Host, or the one of the browser."""
    proxied = {b"host": host, b"origin": b"https://console.example", **COOKIE}

    for kind in ("http", "websocket"):
        assert answered(kind, proxied)[0]["type"] == "http.response.start"


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
