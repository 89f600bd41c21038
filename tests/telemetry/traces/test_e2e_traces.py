"""Each request is one tree at a real receiver, whatever became of the request."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.otlp_trees import attribute
from tests.support.servers.server import Server, eventually, free_port

ALL_PHASES = [
    "gateway.accept",
    "gateway.parse",
    "tokenize",
    "queue",
    "prefill",
    "decode",
    "detokenize",
    "deliver",
]


def test_a_finished_request_is_one_tree_under_the_callers_span(
    server: Server, receiver: OtlpReceiver
) -> None:
    """The incoming traceparent is the root's parent; all phases tile the root."""
    trace_id, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    answer = server.client.post(
        "/v1/completions",
        json={"prompt": "The sea is", "max_tokens": 5, "ignore_eos": True, "temperature": 0},
        headers={"traceparent": f"00-{trace_id}-{caller}-01", "x-tenant": "blue"},
    )
    tree = receiver.tree_of(answer.headers["x-request-id"])
    tree.check()

    assert tree.trace_id == trace_id
    assert tree.root.parent_span_id.hex() == caller
    assert tree.root.name == "text_completion SmolLM2-135M-Instruct"
    assert [span.name for span in tree.children(tree.root)] == ALL_PHASES
    assert len(tree.named("prefill.chunk")) == 1
    assert tree.attribute("gen_ai.usage.output_tokens") == 5
    assert tree.attribute("phasescope.tenant") == "blue"
    facts = server.facts_of(answer.headers["x-request-id"])
    assert facts["trace_id"] == trace_id
    length_ns = tree.root.end_time_unix_nano - tree.root.start_time_unix_nano
    assert length_ns == facts["e2e_ns"]


def test_a_long_prompt_has_one_child_span_a_chunk(server: Server, receiver: OtlpReceiver) -> None:
    """300 tokens under a budget of 128 are three chunks, in order, under prefill."""
    prompt = list(range(100, 400))
    with server.fixed_budget(128):
        answer = server.completion(prompt=prompt, max_tokens=1)
    tree = receiver.tree_of(answer.headers["x-request-id"])
    tree.check()

    (prefill,) = tree.named("prefill")
    chunks = tree.children(prefill)
    assert [chunk.name for chunk in chunks] == ["prefill.chunk"] * 3
    sizes = [attribute(chunk, "phasescope.chunk.tokens") for chunk in chunks]
    assert sizes == [128, 128, 44]
    contexts = [attribute(chunk, "phasescope.chunk.context_tokens") for chunk in chunks]
    assert contexts == [0, 128, 256]


def test_a_rejected_request_has_its_tree(server: Server, receiver: OtlpReceiver) -> None:
    """Bad JSON ends in the parse phase and is told apart from an engine's fault."""
    answer = server.client.post("/v1/completions", content=b"{not json")
    tree = receiver.tree_of(answer.headers["x-request-id"])
    tree.check()

    assert [span.name for span in tree.children(tree.root)] == ALL_PHASES[:2]
    assert tree.attribute("phasescope.outcome") == "rejected"
    assert tree.attribute("error.type") == "invalid_json"
    assert tree.attribute("http.response.status_code") == 400


def test_a_cancelled_request_has_its_tree(server: Server, receiver: OtlpReceiver) -> None:
    """The phase in which the client left is marked as cut."""
    body = {"prompt": "Count:", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        request_id = answer.headers["x-request-id"]
        next(answer.iter_lines())
    tree = receiver.tree_of(request_id)
    tree.check()

    assert tree.attribute("phasescope.reason") == "disconnect"
    last = tree.children(tree.root)[-1]
    assert last.name == "decode"
    assert attribute(last, "phasescope.truncated") is True


def test_a_caller_who_does_not_sample_is_respected(server: Server, receiver: OtlpReceiver) -> None:
    """Flag 00 in the traceparent: served, recorded, not exported."""
    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-00"}
    quiet = server.client.post(
        "/v1/completions", json={"prompt": "Hi", "max_tokens": 1}, headers=headers
    )
    loud = server.completion(max_tokens=1)
    receiver.tree_of(loud.headers["x-request-id"])

    assert server.facts_of(quiet.headers["x-request-id"])["outcome"] == "finished"
    ids = [tree.attribute("gen_ai.request.id") for tree in receiver.trees()]
    assert quiet.headers["x-request-id"] not in ids


def test_spans_reach_an_http_receiver_named_by_the_standard_variables() -> None:
    """OTEL_EXPORTER_OTLP_ENDPOINT and _PROTOCOL are enough."""
    with OtlpReceiver(protocol="http") as http:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": http.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_SERVICE_NAME": "blue-service",
        }
        with Server("--model", "dummy:tiny", env=env) as server:
            answer = server.completion(max_tokens=2)
            tree = http.tree_of(answer.headers["x-request-id"])
            tree.check()

    assert tree.resource["service.name"] == "blue-service"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_an_independent_agent_reads_our_spans(protocol: str, tmp_path: Path) -> None:
    """rotel, an OTLP agent in Rust, prints the tree that we sent."""
    rotel = pytest.importorskip("rotel")
    binary = Path(rotel.__file__).parent / "rotel-agent"
    grpc_port, http_port = free_port(), free_port()
    log = tmp_path / "rotel.log"
    command = [str(binary), "start", "--exporter", "blackhole"]
    command += ["--debug-log", "traces", "--debug-log-verbosity", "detailed"]
    command += ["--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}"]
    command += ["--otlp-http-endpoint", f"127.0.0.1:{http_port}"]
    port = grpc_port if protocol == "grpc" else http_port
    with log.open("wb") as sink:
        agent = subprocess.Popen(
            command, stdout=sink, stderr=sink, env={**os.environ, "NO_COLOR": "1"}
        )
        try:
            eventually(lambda: _listens(port), "rotel's start")
            flags = ("--otlp-endpoint", f"http://127.0.0.1:{port}", "--otlp-protocol", protocol)
            with Server("--model", "dummy:tiny", *flags) as server:
                answer = server.completion(max_tokens=2)
                request_id = answer.headers["x-request-id"]
                facts = server.facts_of(request_id)
                told = [facts["trace_id"], request_id, *ALL_PHASES]
                eventually(lambda: names_all(log.read_text(), told), "our trace in rotel")
        finally:
            agent.terminate()
            agent.wait(10)


def names_all(text: str, names: list[str]) -> bool:
    return all(re.search(rf"\b{re.escape(name)}\b", text) for name in names)


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
