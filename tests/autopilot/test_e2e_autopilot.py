"""The autopilot of a real server: who may see it, and when it is off. That it changes a limit that
was set wrong is measured live by `python -m benchmarks.autopilot`."""

from __future__ import annotations

from typing import Any

from tests.support.servers.server import Server

KEY = {"authorization": "Bearer inside"}
FLAGS = ("--model", "dummy:tiny", "--max-num-seqs", "16", "--debug-key", "inside")


def view(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get("/debug/autopilot").json()
    return found


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
