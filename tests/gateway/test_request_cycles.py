"""What a gateway costs beside its engine: an ended request is freed at once, without reference
cycles for the garbage collector, and numpy uses one thread."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.server import Server, eventually, sse_events

HOOKS = Path(__file__).parents[1] / "support" / "hooks"
BEGIN, REPORT = signal.SIGRTMIN + 7, signal.SIGRTMIN + 8
COMPLETIONS = "/v1/completions"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="realtime signals")


def stream(server: Server, **body: Any) -> list[Any]:
    body = {"prompt": "x", "stream": True, "max_tokens": 20, "ignore_eos": True, **body}
    with server.client.stream("POST", COMPLETIONS, json=body) as answer:
        assert answer.status_code == 200
        return sse_events(answer.iter_lines())


def end_early(server: Server, is_deleted: bool) -> None:
    """A stream that is deleted, or whose client disconnects, after its first token.

    It is so long that it cannot end before: socket buffers hold a fraction of it.
    """
    body = {"prompt": "x", "stream": True, "max_tokens": 2000, "ignore_eos": True, "logprobs": 20}
    with server.client.stream("POST", COMPLETIONS, json=body) as answer:
        request_id = answer.headers["x-request-id"]
        lines = answer.iter_lines()
        next(lines)
        if is_deleted:
            path = f"/v1/requests/{request_id}"
            assert server.client.delete(path).status_code == 200
            assert "error" in sse_events(lines)[-1]
    assert server.facts_of(request_id)["outcome"] == "cancelled"


def use(server: Server) -> None:
    """Requests that end in every way."""
    for _ in range(3):
        assert stream(server)[-1] == "[DONE]"
        assert stream(server, n=2, stream_options={"include_usage": True})[-1] == "[DONE]"
        assert server.completion(max_tokens=20).status_code == 200
        assert server.completion(max_tokens=10**6).status_code == 400
        # refused by the engine, after it was submitted
        assert server.completion(guided_grammar="start: missing").status_code == 400
        end_early(server, is_deleted=True)
        end_early(server, is_deleted=False)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, int], list[int]]:
    """After requests of all kinds: the objects that the gateway left to the garbage collector, by
    name, and the threads of its libraries of linear algebra."""
    folder = tmp_path_factory.mktemp("garbage")
    path = os.pathsep.join(filter(None, (str(HOOKS), os.environ.get("PYTHONPATH"))))
    env = {"PHASESCOPE_GARBAGE": str(folder), "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "2"}
    with Server("--model", "dummy:tiny", env=env) as server:
        pid = server.process.pid
        use(server)  # what is created once
        eventually(server.is_empty, "an empty engine")
        os.kill(pid, BEGIN)
        eventually((folder / f"{pid}.begun").exists, "a first collection")

        use(server)
        eventually(server.is_empty, "an empty engine")
        os.kill(pid, REPORT)
        report = folder / f"{pid}.json"
        eventually(report.exists, "the report of the garbage")
    threads = (folder / f"{pid}.threads").read_text()
    return json.loads(report.read_text()), json.loads(threads)


def test_no_object_of_the_gateway_waits_for_the_garbage_collector(
    reported: tuple[dict[str, int], list[int]],
) -> None:
    """Streams, whole answers, refused and cancelled requests are all freed by reference counts."""
    counts, _ = reported
    assert {name: n for name, n in counts.items() if name.startswith("service.gateway")} == {}


def test_the_gateway_keeps_no_core_busy_with_linear_algebra(
    reported: tuple[dict[str, int], list[int]],
) -> None:
    """Its fits are small, and threads that wait for each other would take the engine's cores."""
    _, threads = reported
    assert set(threads) == {1}
