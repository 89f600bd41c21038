"""Large and expensive bodies delay no other request."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.server import Server, eventually

LONGEST_STALL_S = 1.0  # a hang guard: tens of milliseconds are usual
POLL = """
import http.client, sys, threading, time
worst, stop = 0.0, threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=300)
while not stop.is_set():
    begin = time.perf_counter()
    connection.request("GET", "/health")
    connection.getresponse().read()
    if not worst:
        print("asks", flush=True)
    worst = max(worst, time.perf_counter() - begin)
    time.sleep(0.002)
print(worst)
"""


@contextmanager
def polled(server: Server) -> Iterator[list[float]]:
    """Polls `/health` from a process of its own; returns the longest response time."""
    found: list[float] = []
    asking = subprocess.Popen(
        [sys.executable, "-c", POLL, str(server.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert asking.stdout is not None
    assert asking.stdout.readline() == b"asks\n"
    try:
        yield found
    finally:
        out, _ = asking.communicate(timeout=300)
        found.append(float(out))


def posted(server: Server, path: str, body: bytes, **headers: str) -> socket.socket:
    """A request that has been written whole; its answer is unread."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=300)
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json",
             f"content-length: {len(body)}", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]  # fmt: skip  # noqa: E501
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    return connection


def status_of(connection: socket.socket) -> int:
    with connection:
        return int(connection.recv(4096).split(b" ", 2)[1])


def chat(contents: list[str]) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"messages": messages, "max_tokens": 1}).encode()


def test_health_is_answered_while_thirteen_long_chats_are_read(server: Server) -> None:
    """Ten with a long message, three with 170,000 tiny ones, all at once."""
    bodies = [chat(["hello world. " * 538_461])] * 10 + [chat(["a"] * 170_000)] * 3
    statuses: list[int] = []

    def send(body: bytes) -> None:
        statuses.append(status_of(posted(server, "/v1/chat/completions", body)))

    with polled(server) as worst_s:
        senders = [threading.Thread(target=send, args=(body,)) for body in bodies]
        begin = time.monotonic()
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(300)
        took_s = time.monotonic() - begin
    print(f"worst wait for /health: {worst_s[0] * 1e3:.0f} ms; all refused in {took_s:.1f} s")

    assert set(statuses) <= {400, 413, 429}
    assert len(statuses) == 13
    assert worst_s[0] < LONGEST_STALL_S


def test_a_schema_whose_pattern_backtracks_for_ever_delays_no_request(server: Server) -> None:
    """A backtracking engine takes 6 s for 26 letters, and twice as long for each one more."""
    name = "a" * 26 + "b"
    schema = {
        "type": "object", "patternProperties": {"^(a|a)*$": {"type": "integer"}},
        "properties": {name: {"const": 1}}, "required": [name], "additionalProperties": False,
    }  # fmt: skip
    body = {"prompt": "JSON:", "max_tokens": 200, "guided_json": schema, "temperature": 0}
    with polled(server) as worst_s:
        answer = server.client.post("/v1/completions", json=body)
        facts = server.facts_of(answer.headers["x-request-id"])
    print(f"worst wait for /health: {worst_s[0] * 1e3:.0f} ms")

    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert facts["output_valid"] is True
    assert worst_s[0] < LONGEST_STALL_S


def test_work_on_a_body_ends_when_its_client_leaves(server: Server) -> None:
    """Many prompts, each just short enough, take the tokenizer seconds."""
    prompts = ["hello world. " * 2_500] * 240
    whole = json.dumps({"prompt": prompts, "max_tokens": 1}).encode()
    workers = worker_pids(server)
    connection = posted(server, "/v1/completions", whole, x_request_id="leaves")
    eventually(lambda: cpu_s(server, workers) > 0.5, "work on the body")
    connection.close()
    facts = server.facts_of("leaves")

    assert (facts["outcome"], facts["reason"]) == ("cancelled", "disconnect")
    eventually(lambda: worker_pids(server) and worker_pids(server) != workers, "a new worker")
    eventually(lambda: not is_busy(server), "idle workers")
    assert status_of(posted(server, "/v1/completions", json.dumps(
        {"prompt": "hello " * 2000, "max_tokens": 1}).encode())) == 200  # fmt: skip


def test_a_client_that_leaves_during_one_long_chat_ends_all_work_on_it(server: Server) -> None:
    before_s = tree_cpu_s(server)
    connection = posted(server, "/v1/chat/completions", chat(["hello world. " * 538_461]))
    eventually(lambda: tree_cpu_s(server) > before_s, "work on the body")
    connection.close()
    began_s = tree_cpu_s(server)
    eventually(lambda: not is_busy(server), "an idle server", 60)

    assert tree_cpu_s(server) - began_s < 2.0


def children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, path.read_text().split())
    return found


def worker_pids(server: Server) -> list[int]:
    found: list[int] = []
    for pid in children(server.process.pid):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"gateway.ingest.worker" in line:
            found.append(pid)
    return sorted(found)


def cpu_s(server: Server, pids: list[int]) -> float:
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / 100


def tree_cpu_s(server: Server) -> float:
    return cpu_s(server, [server.process.pid, *children(server.process.pid)])


def is_busy(server: Server) -> bool:
    before = tree_cpu_s(server)
    time.sleep(0.5)
    return tree_cpu_s(server) - before > 0.2
