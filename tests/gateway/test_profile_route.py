"""`POST /debug/profile` of a real server: a trace of its next steps, and never a hang."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dashboards.source import journal_of
from dashboards.timeline.build import write_timeline
from diagnosis.root_cause.whatif import identities_of
from service.cli.main import main
from service.gateway.routes.profile_route import accepts_gzip
from telemetry.facts.engine_records import ProfileTaken
from tests.support.servers.chrome_trace import KernelTrace
from tests.support.servers.perfetto_check import checked
from tests.support.servers.server import Server, eventually

WORD = "zanzibar"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps what it does not keep."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def profiled(folder: Path) -> Iterator[Server]:
    flags = ("--model", "dummy:tiny", "--executor", "torch", "--debug-key", "secret")
    with Server(*flags, env={"TMPDIR": str(folder)}) as server:
        server.client.headers["authorization"] = "Bearer secret"
        yield server


def post(server: Server, **query: Any) -> httpx.Response:
    return server.client.post("/debug/profile", params=query)


def complete(server: Server) -> str:
    answer = server.completion(prompt=f"{WORD} ", max_tokens=8, ignore_eos=True, temperature=0)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


@contextmanager
def traffic(server: Server) -> Iterator[None]:
    """One request after the other, for as long as it takes."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            complete(server)

    client = threading.Thread(target=run, daemon=True)
    client.start()
    try:
        yield
    finally:
        is_over.set()
        client.join(60)


def left(folder: Path) -> list[Path]:
    return list(folder.glob("phasescope-profile-*"))


def code_of(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    code: str = error["code"]
    return code


def test_the_next_steps_come_as_a_trace(profiled: Server, folder: Path) -> None:
    """As many as were asked for, with torch's operators, and nothing of what was said."""
    before = complete(profiled)
    with traffic(profiled):
        answer = post(profiled, steps=20)
    assert answer.status_code == 200, answer.text
    trace = KernelTrace(answer.json())
    launched = trace.spans("launch")

    assert answer.headers["x-profile-steps"] == "20"
    assert "torch operators" in answer.headers["x-profile-contents"]
    assert answer.headers["content-type"] == "application/json"
    disposition = answer.headers["content-disposition"]
    assert re.fullmatch(r'attachment; filename="phasescope-profile-\w+\.json"', disposition)
    assert len(launched) == trace.about["steps"] == 20
    assert set(trace.spans("collect")) == set(launched)
    assert all(trace.within(span) for span in launched.values())
    assert {"aten::mm", "aten::linear", "aten::addmm"} & {one["name"] for one in trace.operators}
    assert WORD.encode() not in answer.content
    asked_for = {name for one in trace.operators for name in one.get("args", {})}
    assert not asked_for & {"Input Dims", "Input type", "Concrete Inputs", "Call stack"}
    assert not left(folder)
    assert complete(profiled) == before


@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_a_profile_is_compressed_for_clients_that_accept_it(profiled: Server, coding: str) -> None:
    headers = {"accept-encoding": coding}
    query = {"steps": 1, "timeout_s": 0.01}
    with profiled.client.stream("POST", "/debug/profile", params=query, headers=headers) as answer:
        raw = b"".join(answer.iter_raw())
    body = gzip.decompress(raw) if coding == "gzip" else raw

    assert answer.headers.get("content-encoding", "identity") == coding
    assert answer.headers["vary"] == "accept-encoding"
    assert json.loads(body)["phasescope"]["steps"] == int(answer.headers["x-profile-steps"])


def test_an_idle_engine_answers_when_the_time_is_up(profiled: Server) -> None:
    answer = post(profiled, timeout_s=0.05)

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-profile-steps"] == "0"
    assert not KernelTrace(answer.json()).spans("launch")


@pytest.mark.parametrize("steps", ["0", "201", "-1", "1.5", "x", "", "1e2", "\u0662", "9" * 5000])
def test_a_wrong_number_of_steps_is_a_400_that_says_what_is_right(
    profiled: Server, steps: str
) -> None:
    answer = post(profiled, steps=steps)

    assert code_of(answer, 400) == "invalid_steps"
    assert answer.json()["error"]["param"] == "steps"
    assert "from 1 to 200" in answer.json()["error"]["message"]


@pytest.mark.parametrize("timeout_s", ["0", "-1", "120.5", "nan", "inf", "x", ""])
def test_a_wrong_timeout_is_a_400_that_says_what_is_right(profiled: Server, timeout_s: str) -> None:
    answer = post(profiled, timeout_s=timeout_s)

    assert code_of(answer, 400) == "invalid_timeout"
    assert answer.json()["error"]["param"] == "timeout_s"
    assert "up to 120" in answer.json()["error"]["message"]


def test_a_profile_needs_the_debug_key_and_a_post(profiled: Server) -> None:
    refused = httpx.post(f"{profiled.url}/debug/profile")

    assert code_of(refused, 401) == "invalid_api_key"
    assert code_of(profiled.client.get("/debug/profile"), 405) == "method_not_allowed"


def test_a_second_profile_is_refused_and_the_first_goes_on(profiled: Server, folder: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, profiled, steps=3, timeout_s=120)
        eventually(lambda: left(folder), "the first profile")
        second = post(profiled, steps=1)
        with traffic(profiled):
            answer = first.result()

    assert code_of(second, 409) == "profile_running"
    assert answer.headers["x-profile-steps"] == "3"
    assert len(KernelTrace(answer.json()).spans("launch")) == 3


def test_a_client_that_hangs_up_ends_its_profile(profiled: Server, folder: Path) -> None:
    head = (
        b"POST /debug/profile?timeout_s=120 HTTP/1.1\r\nhost: localhost\r\n"
        b"authorization: Bearer secret\r\ncontent-length: 0\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", profiled.port)) as client:
        client.sendall(head)
        eventually(lambda: left(folder), "the profile")
    eventually(lambda: not left(folder), "its end")

    assert post(profiled, steps=1, timeout_s=0.01).status_code == 200


def test_a_profile_is_in_the_journal_and_changes_no_replay(
    profiled: Server, tmp_path: Path
) -> None:
    with traffic(profiled):
        assert post(profiled, steps=4).status_code == 200
    eventually(profiled.is_empty, "an empty engine")
    with journal_of(profiled.url, "secret") as journal:
        taken = [fact for fact in journal.facts() if isinstance(fact, ProfileTaken)]
        (identity,) = identities_of(journal)
        write_timeline(journal, tmp_path / "timeline.json")
    drawn = [
        piece
        for piece in checked(tmp_path / "timeline.json").phase("X")
        if piece["name"] == "ProfileTaken"
    ]

    assert taken[-1].steps == 4
    assert all(fact.begin_ns < fact.end_ns == fact.at_ns for fact in taken)
    assert identity.difference is None
    assert len(drawn) == len(taken)


def test_the_command_writes_a_file(
    profiled: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Packed by its name, as it is otherwise."""
    for name in ("trace.json", "trace.json.gz"):
        path = tmp_path / name
        with traffic(profiled):
            words = ["profile", profiled.url, "--steps", "2", "--debug-key", "secret"]
            assert main([*words, "--output", str(path)]) == 0
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)

        assert len(KernelTrace(document).spans("launch")) == 2
        assert "2 steps (spans of steps, torch operators)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--debug-key", "secret", "--steps", "0"], "from 1 to 200"),
        (["--debug-key", "wrong"], "give --debug-key"),
    ],
)
def test_the_command_prints_why_there_is_no_profile(
    profiled: Server,
    tmp_path: Path,
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "trace.json"

    assert main(["profile", profiled.url, "--output", str(path), *words]) == 1
    assert said in capsys.readouterr().err
    assert not path.exists()


def test_the_death_of_a_profiled_engine_is_reported_and_the_next_one_can_be_profiled(
    profiled: Server, folder: Path
) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, profiled, timeout_s=120)
        eventually(lambda: left(folder), "the profile")
        os.kill(profiled.snapshot()["engine_pid"], signal.SIGKILL)
        died = answer.result()
        none = post(profiled, timeout_s=0.01)
    eventually(profiled.is_ready, "another engine", 120)

    assert code_of(died, 503) == "engine_died"
    assert none.status_code == 200 or code_of(none, 503) == "not_ready"
    assert not left(folder)
    assert post(profiled, steps=1, timeout_s=0.01).status_code == 200


def test_a_server_that_stops_ends_its_profile_first(tmp_path: Path) -> None:
    flags = ("--model", "dummy:tiny")
    with (
        Server(*flags, env={"TMPDIR": str(tmp_path)}) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(post, server, timeout_s=120)
        eventually(lambda: left(tmp_path), "the profile")
        server.process.send_signal(signal.SIGTERM)
        assert answer.result().headers["x-profile-steps"] == "0"
        assert server.process.wait(20) == 0
        assert "Traceback" not in server.log()

    assert not left(tmp_path)


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("", False),
        ("identity", False),
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("GZIP; q=1.0", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, br", False),
        ("br", False),
    ],
)
def test_accept_encoding_decides_about_compression(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted
