"""Several servers as an operator reads them: side by side, whatever becomes of one of them."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from dashboards.fleet.poll import Poller
from dashboards.fleet.read import read_dump, read_fleet
from dashboards.fleet.screen import screen
from dashboards.fleet.text import lines
from dashboards.monitor.client import Client, is_server
from diagnosis.fleet.view import FleetDiagnosis, diagnose_fleet
from diagnosis.symptoms import Symptom
from service.cli.main import main
from telemetry.facts.clock import ManualClock
from telemetry.facts.records import fact_ns
from telemetry.journal.journal_reader import open_journal
from tests.support.servers.served import started
from tests.support.servers.server import Server, free_port
from tests.support.worlds.journal_facts import SECOND, request, saved, small, turn_over
from tests.support.worlds.replicas import (
    finding,
    healthy,
    idle,
    latencies,
    replica,
    slo,
    unreachable,
)


def world() -> FleetDiagnosis:
    bad = replica(
        "http://bad:8000", finding(Symptom.THROTTLED, 2500.0), slo=slo(60, 45), version="0.2.0",
        latencies=latencies(itl_ms=140.0, ttft_ms=300.0), blocks_used=25, blocks_total=100,
    )  # fmt: skip
    others = [*healthy(2), idle("http://spare:8000"), unreachable("http://gone:8000")]
    return diagnose_fleet([*others, bad])


def text_of(fleet: FleetDiagnosis, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(screen(fleet, width))
    return capture.get()


@contextmanager
def silent_server() -> Iterator[str]:
    """It takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """A server that answers every path with the same JSON."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_frame_has_the_verdict_a_line_for_each_and_what_they_have_together(width: int) -> None:
    """At the widths of real terminals."""
    shown = text_of(world(), width)

    for expected in (
        "5 replicas", "3 serving", "1 idle", "1 no answer", "one bad replica of 3", "r0:8000",
        "bad:8000", "spare:8000", "gone:8000 cannot be read: [Errno 111]", "refused", "goodput",
        "chat 91.7 % good", "ttft",
        "throttled on bad:8000", "runbooks/throttled.md",
    ):  # fmt: skip
        assert expected in shown, expected
    assert max(map(len, shown.splitlines())) <= width


def test_the_diagnosis_as_text_says_where_and_by_how_much() -> None:
    shown = "\n".join(lines(world()))

    for expected in (
        "one bad replica of 3: http://bad:8000",
        "it alone has version 0.2.0",
        "http://gone:8000: no answer: cannot be read: [Errno 111] Connection refused",
        "http://spare:8000: idle, healthy",
        "http://bad:8000: serving, throttled; 62 requests in a minute;",
        "1. throttled on 1 (2.5 s of requests' time)",
        "chat: 91.7 % of 180 good, burn 8.3",
    ):
        assert expected in shown, expected


def test_servers_that_do_not_answer_cost_the_others_nothing() -> None:
    """One refuses, one is silent, one is something else: each is a line, in their order."""
    with silent_server() as silent, answering(b'{"hello": 1}') as other:
        refusing = f"http://127.0.0.1:{free_port()}"
        found = read_fleet([refusing, silent, other], deadline_s=0.5)

    assert [one.name for one in found] == [refusing, silent, other]
    assert "refused" in found[0].why_unread
    assert found[1].why_unread == "has not answered within 0.5 s"
    assert "missing required field" in found[2].why_unread


def test_rates_of_a_dump_that_was_cut_are_over_the_time_from_its_cut(tmp_path: Path) -> None:
    """What it carries from before the cut may be days older."""
    journal, clock = small()
    journal.on_facts([started(0), *request("live", 1, at=1)])
    turn_over(journal, clock, 300)
    path = saved(tmp_path / "cut.journal", journal.frames("request"))
    read = open_journal(path)
    cut_ns, last_ns = read.header.cut_ns, max(map(fact_ns, read.facts()))
    slo = read_dump(str(path)).slo

    assert cut_ns is not None
    assert slo is not None
    (covered_s,) = {window.covered_s for one in slo.classes for window in one.windows}
    assert covered_s == pytest.approx((last_ns - cut_ns) / SECOND)


def test_a_server_that_was_named_twice_is_one() -> None:
    url = f"http://127.0.0.1:{free_port()}"

    assert len(read_fleet([url, url])) == 1


def test_a_poller_keeps_what_was_said_last_until_it_is_silent_for_too_long() -> None:
    clock = ManualClock()
    with Server("--model", "dummy:tiny") as server:
        poller = Poller(Client(server.url), 0.5, clock)
        assert poller.current().why_unread.startswith("not answered yet")
        poller.ask()
        assert poller.current().model == "dummy:tiny"

    poller.ask()
    assert "refused" in poller.current().why_unread
    assert poller.current().why_unread.endswith("for 0 s")


def test_top_and_diagnose_take_several_servers_and_dumps(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And end with 3 where some cannot be read, with 1 where none can."""
    gone = f"http://127.0.0.1:{free_port()}"
    with Server("--model", "dummy:tiny", "--dump-dir", str(tmp_path)) as server:
        for number in range(3):
            answer = server.completion(max_tokens=12)
            assert answer.status_code == 200, number
        server.client.post("/debug/dump").raise_for_status()
        (dump,) = map(str, tmp_path.glob("*.journal"))

        assert main(["top", "--once", server.url, gone]) == 0
        frame = capsys.readouterr().out
        assert "1 serving" in frame
        assert "1 no answer" in frame
        assert main(["diagnose", server.url, dump]) == 0
        assert "healthy: nothing found on the 2 replicas" in capsys.readouterr().out
        assert main(["diagnose", "--json", server.url, dump, gone]) == 3
        found = json.loads(capsys.readouterr().out)
    assert main(["top", "--once", gone, gone + "/other"]) == 1
    assert main(["diagnose", gone, gone + "/other"]) == 1

    assert found["verdict"]["scope"] == "healthy"
    live, dumped, unread = found["replicas"]
    assert live["requests"] == dumped["requests"] == 3
    assert found["latencies"]["ttft"]["count"] == 6
    assert live["itl"]["count"] == dumped["itl"]["count"]
    assert live["version"]
    assert unread["state"] == "no answer"


@pytest.mark.parametrize(
    ("source", "is_one"),
    [
        ("http://gpu1", True), ("https://gpu1/x", True), ("gpu1:8000", True), ("[::1]:80", True),
        ("10.0.0.1:8000", True), ("dump.journal", False), ("dumps/of:8000", False),
        ("today", False), ("./gpu1:8000", False), ("", False),
    ],
)  # fmt: skip
def test_a_server_is_a_url_or_a_host_with_its_port(source: str, is_one: bool) -> None:
    assert is_server(source) is is_one


def test_a_name_that_is_no_file_is_sent_no_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped name is not looked up as a host."""
    monkeypatch.chdir(tmp_path)
    for words in (["today.journal"], ["today.journal", "dumps"]):
        assert main(["diagnose", *words, "--debug-key", "secret"]) == 1
        said = capsys.readouterr()
        assert "today.journal: No such file" in said.out + said.err


def test_what_is_for_one_server_is_refused_for_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "http://a", "http://b", "--root"]) == 2
    assert "--root goes with one server or dump" in capsys.readouterr().err
