"""Generated requests against a real server; `make fuzz` has many more of them."""

from __future__ import annotations

import http.server
import threading
import time

import pytest

from benchmarks.fuzz.cases import MOST_TOKENS, make_servable
from benchmarks.fuzz.facts import unpaired
from benchmarks.fuzz.watch import HealthWatch
from tests.support.examples import ALL
from tests.support.servers.server import Server
from tests.support.worlds.facts import accepted, request_ended, submitted

CASES = 150 if ALL else 110


@pytest.mark.sampled
def test_generated_requests_break_nothing_and_are_answered_as_documented() -> None:
    from benchmarks.fuzz.api import fuzz  # seconds of import

    with Server() as server:
        report = fuzz(server.url, server.process.pid, CASES, 1)

    assert report.faults == {}, "\n".join(report.lines())
    assert report.cases >= CASES
    assert report.requests > CASES / 5
    assert report.statuses["generation right 200"] > CASES / 20


def test_a_health_check_that_is_held_up_is_seen() -> None:
    held_s: list[float] = []
    held_twice = threading.Event()

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            begin_s = time.perf_counter()
            time.sleep(0.3)  # what is to be seen; how long it was is measured here, too
            held_s.append(time.perf_counter() - begin_s)
            self.send_response(200)
            self.end_headers()
            if len(held_s) == 2:
                held_twice.set()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with HealthWatch("127.0.0.1", server.server_port, 0) as watch:
            assert held_twice.wait(60)
        server.shutdown()

    assert watch.seen.polls >= 2
    assert watch.seen.failed == 0
    assert watch.seen.stall_ms > 500 * min(held_s)


def test_the_check_reports_a_request_without_exactly_one_end() -> None:
    good = [accepted("a"), submitted("a", seq_id=1), request_ended("a")]

    count, wrong = unpaired([*good, accepted("b"), submitted("b", seq_id=2), request_ended("c")])

    assert count == 2
    assert sorted(wrong) == [
        "request 'b': 1 accepted, 0 ended",
        "request 'c': 0 accepted, 1 ended",
        "sequence 1: no end",
        "sequence 2: no end",
    ]


def test_cases_that_are_to_be_served_are_short_and_have_one_constraint() -> None:
    body = {"prompt": [1e6, 7.0], "max_tokens": 1 << 31, "guided_regex": "a", "guided_json": {}}
    make_servable(body)

    assert body["max_tokens"] == MOST_TOKENS
    assert body["prompt"] == [0, 7]
    assert "guided_regex" not in body
