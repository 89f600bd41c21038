"""A real console: whom it lets in, and what its pages say while a server is as it should not be."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from markupsafe import escape

from telemetry.facts.limits import LimitInForce, LimitsView
from tests.dashboards.console.running import TOKEN, RunningConsole, frozen, telling
from tests.dashboards.console.samples import HOSTILE, line, moment, page
from tests.support.servers.server import eventually

PAGES = ("/", "/batch", "/requests", "/requests/chat-7", "/incidents", "/latency", "/limits")
PROXIED = "console.example"


@pytest.fixture(scope="module")
def console() -> Iterator[RunningConsole]:
    """Of a server that hangs, on loopback, with a name that a proxy has."""
    with frozen() as server, RunningConsole(server, "--allowed-hosts", PROXIED) as running:
        yield running


def cookie_of(browser: httpx.Client) -> str:
    return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())


@pytest.mark.parametrize("path", [*PAGES, "/_nicegui_ws/socket.io/?EIO=4&transport=polling"])
def test_without_the_token_there_is_no_page_also_on_this_machine(
    console: RunningConsole, path: str
) -> None:
    answer = httpx.get(console.url + path, timeout=60)

    assert answer.status_code == 401
    assert "PHASESCOPE_CONSOLE_TOKEN" in answer.text


def test_without_the_token_there_is_no_socket(console: RunningConsole) -> None:
    assert console.socket_status() == 403
    assert console.socket_status(cookie=f"phasescope-console-{console.port}=another") == 403


def test_the_right_token_gets_the_pages_and_their_socket(console: RunningConsole) -> None:
    with console.browser() as browser:
        for path in PAGES:
            answer = browser.get(path)
            assert answer.status_code == 200, path
            assert TOKEN not in answer.text
        assert console.socket_status(cookie=cookie_of(browser)) == 101
    assert TOKEN not in console.log()


@pytest.mark.parametrize("forwards", [False, True])
def test_behind_a_login_proxy_pages_and_their_sockets_are_answered(
    console: RunningConsole, forwards: bool
) -> None:
    """Of a stated name, which the proxy sends on as Host or not."""
    sent = {"origin": f"https://{PROXIED}", **({"host": PROXIED} if forwards else {})}
    with console.browser() as browser:
        assert browser.get("/limits", headers=sent).status_code == 200
        assert console.socket_status(cookie=cookie_of(browser), **sent) == 101
        elsewhere = {"origin": "https://evil.example"}
        assert browser.get("/limits", headers=elsewhere).status_code == 403
        assert console.socket_status(cookie=cookie_of(browser), **elsewhere) == 403


def test_the_page_of_a_request_comes_while_its_server_does_not_answer(
    console: RunningConsole,
) -> None:
    """And says so."""
    with console.browser() as browser:
        answer = browser.get("/requests/chat-7")

    assert answer.status_code == 200
    assert "The server is asked for it, again and again until it answers." in answer.text


def test_the_link_on_the_terminal_opens_the_pages() -> None:
    """Its token is of this start alone."""
    terminal, its = os.openpty()
    try:
        with frozen() as server, RunningConsole(server, token=None, stderr=its) as console:
            said = b""
            while (found := re.search(rb"console at (http://\S+) of http://", said)) is None:
                said += os.read(terminal, 4096)
            with httpx.Client(follow_redirects=True, timeout=60) as browser:
                answer = browser.get(found[1].decode())
                assert answer.status_code == 200
                assert answer.url == f"{console.url}/"
                assert browser.get(console.url, params={"token": TOKEN}).status_code == 200
            assert httpx.get(console.url, params={"token": TOKEN}).status_code == 401
    finally:
        os.close(its)
        os.close(terminal)


def test_the_name_of_a_limit_is_text_in_the_form_too() -> None:
    """Names are those of the server that is looked at."""
    now = moment()
    limit = LimitInForce(value=1, at_start=1, changed=None)
    answers = {
        "/debug/snapshot": now.snapshot,
        "/debug/diagnosis": now.diagnosis,
        "/debug/requests": page(line(0)),
        "/debug/limits": LimitsView(limits={HOSTILE: limit}, changes=[]),
    }
    encoded = {path: msgspec.json.encode(answer) for path, answer in answers.items()}
    with (
        telling(encoded) as server,
        RunningConsole(server) as console,
        console.browser() as browser,
    ):

        def offered() -> str | None:
            """The page once the form has the limits; its elements are JSON within HTML."""
            text = html.unescape(browser.get("/limits").text)
            return text if "choose one" in text else None

        shown = eventually(offered, "a form with the limits", 60, every_s=0.5)

    assert HOSTILE not in shown
    assert escape(HOSTILE) in shown
