"""Pauses of a real server: injected from outside, found by telemetry, charged to requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.host.pauses import Injected, Injector, gaps_of, judge
from tests.support.servers.server import Server, eventually

GC_CONTAINERS = 1_000_000
BLOCK_MS = 250


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Injector]]:
    injector = Injector(tmp_path_factory.mktemp("faults"))
    flags = ("--model", "dummy:tiny", "--threads", "1", "--peak-gb-per-s", "10")
    with Server(*flags, env=injector.env) as server:
        yield server, injector


class Streams:
    """Two streams at all times while the block runs, with the moments at which they read."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stamps: dict[str, list[int]] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]

    def __enter__(self) -> Streams:
        for thread in self._threads:
            thread.start()
        eventually(lambda: self._server.snapshot()["running"] > 0, "a running stream")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def stood_still(self, pause: Injected, process: str) -> bool:
        """Whether one of them read nothing for half of the pause at least, and was with the paused
        process before it and after it: a client that the machine held up stands still as well."""
        eventually(lambda: self._read_since(pause.end_ns), "a token after the pause")
        stamps = dict(self._stamps)
        return any(
            stamps[name][0] < pause.begin_ns and self._was_live_at(name, process, pause.end_ns)
            for name in gaps_of(stamps, pause)
        )

    def _was_live_at(self, request_id: str, process: str, at_ns: int) -> bool:
        """Told by its end: until that is known it may be over, and telemetry behind with it."""
        facts = self._server.facts_of(request_id)
        of_process = facts["sequences"] if process == "engine" else [facts]
        return any(one["ended_ns"] > at_ns for one in of_process)

    def _read_since(self, since_ns: int) -> bool:
        return any(stamps[-1] > since_ns for stamps in list(self._stamps.values()))

    def _run(self) -> None:
        body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True}
        while not self._stop.is_set():
            with self._server.client.stream("POST", "/v1/completions", json=body) as answer:
                stamps = self._stamps[answer.headers["x-request-id"]] = [time.perf_counter_ns()]
                stamps.extend(time.perf_counter_ns() for _ in answer.iter_lines())


def pauses(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.client.get("/debug/host").json()["pauses"]
    return found


@pytest.mark.parametrize("process", ["engine", "gateway"])
@pytest.mark.parametrize("kind", ["gc", "sleep"])
def test_an_injected_pause_is_found_measured_and_charged(
    watched: tuple[Server, Injector], process: str, kind: str
) -> None:
    """The one who injects keeps its own stamps and tells telemetry nothing; so do the clients, who
    say whether it fell into a stream or between two."""
    server, injector = watched
    pid = server.snapshot()["engine_pid"] if process == "engine" else server.process.pid
    if kind == "gc":
        injector.inject(process, pid, "heap", GC_CONTAINERS)

    def paused_a_stream() -> Injected | None:
        done = injector.inject(process, pid, kind, BLOCK_MS)
        return done if streams.stood_still(done, process) else None

    with Streams(server) as streams:
        done = eventually(paused_a_stream, "a pause during a stream", 60)
        (verdict,) = eventually(
            lambda: [v for v in judge([done], pauses(server)) if v.reported is not None],
            f"the report of {done}",
        )

    assert verdict.error < 0.5  # of the right size; how exact it is benchmarks.host.pauses says
    assert verdict.reported["victims_total"] >= 1
    assert verdict.reported["victims"][0]["lost_ns"] > 0
    if (process, kind) == ("engine", "gc"):
        assert verdict.reported["detail"].startswith("generation 2, ")


def test_the_machine_is_sampled_and_exposed(watched: tuple[Server, Injector]) -> None:
    """Numbers or reasons, in the debug view and as metrics."""
    server, _ = watched
    host = eventually(
        lambda: (found := server.client.get("/debug/host").json())["sample"] and found,
        "the first sample",
    )
    server.completion(max_tokens=20, ignore_eos=True)
    families = {
        family.name: family
        for family in text_string_to_metric_families(server.client.get("/metrics").text)
    }
    host_values = {s.labels["quantity"]: s.value for s in families["phasescope_host"].samples}

    assert host["gpus"][0]["status"] == "ok" or "unavailable" in host["gpus"][0]["status"]
    assert host_values["gateway_resident_bytes"] > 10 << 20
    for quantity in host["unavailable"]:
        assert quantity not in host_values or host["sample"][quantity] is None
    assert families["phasescope_modelled_bytes"].samples
    assert families["phasescope_mbu"].samples


def test_the_roofline_of_a_cpu_is_what_was_stated(watched: tuple[Server, Injector]) -> None:
    server, _ = watched
    server.completion(max_tokens=50, ignore_eos=True)
    view = server.client.get("/debug/roofline").json()

    assert (view["peak_gb_per_s"], view["peak_gflop_per_s"]) == (10, None)
    assert view["peak_source"] == "stated at the start"
    assert view["achieved"]["decode"]["mbu"] > 0
    assert view["achieved"]["decode"]["mfu"] is None
    assert view["bandwidth"]["provenance"] == "model"


def test_the_machine_can_be_left_unwatched() -> None:
    with Server("--model", "dummy:tiny", "--threads", "1", "--no-host-telemetry") as server:
        server.completion(max_tokens=5)
        host = server.client.get("/debug/host").json()
        text = server.client.get("/metrics").text

    assert (host["sample"], host["pauses"], host["totals"]) == (None, [], [])
    assert host["gpus"] == [{"status": "unavailable: not started"}]
    assert "phasescope_host" not in text


def test_a_peak_that_cannot_be_is_refused(tmp_path: Path) -> None:
    from tests.support.servers.server import spawn

    with (tmp_path / "log").open("wb") as log:
        process = spawn("serve", "--model", "dummy:tiny", "--peak-gb-per-s", "0", stderr=log)
        code = process.wait(60)

    assert code == 2
    assert "--peak-gb-per-s must be positive" in (tmp_path / "log").read_text()
