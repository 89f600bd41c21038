"""Limits of a real server change while it serves: route, command line, restart, replay."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dashboards.source import journal_of
from diagnosis.root_cause.whatif import identities_of
from service.cli.main import main
from telemetry.facts.engine_records import LimitsSet, SequenceAdmitted
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.server import Server, eventually

KEY = {"authorization": "Bearer inside"}
FLAGS = (
    "--model", "dummy:tiny", "--max-num-seqs", "8", "--max-batched-tokens", "64",
    "--max-model-len", "512", "--fairness", "vtc",
)  # fmt: skip


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[Server, OtlpReceiver]]:
    with OtlpReceiver() as receiver:
        flags = ("--otlp-endpoint", receiver.endpoint, "--debug-key", "inside")
        with Server(*FLAGS, *flags) as server:
            server.client.headers.update(KEY)
            yield server, receiver


@pytest.fixture
def server(traced: tuple[Server, OtlpReceiver]) -> Iterator[Server]:
    """With the limits of its start, before and after."""
    running, _ = traced
    yield running
    view = running.client.get("/debug/limits").json()["limits"]
    values = {name: one["at_start"] for name, one in view.items() if one["changed"]}
    values.pop("max_auto_tokens", None)
    if values:
        put(running, **values)


def put(server: Server, **body: Any) -> dict[str, Any]:
    answer = server.client.put("/debug/limits", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(server: Server, body: Any) -> tuple[int, str | None, str]:
    answer = server.client.put("/debug/limits", json=body)
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


def said(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    """`phasescope limits URL ...`"""
    command = [sys.executable, "-m", "service.cli.main", "limits", server.url, *words]
    environment = {**os.environ, "PHASESCOPE_DEBUG_KEY": "inside"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def load(server: Server, clients: int, turns: int = 3) -> None:
    """Several clients, one request after the other each."""

    def ask(number: int) -> None:
        for turn in range(turns):
            prompt = [20 + (number * 31 + turn * 7 + place) % 200 for place in range(40)]
            body = {"prompt": prompt, "max_tokens": 40, "ignore_eos": True, "temperature": 0}
            headers = {"x-tenant": "ab"[number % 2]}
            httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_route_wants_the_key_of_the_inside(server: Server) -> None:
    for method in ("GET", "PUT"):
        with httpx.Client(base_url=server.url) as stranger:
            answer = stranger.request(method, "/debug/limits", json={"max_num_seqs": 2})
            assert answer.status_code == 401
    assert server.client.get("/debug/limits").json()["limits"]["max_num_seqs"]["value"] == 8


def test_a_change_is_answered_with_what_is_in_force(server: Server) -> None:
    view = put(server, max_num_seqs=3, tenant_weights={"a": 2}, by="ann", why="a flood")
    limit = view["limits"]["max_num_seqs"]
    assert (limit["value"], limit["at_start"]) == (3, 8)
    assert (limit["changed"]["by"], limit["changed"]["why"]) == ("ann", "a flood")
    assert limit["changed"]["ago_s"] < 60
    assert view["limits"]["queue_limit"]["changed"] is None
    assert view["changes"][-1]["limits"] == {"max_num_seqs": 3, "tenant_weights": {"a": 2.0}}
    seen = eventually(lambda: server.snapshot()["limits_changed"], "the change in the snapshot")
    assert seen["max_num_seqs"] == {"value": 3, "at_start": 8}
    assert server.snapshot()["max_seqs"] == 3


@pytest.mark.parametrize(
    ("body", "param", "allowed"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs", "a whole number from 1 on"),
        ({"max_num_seqs": 9}, "max_num_seqs", "1 to 8"),
        ({"max_num_seqs": None}, "max_num_seqs", "a whole number"),
        ({"max_batched_tokens": "all"}, "max_batched_tokens", "auto, or a whole number"),
        ({"max_batched_tokens": 1 << 20}, "max_batched_tokens", "at most "),
        ({"max_auto_tokens": 32}, "max_auto_tokens", "only with max_batched_tokens auto"),
        ({"itl_target_ms": 0}, "itl_target_ms", "a number above 0"),
        ({"tenant_weights": {"a": 0}}, "tenant_weights", "from 0.001 to 1000"),
        ({"tenant_weights": {"a" * 65: 1}}, "tenant_weights", "at most 256 tenants"),
        ({"tenant_weights": dict.fromkeys(map(str, range(257)), 1)}, "tenant_weights", "256"),
        ({"prefix_cache": "off"}, "prefix_cache", "true or false"),
        ({"speculative_tokens": 2}, "speculative_tokens", "without --speculative-tokens"),
        ({"order": "fifo"}, "order", "slo or arrival"),
        ({"max_num_seqs": 2, "why": "x" * 201}, "why", "200"),
        ({"max_num_seqs": 2, "by": "\x1b[31m"}, "by", "printable"),
        ({"max_seqs": 2}, "max_seqs", "the limits are max_batched_tokens, "),
        ({}, None, "nothing to change"),
        ({"by": "ann"}, None, "nothing to change"),
    ],
)
def test_a_wrong_change_is_refused_by_its_name_with_what_is_allowed(
    server: Server, body: Any, param: str | None, allowed: str
) -> None:
    before = server.client.get("/debug/limits").json()["limits"]
    status, named, message = refused(server, body)
    assert (status, named) == (400, param)
    assert allowed in message
    assert server.client.get("/debug/limits").json()["limits"] == before


def test_events_are_known_before_the_requests_that_have_them_are_exported(server: Server) -> None:
    """A change and the end of a request may come in one piece, and the exporter begins at once."""
    text = server.client.get("/metrics").text
    order = re.findall(r'phasescope_fold_seconds_total\{fold="(\w+)"\}', text)

    assert order.index("limit_events") < order.index("phases")
    assert order.index("autopilot_events") < order.index("phases")


def test_a_change_is_an_event_on_the_spans_of_who_was_served(
    traced: tuple[Server, OtlpReceiver], server: Server
) -> None:
    _, receiver = traced
    changed = threading.Event()

    def ask(name: str) -> None:
        """One request after another, so that some are served when the limit changes."""
        number = 0
        while not changed.is_set():
            body = {"prompt": [20, 21], "max_tokens": 500, "ignore_eos": True}
            headers = {"x-request-id": f"long-{name}-{number}"}
            httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60)
            number += 1

    clients = [threading.Thread(target=ask, args=(name,), daemon=True) for name in "ab"]
    for client in clients:
        client.start()
    eventually(lambda: server.snapshot()["running"], "a running sequence")
    put(server, max_num_seqs=2, by="ann", why="a flood")
    changed.set()
    for client in clients:
        client.join(60)

    def events() -> list[dict[str, Any]]:
        trees = [t for t in receiver.trees() if "long-" in str(t.attribute("gen_ai.request.id"))]
        roots = [tree.root for tree in trees]
        found = [event for root in roots for event in root.events]
        return [
            {one.key: one.value.string_value for one in event.attributes}
            for event in found
            if event.name == "phasescope.limits_changed"
        ]

    wanted = {
        "phasescope.limits.changed": "max_num_seqs",
        "phasescope.limits.by": "ann",
        "phasescope.limits.why": "a flood",
    }
    assert all(event == wanted for event in eventually(events, "the event of the change"))


def test_the_command_shows_and_changes(server: Server) -> None:
    done = said(server, "max-num-seqs=2", "tenant_weights=a:2,b:0.5", "--why", "a flood")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("max_num_seqs"))
    assert line.split()[:3] == ["max_num_seqs", "2", "8"]
    assert line.endswith("ago by operator: a flood")
    assert "a:2,b:0.5" in done.stdout
    done = said(server, "tenant_weights=none", "itl_target_ms=none", "prefix_cache=off", "--json")
    view = json.loads(done.stdout)["limits"]
    assert (view["tenant_weights"]["value"], view["prefix_cache"]["value"]) == ({}, False)


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["max_num_seqs=9"], 1, "answers 400: max_num_seqs: 1 to 8"),
        (["batch=9"], 1, "the limits are max_batched_tokens"),
        (["itl_target_ms=nan"], 1, "itl_target_ms: a number above 0"),
        (["max_num_seqs"], 2, "give NAME=VALUE"),
        (["tenant_weights=a"], 2, "give TENANT:WEIGHT"),
        (["--why", "no reason"], 2, "give NAME=VALUE"),
        (["max_num_seqs=3", "--debug-key", "wrong"], 1, "give --debug-key"),
    ],
)
def test_a_wrong_command_is_one_line_with_what_to_do(
    server: Server,
    words: list[str],
    code: int,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PHASESCOPE_DEBUG_KEY", "inside")

    assert main(["limits", server.url, *words]) == code

    out, errors = capsys.readouterr()
    assert out == ""
    assert line in errors
    assert len(errors.splitlines()) == 1


def test_an_engine_that_does_not_answer_is_no_success_and_may_still_obey(server: Server) -> None:
    engine_pid = server.snapshot()["engine_pid"]
    os.kill(engine_pid, signal.SIGSTOP)
    try:
        late = server.client.put("/debug/limits", json={"max_num_seqs": 2})
        hung = server.client.put("/debug/limits", json={"max_num_seqs": 3})
        view = server.client.get("/debug/limits").json()["limits"]
    finally:
        os.kill(engine_pid, signal.SIGCONT)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "limits_not_confirmed")
    assert (hung.status_code, hung.json()["error"]["code"]) == (503, "engine_not_responding")
    assert view["max_num_seqs"]["value"] == 8

    def value() -> int:
        limits = server.client.get("/debug/limits").json()["limits"]
        return int(limits["max_num_seqs"]["value"])

    eventually(lambda: value() == 2, "the change that was late")
    eventually(server.is_ready, "readiness again")


def test_changes_under_load_replay_exactly_and_an_engine_that_is_replaced_keeps_them() -> None:
    """Of each engine every decision comes out again, the changes among them."""
    with Server(*FLAGS) as server:
        changes = (
            {"max_num_seqs": 2}, {"max_batched_tokens": 4, "prefix_cache": False},
            {"tenant_weights": {"a": 3}, "max_batched_tokens": 64}, {"max_num_seqs": 8},
            {"prefix_cache": True, "tenant_max_seqs": 1}, {"tenant_max_seqs": None},
            {"max_batched_tokens": "auto", "max_auto_tokens": 32, "max_num_seqs": 4},
        )  # fmt: skip
        busy = threading.Thread(target=load, args=(server, 10))
        busy.start()
        for change in changes:
            put(server, **change)
            server.completion(prompt=[20, 21], max_tokens=8)
        busy.join()
        eventually(server.is_empty, "an empty engine")
        kept = {
            name: one["value"]
            for name, one in server.client.get("/debug/limits").json()["limits"].items()
        }

        os.kill(server.snapshot()["engine_pid"], signal.SIGKILL)
        eventually(lambda: not server.is_ready(), "unreadiness", 5)
        answer = server.client.put("/debug/limits", json={"max_num_seqs": 2})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert server.client.get("/debug/limits").status_code == 503
        eventually(server.is_ready, "readiness again", 120)
        load(server, 6, turns=1)
        view = server.client.get("/debug/limits").json()
        assert {name: one["value"] for name, one in view["limits"].items()} == kept
        assert view["changes"][-1]["set"]["by"] == "restart"
        assert view["limits"]["max_num_seqs"]["changed"]["by"] == "operator"

        with journal_of(server.url) as journal:
            identities = identities_of(journal)
            facts = list(journal.facts())
    assert [one.difference for one in identities] == [None, None]
    assert all(one.steps > 10 for one in identities)
    limits = [fact for fact in facts if isinstance(fact, LimitsSet)]
    assert len(limits) == len(changes) + 1
    again = facts.index(limits[-1])
    first = next(n for n, f in enumerate(facts) if n > again and isinstance(f, SequenceAdmitted))
    assert first > again
