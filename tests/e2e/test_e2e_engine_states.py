"""The engine is killed, or frozen until its deadline, while requests are in each state of their
lives: each has one reply, one terminal fact and one trace, nothing is left over, and the next
request is served."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from telemetry.facts.reasons import HangKind
from telemetry.facts.records import EngineDied, EngineHung, Fact, RequestAccepted, RequestEnded
from telemetry.journal.journal_reader import open_journal
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.otlp_trees import Tree
from tests.support.servers.server import Server, eventually, sse_events

DEADLINE_S = 4
FAULTS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
STATES = ("received", "queued", "prefilling", "decoding", "draining")
_LONG_PROMPT = [3 + index % 400 for index in range(1900)]


@dataclass
class Reply:
    """What a client got: a status, and the code of the error with which it ended."""

    status: int
    code: str | None


class Client(threading.Thread):
    """One request; `replies` is everything that came back."""

    def __init__(self, url: str, state: str, **body: Any) -> None:
        super().__init__(daemon=True)
        self.request_id = f"{state}-request"
        self.replies: list[Reply] = []
        self._url = url
        self._body = {"max_tokens": 1900, "ignore_eos": True, "stream": True, **body}

    def run(self) -> None:
        headers = {"x-request-id": self.request_id}
        with httpx.stream(
            "POST", f"{self._url}/v1/completions", json=self._body, headers=headers, timeout=60
        ) as answer:
            if answer.status_code == 200:
                last = sse_events(answer.iter_lines())[-1]
                error = last["error"]["code"] if isinstance(last, dict) else None
                self.replies.append(Reply(200, error))
            else:
                self.replies.append(_refusal(answer.status_code, answer.read()))


class HalfSent:
    """A request of which only half the body has come."""

    def __init__(self, port: int, request_id: str) -> None:
        body = json.dumps({"prompt": "half of it", "max_tokens": 4}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            f"x-request-id: {request_id}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._rest = body[10:]
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.sendall(head.encode() + body[:10])

    def finish(self) -> list[Reply]:
        """All that comes back until the server closes."""
        with self._socket:
            self._socket.sendall(self._rest)
            raw = b"".join(iter(lambda: self._socket.recv(1 << 16), b""))
        assert raw.count(b"HTTP/1.1 ") == 1, raw
        top, _, body = raw.partition(b"\r\n\r\n")
        return [_refusal(int(top.split()[1]), body)]


def _refusal(status: int, body: bytes) -> Reply:
    return Reply(status, json.loads(body)["error"]["code"])


@dataclass
class Drama:
    """The outcome of every request, read after the server has ended."""

    how: str
    replies: dict[str, list[Reply]] = field(default_factory=dict)
    trees: dict[str, list[Tree]] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    next_status: int = 0
    is_empty: bool = False
    restarts: int = 0
    exit_code: int | None = None
    said: str = ""
    metrics: str = ""


def _grid(server: Server) -> dict[str, tuple[str, int]]:
    """State and output tokens of each request that the engine knows."""
    rows = server.snapshot()["grid"]
    return {row["request_id"]: (row["state"], row["output_tokens"]) for row in rows}


def _brought_into_states(server: Server) -> tuple[dict[str, Client], HalfSent]:
    """One decodes, one computes its long prompt, one waits for a slot, one is half sent."""
    clients = {
        "decoding": Client(server.url, "decoding", prompt="Count:"),
        "prefilling": Client(server.url, "prefilling", prompt=_LONG_PROMPT, max_tokens=8),
        "queued": Client(server.url, "queued", prompt="Wait:", stream=False),
    }
    half = HalfSent(server.port, "received-request")
    wanted = {
        "decoding": lambda state, tokens: tokens > 0,
        "prefilling": lambda state, tokens: state == "running" and not tokens,
        "queued": lambda state, tokens: state == "waiting",
    }
    for state, client in clients.items():
        client.start()

        def is_there(state: str = state, name: str = client.request_id) -> bool:
            return wanted[state](*_grid(server).get(name, ("", 0)))

        eventually(is_there, state)
    return clients, half


def _while_it_serves(server: Server, drama: Drama) -> None:
    clients, half = _brought_into_states(server)
    os.kill(server.snapshot()["engine_pid"], FAULTS[drama.how])
    eventually(lambda: not server.is_ready(), "unreadiness", 3)
    drama.replies["received"] = half.finish()
    for state, client in clients.items():
        client.join(30)
        drama.replies[state] = client.replies
    eventually(server.is_ready, "readiness again", 60)
    drama.next_status = server.completion(max_tokens=4).status_code
    drama.is_empty = bool(eventually(server.is_empty, "an empty engine"))
    drama.restarts = server.snapshot()["engine_restarts"]
    drama.metrics = server.client.get("/metrics").text


def _while_it_drains(server: Server, drama: Drama) -> None:
    client = Client(server.url, "draining", prompt="Count:")
    client.start()
    eventually(lambda: _grid(server).get(client.request_id, ("", 0))[1] > 0, "a token")
    engine_pid = server.snapshot()["engine_pid"]
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: "shutting down" in server.client.get("/ready").text, "the drain")
    os.kill(engine_pid, FAULTS[drama.how])
    client.join(30)
    drama.replies["draining"] = client.replies
    drama.exit_code = server.process.wait(30)
    drama.said = server.log()


# a frozen engine is waited for; `test_e2e_engine_frozen.py` has one in each of its other forms
@pytest.fixture(scope="module", params=["killed", pytest.param("frozen", marks=pytest.mark.slow)])
def drama(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Drama:
    """The engine is struck twice: while it serves, and, after it was replaced, in the drain."""
    drama = Drama(request.param)
    folder: Path = tmp_path_factory.mktemp("journal")
    flags = ("--max-num-seqs", "2", "--max-batched-tokens", "16", "--threads", "1")
    with (
        OtlpReceiver() as receiver,
        Server(
            "--model", "dummy:smollm2-135m", *flags,
            "--engine-deadline", str(DEADLINE_S), "--drain-timeout", "20",
            "--journal-dir", str(folder), "--otlp-endpoint", receiver.endpoint,
        ) as server,
    ):  # fmt: skip
        _while_it_serves(server, drama)
        _while_it_drains(server, drama)
        receiver.check_all()
        drama.facts = list(open_journal(folder).facts())
        for state in STATES:
            name = f"{state}-request"
            found = [t for t in receiver.trees() if t.attribute("gen_ai.request.id") == name]
            drama.trees[state] = found
    return drama


@pytest.mark.parametrize("state", STATES)
def test_each_request_has_one_reply_one_end_and_one_trace(drama: Drama, state: str) -> None:
    """Whatever its state when its engine ended."""
    (reply,) = drama.replies[state]
    ends = [
        f for f in drama.facts if isinstance(f, RequestEnded) and f.request_id.startswith(state)
    ]
    (tree,) = drama.trees[state]

    assert len(ends) == 1
    assert tree.attribute("error.type") == ends[0].error_type == reply.code
    if state == "received":
        assert reply.status == 503
        assert reply.code == ("not_ready" if drama.how == "killed" else "engine_not_responding")
    else:
        assert reply.code == "engine_died"
        assert reply.status == (200 if state in ("decoding", "draining") else reply.status)


def test_the_next_request_is_served_and_nothing_is_left(drama: Drama) -> None:
    accepted = Counter(f.request_id for f in drama.facts if isinstance(f, RequestAccepted))
    ended = Counter(f.request_id for f in drama.facts if isinstance(f, RequestEnded))

    assert drama.next_status == 200
    assert drama.is_empty
    assert drama.restarts == 1
    assert accepted == ended
    assert set(ended.values()) == {1}


def test_a_server_that_drains_ends_in_time_although_its_engine_is_gone(drama: Drama) -> None:
    assert drama.exit_code == 0
    assert "Traceback" not in drama.said


def test_the_record_says_why_the_engine_was_replaced(drama: Drama) -> None:
    """A frozen one was found hung, was waited for until the deadline, and was ended once."""
    hung = [fact for fact in drama.facts if isinstance(fact, EngineHung)]
    deaths = [fact for fact in drama.facts if isinstance(fact, EngineDied)]
    counted = f"phasescope_engine_hung_total {0 if drama.how == 'killed' else 1}"

    assert counted in drama.metrics
    if drama.how == "killed":
        assert not hung
        assert deaths[0].detail == "ended by signal 9"
        return
    assert {(fact.kind, fact.process_state) for fact in hung} == {(HangKind.STOPPED, "T")}
    assert hung[0].sequences == 3
    assert hung[0].stacks
    assert deaths[0].detail.startswith(f"did not respond for {DEADLINE_S} s")
    assert DEADLINE_S <= (deaths[0].at_ns - hung[0].since_ns) / 1e9 < DEADLINE_S + 5
