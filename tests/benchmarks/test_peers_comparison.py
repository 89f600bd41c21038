"""The peer comparison's own rules, on real processes and files; peers are not needed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.fleet import Server
from benchmarks.peers.layout import HOST, Layout, PeerError, run
from benchmarks.peers.recipes import Group, Recipe, Start
from benchmarks.peers.store import Store
from benchmarks.peers.table import advantage, render

# a server on {port} whose child, in a session of its own, counts lines into a file
_PARENT = """
import http.server, subprocess, sys
child = "import time\\nwhile True: open(r'{file}', 'a').write('.'); time.sleep(0.01)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200); self.end_headers()
        self.wfile.write(b'{{"data": [{{"id": "m"}}]}}')
    do_GET = do_POST = answer
    def log_message(self, *_): pass
http.server.HTTPServer(("{host}", {port}), Handler).serve_forever()
"""


def cell(server: str, value: float, repetition: int = 1, **more: Any) -> dict[str, Any]:
    where = {"group": "bf16", "load": "c1", "repetition": repetition, "server": server}
    return {**where, "figures": {"tokens_per_s": value}, "checks": {"problems": []}, **more}


def test_a_paused_server_and_its_children_stand_still_and_stopping_ends_them(
    tmp_path: Path,
) -> None:
    """Also a child that left the process group; otherwise it would spin beside the others."""
    marks = tmp_path / "marks"

    def start(port: int, budget: int | None) -> Start:
        code = _PARENT.format(file=marks, host=HOST, port=port)
        return Start([sys.executable, "-c", code])

    recipe = Recipe("toy", Group.BF16, 1, "none", tmp_path, start)
    server = Server(recipe, None, Layout(tmp_path))
    try:
        server.launch()
        _until(lambda: marks.exists() and marks.stat().st_size > 0)
        tree = server.tree()
        assert len(tree) == 2

        server.pause()
        _until(lambda: all(_state(pid) == "T" for pid in tree))
        size = marks.stat().st_size
        time.sleep(0.1)  # the child would write ten times; one that stands still never does
        assert marks.stat().st_size == size

        server.resume()
        _until(lambda: marks.stat().st_size > size)
    finally:
        server.stop()

    assert not [pid for pid in tree if _state(pid) not in ("", "Z")]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _until(condition: Any, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.01)


def test_a_factor_above_one_is_ahead_of_the_best_peer_whichever_way_the_figure_points() -> None:
    """Ours is left out of the best, so that it is compared to others only."""
    ours, peer, slower = cell("phasescope", 30.0), cell("vllm", 20.0), cell("openvino", 10.0)

    assert advantage(ours, [ours, peer, slower], "tokens_per_s", True) == 1.5
    assert advantage(ours, [ours, peer, slower], "tokens_per_s", False) == 10 / 30
    assert advantage(ours, [ours], "tokens_per_s", True) is None


def test_a_cell_that_did_not_measure_what_it_should_is_shown_and_not_counted() -> None:
    """Neither as a value nor as the best peer."""
    wrong = cell("vllm", 99.0, checks={"problems": ["vllm: output of 3 to 3 tokens"]})
    cells = [
        wrong,
        cell("openvino", 10.0),
        cell("phasescope", 20.0),
        {**cell("x", 1), "error": "e"},
    ]
    about = {"cpu": "c", "cores": 2, "instructions": [], "memory_gib": 1, "load_average_1_min": 0}
    data = {"cells": cells, "calibrations": [], "servers": {}, "failed": {}}

    page = render({**data, "about": {"machine": about}})

    assert "| vllm | - |" in page
    assert "| phasescope | 20 (20 to 20), x2.00 |" in page
    assert "- vllm not counted: vllm: output of 3 to 3 tokens" in page


def test_a_cut_round_is_measured_again_and_other_settings_are_refused(tmp_path: Path) -> None:
    """Rounds are the unit of comparison, so half of one is worth nothing."""
    path = tmp_path / "peers.json"
    store = Store(path, {"scale": 1.0}, {})
    store.add_cell(**cell("vllm", 1.0))
    store.add_cell(**cell("openvino", 1.0))
    store.add_cell(**cell("vllm", 1.0, repetition=2))

    again = Store(path, {"scale": 1.0}, {})
    assert again.has_round("bf16", "c1", 1, ["vllm", "openvino"])
    assert not again.has_round("bf16", "c1", 2, ["vllm", "openvino"])
    again.drop_round("bf16", "c1", 2)
    assert [one["repetition"] for one in again.data["cells"]] == [1, 1]
    with pytest.raises(PeerError, match="--fresh"):
        Store(path, {"scale": 2.0}, {})


def test_a_command_that_fails_says_its_last_lines(tmp_path: Path) -> None:
    """An installer that only said 'failed' would help nobody."""
    command = ["sh", "-c", "echo building; echo no such header >&2; exit 3"]

    with pytest.raises(PeerError, match="status 3: building / no such header"):
        run("building", command, tmp_path / "log")


def test_spans_are_counted_in_a_process_of_their_own() -> None:
    """The receiver that phasescope exports to while it is measured."""
    import grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from benchmarks.peers.span_counter import SpanReceiver

    request = trace_service_pb2.ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.spans.extend([Span(span_id=b"1"), Span(span_id=b"2", parent_span_id=b"1")])
    with SpanReceiver() as receiver:
        with grpc.insecure_channel(receiver.endpoint.removeprefix("http://")) as channel:
            stub = trace_service_pb2_grpc.TraceServiceStub(channel)
            stub.Export(request)
        assert receiver.counts() == {"spans": 2, "traces": 1, "exports": 1}
