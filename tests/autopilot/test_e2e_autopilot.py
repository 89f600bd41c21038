"""The autopilot of a real server whose limit was set wrong: it searches the last minutes in a
process of its own, and sets the limit through its owner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from dashboards.source import journal_of
from lab.drills.client import Clients
from lab.drills.traffic import PlannedRequest, completion_body
from telemetry.facts.autopilot_records import AutopilotDecided
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import LimitsSet
from tests.support.servers.server import Server, eventually

pytestmark = pytest.mark.long

KEY = {"authorization": "Bearer inside"}
MODEL = "dummy:smollm2-135m"  # its steps take long enough for few to be replayed
FLAGS = (
    "--model", MODEL, "--max-num-seqs", "16", "--max-model-len", "512", "--debug-key",
    "inside",
)  # fmt: skip
RATE, SECONDS = 2.0, 400.0  # requests a second, of which one place serves about half
WITHIN_S = 240.0  # the search has the lowest priority, and a machine of tests is busy


@contextmanager
def overloaded(mode: str) -> Iterator[Server]:
    """A server with one place in the batch under open-loop traffic, until the block ends."""
    with Server(*FLAGS, "--autopilot", mode) as server:
        server.client.headers.update(KEY)
        wrong = {"max_num_seqs": 1, "by": "config", "why": "rolled out"}
        assert server.client.put("/debug/limits", json=wrong).status_code == 200
        stop = threading.Event()
        sender = threading.Thread(target=lambda: asyncio.run(send(server.port, stop)))
        sender.start()
        try:
            yield server
        except AssertionError:
            print(view(server), server.log())  # pytest shows it
            raise
        finally:
            stop.set()
            sender.join()


async def send(port: int, stop: threading.Event) -> None:
    draw, clock = Random(7), MonotonicClock()
    clients, at_s = Clients(port, clock, "c"), 0.0
    requests = []
    while at_s < SECONDS:
        prompt = [draw.randrange(20, 250) for _ in range(draw.randint(20, 60))]
        body = completion_body(prompt, draw.randint(20, 40))
        requests.append(PlannedRequest(at_s=at_s, body=body, tenant="a"))
        at_s += draw.expovariate(RATE)
    task = asyncio.create_task(clients.send_all(requests, clock.now_ns()))
    while not stop.is_set() and not task.done():
        await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await clients.cancel_open()


def view(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get("/debug/autopilot").json()
    return found


def decided(server: Server, decision: str) -> list[dict[str, Any]]:
    return [one for one in view(server)["decisions"] if one["decision"] == decision]


def test_a_limit_that_is_wrong_is_changed_by_the_autopilot() -> None:
    with overloaded("act") as server:
        (applied, *_) = eventually(lambda: decided(server, "applied"), "a change", WITHIN_S)
        limits = server.client.get("/debug/limits").json()["limits"]
        changed = {
            name: one["changed"] for name, one in limits.items() if name in applied["limits"]
        }
        metrics = server.client.get("/metrics").text
        with journal_of(server.url, "inside") as journal:
            facts = list(journal.facts())

    assert {one["by"] for one in changed.values() if one} <= {"autopilot"}
    assert "max_num_seqs" in applied["limits"]
    assert applied["limits"]["max_num_seqs"] > 1
    assert applied["promised"]["chat"] > applied["before"]["chat"]
    assert 'phasescope_autopilot_decisions_total{decision="applied"} 1' in metrics
    sets = [one for one in facts if isinstance(one, LimitsSet) and one.by == "autopilot"]
    said = [one for one in facts if isinstance(one, AutopilotDecided)]
    assert sets[0].why.startswith("chat ")
    assert [one.decision for one in said][:2] == ["proposed", "applied"]


def test_advice_changes_nothing() -> None:
    with overloaded("advise") as server:
        eventually(lambda: decided(server, "proposed"), "a proposal", WITHIN_S)
        limits = server.client.get("/debug/limits").json()
        line = server.snapshot()["autopilot"]

    assert limits["limits"]["max_num_seqs"]["value"] == 1
    assert {one["set"]["by"] for one in limits["changes"]} == {"config"}
    assert (line["mode"], line["decision"]) == ("advise", "proposed")


def test_what_it_does_is_for_the_inside_only_and_off_is_off() -> None:
    with Server(*FLAGS, "--autopilot", "off") as server:
        assert server.client.get("/debug/autopilot").status_code == 401
        server.client.headers.update(KEY)
        found = view(server)

    assert (found["mode"], found["state"], found["why_off"]) == ("off", "off", "--autopilot off")


def test_without_a_flight_recorder_it_says_that_it_is_off() -> None:
    with Server(*FLAGS, "--journal-memory", "0") as server:
        server.client.headers.update(KEY)
        found = view(server)
        log = server.log()

    assert "no flight recorder" in found["why_off"]
    assert "no autopilot: there is no flight recorder to replay" in log
