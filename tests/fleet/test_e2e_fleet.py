"""A fleet of processes: two nodes, two gateways, and a server of one engine to compare with.

These start many processes and are left to `make test-slow`; `test_fleet_world` has the same
behaviour in one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.servers.fleet import FleetFile, FleetGateway, Node
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.server import Server, eventually, free_port, sse_events

MODEL = ("--model", "dummy:tiny")
BODY = {"prompt": "Count:", "max_tokens": 12, "temperature": 0.9, "seed": 3, "ignore_eos": True}
LONG = BODY | {"max_tokens": 1900, "stream": True}
DOC = Path(__file__).parents[2] / "docs" / "operate" / "fleet.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def traces() -> Iterator[OtlpReceiver]:
    with OtlpReceiver(protocol="grpc") as running:
        yield running


@pytest.fixture(scope="module")
def nodes(folder: Path, traces: OtlpReceiver) -> Iterator[list[Node]]:
    with contextlib.ExitStack() as stack:
        otlp = ("--otlp-endpoint", traces.endpoint)
        yield [stack.enter_context(Node(folder, *MODEL, *otlp)) for _ in range(2)]


@pytest.fixture(scope="module")
def gateways(folder: Path, nodes: list[Node], traces: OtlpReceiver) -> Iterator[list[FleetGateway]]:
    with contextlib.ExitStack() as stack:
        engines = FleetFile(folder, nodes)
        otlp = ("--otlp-endpoint", traces.endpoint)
        found = [stack.enter_context(FleetGateway(engines, *MODEL, *otlp)) for _ in range(2)]
        for gateway in found:
            all_ready(gateway)
        yield found


def all_ready(gateway: FleetGateway) -> None:
    eventually(lambda: set(gateway.states().values()) == {"ready"}, "all engines ready", 60)


def ask(server: Server, request_id: str, **more: Any) -> httpx.Response:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        headers = {"x-request-id": request_id}
        return client.post("/v1/completions", json={**BODY, **more}, headers=headers)


@contextlib.contextmanager
def stream(server: Server, request_id: str) -> Iterator[Iterator[str]]:
    """Lines of a long answer."""
    headers = {"x-request-id": request_id}
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=LONG, headers=headers) as answer,
    ):
        yield answer.iter_lines()


def said(answer: httpx.Response) -> list[Any]:
    """Texts and tokens; log-probabilities differ in the last digits with the batch."""
    choices = answer.json()["choices"]
    tokens = [(one.get("logprobs") or {}).get("tokens") for one in choices]
    return [(one["text"], one["finish_reason"]) for one in choices] + tokens


def test_a_fleet_says_what_one_engine_says(gateways: list[FleetGateway]) -> None:
    asked: list[dict[str, Any]] = [
        {"temperature": 0},
        {},
        {"n": 3, "seed": 11},
        {"prompt": ["a", "b"], "logprobs": 2},
        {"stop": ["e"], "max_tokens": 60},
        {"prompt": "x " * 400, "echo": True, "logprobs": 1, "max_tokens": 3},
        {"response_format": {"type": "json_object"}, "ignore_eos": False},
    ]
    with Server(*MODEL) as alone:
        for index, body in enumerate(asked):
            expected = ask(alone, f"one-{index}", **body)
            for gateway in gateways:
                found = ask(gateway, f"one-{index}", **body)
                assert found.status_code == expected.status_code, found.text
                assert said(found) == said(expected)
                usage, wanted = found.json()["usage"], expected.json()["usage"]
                assert usage["completion_tokens"] == wanted["completion_tokens"]


@pytest.mark.parametrize(("kv_dtype", "memory"), [("auto", "128KiB"), ("int8", "80KiB")])
def test_texts_are_those_of_one_engine_with_prefix_hits_and_preemption(
    folder: Path, kv_dtype: str, memory: str
) -> None:
    """Two engines with little memory, and many requests at once that begin alike."""
    roomy = (*MODEL, "--kv-dtype", kv_dtype, "--max-model-len", "384")
    tight = (*roomy, "--kv-memory", memory)
    common = "The same beginning of all of these requests, which is long enough for blocks. "
    bodies = [
        {"prompt": common + str(index), "seed": index, "max_tokens": 100} for index in range(24)
    ]
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(Server(*roomy))
        pair = [stack.enter_context(Node(folder, *tight)) for _ in range(2)]
        gateway = stack.enter_context(FleetGateway(FleetFile(folder, pair), *MODEL))
        all_ready(gateway)
        with ThreadPoolExecutor(24) as threads:
            found = list(threads.map(lambda n: ask(gateway, f"k-{n}", **bodies[n]), range(24)))
        expected = [ask(alone, f"k-{index}", **body) for index, body in enumerate(bodies)]
        assert [said(one) for one in found] == [said(one) for one in expected]
        usages = [one.json()["usage"]["prompt_tokens_details"] for one in found]
        assert sum(one["cached_tokens"] for one in usages) > 0
        assert sum(node.snapshot()["preemptions_total"] for node in pair) > 0
        for index in range(24):
            assert gateway.facts_of(f"k-{index}")["ledger"]["residue_ns"] == 0
        for node in pair:
            eventually(node.is_empty, "an empty node")


def test_the_parts_of_each_request_add_up_and_its_spans_are_one_tree(
    gateways: list[FleetGateway], traces: OtlpReceiver
) -> None:
    for index in range(6):
        request_id = f"sum-{index}"
        gateway = gateways[index % 2]
        assert ask(gateway, request_id, n=1 + index % 2).status_code == 200
        found = gateway.facts_of(request_id)
        ledger = found["ledger"]
        assert sum(entry["ns"] for entry in ledger["entries"]) == found["e2e_ns"]
        names = {entry["part"] for entry in ledger["entries"]}
        assert names & {"wire", "wire_out", "wire_back"}
        assert "own_prefill" in names or "base" in names
        assert "not_observed" not in names

        def whole(trees: list[Any], wanted: str = request_id) -> bool:
            mine = [t for t in trees if t.attribute("gen_ai.request.id") == wanted]
            roots = [s for t in mine for s in t.spans if s.name == t.root.name]
            return len(mine) == 1 and len(roots) >= 2

        traces.wait_for(whole, f"one tree with a node's spans in it for {request_id}")


def test_what_another_fleet_would_have_given_follows_from_what_the_gateway_recorded(
    folder: Path, nodes: list[Node]
) -> None:
    with FleetGateway(FleetFile(folder, nodes), *MODEL) as gateway:
        all_ready(gateway)
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda i: ask(gateway, f"if-{i}", n=1 + i % 2), range(24)))
        assert {answer.status_code for answer in answers} == {200}

        exact = replayed(gateway, "--exact")
        more = replayed(gateway, "--set", "engines=3", "--set", "policy=round_robin")

    assert exact == {"choices": 24, "differing": 0, "undecidable": 0}
    assert more["requests"] == 36
    for run in (more["recorded"], more["replayed"], more["changed"]):
        (outcome,) = run["outcomes"]["classes"].values()
        assert (outcome["requests"], outcome["output_tokens"]) == (24, 36 * 12)
        assert outcome["latency"]["ttft"]["p50_ms"] > 0
    assert len(more["changed"]["sent"]) == 3


def replayed(gateway: FleetGateway, *arguments: str) -> Any:
    command = (sys.executable, "-m", "service.cli.main", "replay", gateway.url, *arguments)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_one_engine_alone_can_answer_is_refused_with_the_remedy(
    gateways: list[FleetGateway],
) -> None:
    client = gateways[0].client
    for method, path in (("GET", "/debug/limits"), ("POST", "/v1/load_lora_adapter")):
        answer = client.request(method, path, json={})
        assert answer.status_code == 501
        assert "/debug/engines" in answer.json()["error"]["message"]
    assert client.get("/v1/models").json()["data"][0]["id"] == "dummy:tiny"
    assert client.get("/ready").status_code == 200
    text = client.get("/metrics").text
    assert 'phasescope_fleet_engines{state="ready"} 2' in text
    assert ask(gateways[0], "timed").status_code == 200
    gateways[0].facts_of("timed")
    text = client.get("/metrics").text
    assert re.search(r'phasescope_fleet_wire_seconds_total\{engine="n[01]"\} 0?\.?[0-9]', text)
    assert client.get("/openapi.json").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_that_is_lost_in_the_middle_gives_one_error_and_the_rest_serve(
    folder: Path, gateways: list[FleetGateway], nodes: list[Node], number: signal.Signals
) -> None:
    with Node(folder, *MODEL) as third:
        engines = FleetFile(folder, [third])
        with FleetGateway(engines, *MODEL) as gateway:
            with stream(gateway, "lost") as lines:
                events = []
                for event in sse_events_of(lines):
                    events.append(event)
                    if len(events) == 20:
                        os.kill(third.process.pid, number)
            errors = [one for one in events if "error" in one]
            assert len(errors) == 1
            assert events[-1] is errors[0]
            assert errors[0]["error"]["code"] == "engine_died"
            assert gateway.facts_of("lost")["ledger"]["residue_ns"] == 0
            engines.write({"n0": nodes[0].address})
            eventually(lambda: gateway.states() == {"n0": "ready"}, "another engine")
            assert ask(gateway, "after").status_code == 200
        if number is signal.SIGSTOP:
            os.kill(third.process.pid, signal.SIGCONT)
            eventually(third.is_empty, "the node has cancelled what nobody waits for")


def sse_events_of(lines: Iterator[str]) -> Iterator[Any]:
    for line in lines:
        yield from (one for one in sse_events([line]) if one != "[DONE]")


def test_a_gateway_that_is_killed_leaves_nothing_at_its_nodes(
    folder: Path, nodes: list[Node]
) -> None:
    engines = FleetFile(folder, nodes)
    with FleetGateway(engines, *MODEL) as gateway, stream(gateway, "gone") as lines:
        next(sse_events_of(lines))
        gateway.process.kill()
        gateway.process.wait()
        with contextlib.suppress(httpx.HTTPError):
            for _ in lines:
                pass
    for node in nodes:
        eventually(node.is_empty, "an empty node")


def test_an_engine_that_is_killed_comes_back_with_a_new_incarnation(
    folder: Path,
) -> None:
    with Node(folder, *MODEL) as node, FleetGateway(FleetFile(folder, [node]), *MODEL) as gateway:
        before = gateway.client.get("/debug/engines").json()["engines"][0]["incarnation"]
        os.kill(node.snapshot()["engine_pid"], signal.SIGKILL)

        def is_back() -> bool:
            now = gateway.client.get("/debug/engines").json()["engines"][0]
            return now["state"] == "ready" and now["incarnation"] not in (0, before)

        eventually(is_back, "a new incarnation", 60)
        assert ask(gateway, "again").status_code == 200


def test_a_node_that_is_told_to_stop_finishes_what_it_has(folder: Path) -> None:
    with Node(folder, *MODEL) as node, FleetGateway(FleetFile(folder, [node]), *MODEL) as gateway:
        with stream(gateway, "last") as lines:
            events = sse_events_of(lines)
            next(events)
            node.process.send_signal(signal.SIGTERM)
            eventually(lambda: gateway.states()["n0"] == "draining", "it drains")
            assert ask(gateway, "late").json()["error"]["code"] == "no_engine_ready"
            rest = list(events)
        assert not [one for one in rest if "error" in one]
        assert node.process.wait(30) == 0


def test_the_commands_of_the_documentation_make_a_fleet(tmp_path: Path) -> None:
    """Those of one machine, in order, in a folder of their own; only model and ports differ."""
    blocks = re.findall(r"```sh\n(.*?)```", DOC.read_text(), re.S)
    written = "".join(blocks[:2])  # the node's, and that of another terminal
    ports = {"9100": free_port(), "8000": free_port(), "8100": free_port()}
    for old, new in ports.items():
        written = written.replace(old, str(new))
    running: list[subprocess.Popen[bytes]] = []
    try:
        for line in written.replace("\\\n", " ").strip().splitlines():
            if not line.startswith("phasescope"):
                subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
                continue
            words = shlex.split(line)[1:]
            more = [*MODEL, "--executor", "native"] if words[0] == "engine" else MODEL
            default = ["--port", str(ports["8100" if words[0] == "engine" else "8000"])]
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "service.cli.main", *words, *more, *default],
                    cwd=tmp_path,
                    env={**os.environ, "PYTHONPATH": str(DOC.parents[2])},
                )
            )
        url = f"http://127.0.0.1:{ports['8000']}"

        def answers() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.post(f"{url}/v1/completions", json=BODY).status_code == 200
            return False

        eventually(answers, "an answer of the documented fleet", 120)
    finally:
        for one in running:
            one.terminate()
        for one in running:
            one.wait(30)
