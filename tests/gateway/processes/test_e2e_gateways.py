"""Two gateway processes behind one address: one server to its clients and to its operators."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.support.servers.server import Server, eventually

REQUESTS = 24
BODY = {"prompt": "Count:", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
LONG = BODY | {"max_tokens": 1900, "stream": True}


@pytest.fixture(scope="module")
def pair() -> Iterator[Server]:
    with Server("--model", "dummy:tiny", "--gateways", "2") as server:
        yield server


def one(server: Server, request_id: str, **more: Any) -> httpx.Response:
    """A request on a connection of its own, so the kernel chooses the process."""
    headers = {"x-request-id": request_id}
    with httpx.Client(base_url=server.url, timeout=60) as client:
        return client.post("/v1/completions", json={**BODY, **more}, headers=headers)


def live(server: Server) -> int:
    """Requests without an end, as the main process knows them."""
    with httpx.Client(base_url=server.url, timeout=60) as client:  # to a process that lives
        found: int = client.get("/debug/requests").json()["live_total"]
    return found


def accounts(server: Server, prefix: str) -> list[dict[str, Any]]:
    return [server.facts_of(f"{prefix}-{index}") for index in range(REQUESTS)]


def gateway_pids(server: Server) -> list[int]:
    """The children of the server that serve clients."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if parent == server.process.pid and b"gateway" in words:
            found.append(int(name))
    return sorted(found)


def test_requests_of_both_processes_are_answered_alike_and_accounted_to_the_nanosecond(
    pair: Server,
) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: one(pair, f"a-{n}"), range(REQUESTS)))
    texts = {answer.json()["choices"][0]["text"] for answer in answers}
    seen = accounts(pair, "a")

    assert len(texts) == 1
    assert {answer.headers["x-request-id"] for answer in answers} == {
        f"a-{n}" for n in range(REQUESTS)
    }
    assert {found["gateway"] for found in seen} == {1, 2}
    for found in seen:
        assert found["outcome"] == "finished"
        ledger = found["ledger"]
        assert sum(entry["ns"] for entry in ledger["entries"]) == found["e2e_ns"]
        assert ledger["residue_ns"] == 0


def test_metrics_count_what_both_have_served(pair: Server) -> None:
    def finished() -> float:
        lines = pair.client.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith("phasescope_requests_total{")]
        return sum(float(line.split()[-1]) for line in found if 'outcome="finished"' in line)

    before = finished()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: one(pair, f"m-{n}"), range(REQUESTS)))
    assert finished() - before == REQUESTS
    text = pair.client.get("/metrics").text
    assert "phasescope_gateway_processes 2" in text
    assert "# TYPE phasescope_gateway_processes_ended" in text
    assert "phasescope_facts_before_causes_total 0" in text


def test_timings_come_with_the_answer_of_either_process(pair: Server) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(
            threads.map(lambda n: one(pair, f"t-{n}", include_metrics=True), range(REQUESTS))
        )
    for answer in answers:
        assert answer.json()["metrics"]["time_to_first_token_ms"] > 0


def test_an_id_that_lives_in_one_process_is_not_given_in_the_other(pair: Server) -> None:
    """The engine is stopped, so that all of them are live at once."""
    engine = pair.snapshot()["engine_pid"]
    os.kill(engine, signal.SIGSTOP)
    with ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(one, pair, "same") for _ in range(8)]
        try:
            eventually(lambda: live(pair) >= 8, "eight live requests")
        finally:
            os.kill(engine, signal.SIGCONT)
        ids = [future.result().headers["x-request-id"] for future in sent]
    assert len(set(ids)) == 8
    assert ids.count("same") == 1


def test_an_operator_may_ask_either_process(pair: Server) -> None:
    for _ in range(6):
        with httpx.Client(base_url=pair.url) as client:
            assert client.get("/v1/models").status_code == 200
            assert client.get("/debug/nowhere").status_code == 404
            assert client.get("/v1/completions").status_code == 405
            changed = client.put("/debug/limits", json={"max_num_seqs": 8})
            assert changed.status_code == 200


def test_a_live_request_can_be_cancelled_through_either_process(pair: Server) -> None:
    engine = pair.snapshot()["engine_pid"]
    os.kill(engine, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        try:
            future = threads.submit(one, pair, "doomed")
            eventually(lambda: live(pair) >= 1, "a live request")
            with httpx.Client(base_url=pair.url) as client:
                eventually(
                    lambda: client.delete("/v1/requests/doomed").status_code == 200, "the delete"
                )
        finally:
            os.kill(engine, signal.SIGCONT)
        assert future.result().json()["error"]["code"] == "deleted"
    assert pair.facts_of("doomed")["reason"] == "deleted"


def test_a_process_that_dies_is_replaced_and_its_requests_end_once(pair: Server) -> None:
    engine = pair.snapshot()["engine_pid"]
    os.kill(engine, signal.SIGSTOP)
    with ExitStack() as open_streams, ThreadPoolExecutor(8) as threads:
        clients = [
            open_streams.enter_context(httpx.Client(base_url=pair.url, timeout=60))
            for _ in range(8)
        ]
        try:
            sent = [
                threads.submit(
                    client.post,
                    "/v1/completions",
                    json=BODY,
                    headers={"x-request-id": f"d-{index}"},
                )
                for index, client in enumerate(clients)
            ]
            eventually(lambda: live(pair) >= 8, "eight live requests")
            victim, other = gateway_pids(pair)
            os.kill(victim, signal.SIGKILL)
            eventually(lambda: live(pair) < 8, "recorded ends")
        finally:
            os.kill(engine, signal.SIGCONT)
        ended = [future.exception() for future in sent]
    seen = [pair.facts_of(f"d-{index}") for index in range(8)]
    dead = [found for found in seen if found["outcome"] == "failed"]

    assert dead
    assert len(dead) == sum(error is not None for error in ended)
    assert {found["error_type"] for found in dead} == {"gateway_died"}
    assert {found["gateway"] for found in seen if found["outcome"] == "finished"} == {
        found["gateway"] for found in seen
    } - {dead[0]["gateway"]}
    eventually(lambda: len(gateway_pids(pair)) == 2, "a new process")
    assert other in gateway_pids(pair)
    eventually(pair.is_empty, "an empty engine")

    def all_are_answered() -> bool:  # each process hears a moment later that the engine runs again
        answers = threads.map(lambda n: one(pair, f"n-{n}"), range(REQUESTS))
        return {answer.status_code for answer in answers} == {200}

    with ThreadPoolExecutor(8) as threads:
        eventually(all_are_answered, "answers of both processes")


def test_a_port_that_another_server_has_is_refused_at_once(pair: Server) -> None:
    command = [sys.executable, "-m", "service.cli.main", "serve", "--model", "dummy:tiny"]
    command += ["--gateways", "2", "--port", str(pair.port)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 2
    assert "choose another with --port" in answer.stderr


def test_both_refuse_requests_in_a_drain_and_end_with_the_server(pair: Server) -> None:
    """The last test: nothing serves after it. What runs may finish."""
    pids, engine = gateway_pids(pair), pair.snapshot()["engine_pid"]
    os.kill(engine, signal.SIGSTOP)  # so that the request cannot end before the refusals
    with ThreadPoolExecutor(8) as threads:
        try:
            running = threads.submit(one, pair, "last")
            eventually(lambda: live(pair) >= 1, "a live request")
            pair.process.send_signal(signal.SIGTERM)
            eventually(lambda: "shutting down" in pair.client.get("/ready").text, "the drain")
            late = list(threads.map(lambda n: one(pair, f"late-{n}"), range(REQUESTS)))
        finally:
            os.kill(engine, signal.SIGCONT)
        assert running.result().status_code == 200
    assert {answer.json()["error"]["code"] for answer in late} == {"draining"}
    assert pair.process.wait(20) == 0
    assert len(pids) == 2
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
