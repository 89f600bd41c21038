"""Bytes that are almost HTTP, at a real server: the short run of `benchmarks.fuzz.http`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from benchmarks.fuzz.http import Answers, Case, HealthWatch, Leave, fuzz, settled, throw
from tests.support.examples import ALL
from tests.support.servers.server import Server

CASES = 150 if ALL else 80


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--model", "dummy:tiny", "--header-timeout", "2", "--body-timeout", "2") as running:
        running.client.close()
        yield running


@pytest.mark.sampled
def test_any_bytes_get_an_http_response_or_a_close_and_leave_no_state(server: Server) -> None:
    statuses: Counter[int] = Counter()
    with HealthWatch(server.port) as watch:
        fuzz(server.port, CASES, statuses)
    print(f"/health: longest wait {max(watch.waits_ms):.1f} ms; answers {dict(statuses)}")
    assert watch.failed is None
    assert settled(server.url) == {}
    assert "Traceback" not in server.log()
    assert {200, 400} <= statuses.keys()


def test_the_check_refuses_a_response_that_is_not_http() -> None:
    """The check itself would see one."""
    good = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    answers = Answers()
    answers.read(good + good)

    assert answers.statuses == [200, 200]
    with pytest.raises(AssertionError, match="not HTTP"):
        Answers().read(good + b"garbage")


def test_a_case_knows_its_end(server: Server) -> None:
    good = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert throw(server.port, Case((good[:9], good[9:]), Leave.QUIET)) == [200]
    assert throw(server.port, Case((good, b"\0"), Leave.QUIET)) == [200, 400]
    assert throw(server.port, Case((good,), Leave.RESET)) == []
