"""The runtime contract over HTTP: cache, deadlines, deletes, drain, slow readers, tenants."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.cli.main import main
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.server import Server, eventually, sse_events

SYSTEM = list(range(1000, 1100))


@pytest.fixture(scope="module")
def contract() -> Iterator[Server]:
    """A small server of random weights: the contract is not about the words."""
    with Server(
        "--model", "dummy:tiny", "--max-num-seqs", "4", "--max-batched-tokens", "64",
        "--stream-buffer", "16", "--slow-client-timeout", "2",
    ) as running:  # fmt: skip
        yield running
        eventually(running.is_empty, "an empty engine after the tests")


@pytest.fixture(scope="module")
def roomy() -> Iterator[Server]:
    """Streams fit their buffers, and a step's budget follows a target that cannot be met."""
    with Server(
        "--model", "dummy:tiny", "--stream-buffer", "100000", "--slow-client-timeout", "1",
        "--max-batched-tokens", "512", "--itl-target-ms", "0.001", "--max-num-seqs", "4",
    ) as running:  # fmt: skip
        yield running


def ids(server: Server, tokens: list[int], **fields: Any) -> dict[str, Any]:
    headers = fields.pop("headers", {})
    body = {"prompt": tokens, "max_tokens": 2, "ignore_eos": True, **fields}
    answer = server.client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return {**answer.json()["usage"], "id": answer.headers["x-request-id"]}


def cached(usage: dict[str, Any]) -> int:
    count: int = usage["prompt_tokens_details"]["cached_tokens"]
    return count


def small(tokens: list[int]) -> list[int]:
    return [token % 200 + 10 for token in tokens]


def test_a_shared_prefix_is_reused_by_its_tenant_only_and_counted_everywhere(
    contract: Server,
) -> None:
    prompt = small(SYSTEM)
    first = ids(contract, prompt)
    second = ids(contract, prompt)

    assert (cached(first), cached(second)) == (0, 96)
    assert contract.facts_of(second["id"])["cached_tokens"] == 96
    assert cached(ids(contract, prompt, headers={"x-tenant": "other"})) == 0
    assert cached(ids(contract, prompt, cache_salt="mine")) == 0
    assert cached(ids(contract, prompt, cache_prefix=False)) == 0
    assert contract.client.post("/debug/cache/flush").json() == {"flushed": True}
    assert cached(ids(contract, prompt)) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("cache_salt", ""), ("cache_salt", 3), ("cache_prefix", "no"), ("priority", 101),
     ("priority", 0.5)],
)  # fmt: skip
def test_wrong_values_of_the_new_fields_name_the_field(
    contract: Server, field: str, value: Any
) -> None:
    body = {"prompt": [20], "max_tokens": 1, field: value}
    answer = contract.client.post("/v1/completions", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


def test_a_deadline_ends_a_request_wherever_it_is(contract: Server) -> None:
    """Sooner than any machine computes so many tokens."""
    body = {"prompt": [20, 21], "max_tokens": 1500, "ignore_eos": True, "timeout": 0.1}
    answer = contract.client.post("/v1/completions", json=body)
    facts = contract.facts_of(answer.headers["x-request-id"])

    assert answer.status_code == 408
    assert (facts["outcome"], facts["reason"]) == ("cancelled", "deadline")
    assert facts["cancellation"]["freed_ns"] >= facts["cancellation"]["last_step_ns"]


def test_a_deleted_request_frees_its_blocks_and_tells_its_client(contract: Server) -> None:
    body = {"prompt": [20, 21], "max_tokens": 1500, "ignore_eos": True, "stream": True}
    url = f"{contract.url}/v1/completions"
    headers = {"x-request-id": "to-delete"}
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        answer = contract.client.delete("/v1/requests/to-delete")
        events = sse_events(lines)
    facts = contract.facts_of("to-delete")

    assert answer.json() == {"id": "to-delete", "object": "request", "deleted": True}
    assert events[-1]["error"]["code"] == "deleted"
    assert (facts["outcome"], facts["reason"]) == ("cancelled", "deleted")
    assert contract.client.delete("/v1/requests/to-delete").status_code == 404


def test_typed_events_name_each_stage_of_a_stream(contract: Server) -> None:
    body = {
        "prompt": [20, 21], "max_tokens": 4, "ignore_eos": True, "stream": True, "logprobs": 0,
        "stream_options": {"include_usage": True, "include_events": True},
    }  # fmt: skip
    with contract.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("event: ")]
    names = [line.removeprefix("event: ") for line in lines]

    assert names[:2] == ["accepted", "first_token"]
    assert names[-2:] == ["usage", "completed"]
    assert set(names[2:-2]) == {"delta"}


class SlowReader:
    """A client that sends a request and then reads nothing of the answer."""

    def __init__(self, server: Server, request_id: str, **fields: Any) -> None:
        body = json.dumps(
            {"prompt": [20, 21], "ignore_eos": True, "stream": True, "logprobs": 20,
             "max_tokens": 1900, **fields}
        ).encode()  # fmt: skip
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)
        self.socket.connect(("127.0.0.1", server.port))
        self.socket.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\n"
            + f"x-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )


def test_a_slow_reader_is_paused_and_dropped_while_others_go_on(contract: Server) -> None:
    reader = SlowReader(contract, "slow")
    paused = lambda: contract.snapshot()["totals"]["pauses"] > 0  # noqa: E731
    eventually(paused, "a pause", 30)
    assert ids(contract, [30, 31], max_tokens=20)["completion_tokens"] == 20
    facts = contract.facts_of("slow")
    reader.socket.close()

    assert (facts["outcome"], facts["reason"]) == ("cancelled", "slow_client")
    assert facts["sequences"][0]["wait_ns"]["client_pause"] > 1e9
    assert facts["output_tokens"] < 1900


def test_a_stopped_reader_with_less_than_a_buffer_is_dropped_too(roomy: Server) -> None:
    """The engine is done, the text fits the buffer, and the client takes nothing of it."""
    reader = SlowReader(roomy, "stuck", max_tokens=1900)
    facts = roomy.facts_of("stuck")
    reader.socket.close()

    assert facts["reason"] == "slow_client"
    eventually(roomy.is_empty, "an empty engine")


def test_a_step_budget_follows_the_latency_target(roomy: Server) -> None:
    """With decodes running, a long prompt is cut into smaller pieces than the fixed budget. The
    engine is stopped while the prompt comes, so that the stream cannot end before."""
    ids(roomy, [20, 21], max_tokens=400)
    engine = roomy.snapshot()["engine_pid"]
    body = {"prompt": [20, 22], "max_tokens": 1500, "ignore_eos": True, "stream": True}
    found: list[dict[str, Any]] = []

    def ask() -> None:
        found.append(ids(roomy, small(list(range(600))), cache_prefix=False))

    asking = threading.Thread(target=ask)
    with httpx.stream("POST", f"{roomy.url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if line.startswith("data:"))
        os.kill(engine, signal.SIGSTOP)
        try:
            asking.start()
            eventually(lambda: live(roomy) == 2, "a long prompt beside the stream")
        finally:
            os.kill(engine, signal.SIGCONT)
        asking.join(60)
        sse_events(lines)
    chunks = roomy.facts_of(found[0]["id"])["sequences"][0]["chunks"]

    assert max(chunk["tokens"] for chunk in chunks) < 512
    assert len(chunks) > 2


def test_a_body_that_never_comes_is_a_408() -> None:
    with Server("--model", "dummy:tiny", "--request-timeout", "0.5") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as half:
            half.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n"
                b"x-request-id: half\r\n\r\n{"
            )
            assert b" 408 " in half.recv(4096).split(b"\r\n")[0]
        assert server.facts_of("half")["reason"] == "timeout"


def test_the_policy_may_be_to_drop_a_slow_reader_at_once() -> None:
    with Server(
        "--model", "dummy:tiny", "--slow-client", "drop", "--stream-buffer", "16"
    ) as server:
        reader = SlowReader(server, "slow")
        facts = server.facts_of("slow")
        reader.socket.close()

        assert facts["reason"] == "slow_client"
        assert "client_pause" not in facts["sequences"][0]["wait_ns"]
        eventually(server.is_empty, "an empty engine")


def test_a_drain_lets_running_requests_finish_refuses_new_ones_and_exports_everything() -> None:
    """Even where a service manager signals every process at once: the engine outlives it."""
    with OtlpReceiver(protocol="grpc") as receiver:
        options = ("--model", "dummy:tiny", "--otlp-endpoint", receiver.endpoint)
        with Server(*options, "--drain-timeout", "120") as server:
            results: list[dict[str, Any]] = []

            def run() -> None:
                results.append(ids(server, [20, 21], max_tokens=1500))

            worker = threading.Thread(target=run)
            engine = server.snapshot()["engine_pid"]
            os.kill(engine, signal.SIGSTOP)  # so that the request cannot end before the refusal
            worker.start()
            eventually(lambda: live(server), "a live request")
            with httpx.Client(base_url=server.url) as late:
                for pid in (engine, server.process.pid):
                    os.kill(pid, signal.SIGTERM)
                answer = eventually(lambda: refused(late), "a refusal")
            os.kill(engine, signal.SIGCONT)
            worker.join(60)
            assert server.process.wait(30) == 0

        assert answer.json()["error"]["code"] == "draining"
        assert "retry-after" in answer.headers
        assert results[0]["completion_tokens"] == 1500
        found = {tree.attribute("gen_ai.request.id") for tree in receiver.trees()}
        assert results[0]["id"] in found
        assert answer.headers["x-request-id"] in found


def live(server: Server) -> int:
    """How many requests have not ended."""
    answer = server.client.get("/debug/requests", params={"since": 0}).json()
    return len(answer["live"])


def refused(client: httpx.Client) -> httpx.Response | None:
    answer = client.post("/v1/completions", json={"prompt": [20], "max_tokens": 1})
    return answer if answer.status_code == 503 else None


def test_requests_beyond_the_drain_timeout_get_an_error_and_a_trace() -> None:
    with OtlpReceiver(protocol="grpc") as receiver:
        options = ("--model", "dummy:tiny", "--otlp-endpoint", receiver.endpoint)
        with Server(*options, "--drain-timeout", "0.2") as server:
            body = {"prompt": [20, 21], "max_tokens": 2000, "ignore_eos": True, "stream": True}
            url = f"{server.url}/v1/completions"
            headers = {"x-request-id": "outlives"}
            with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as stream:
                lines = stream.iter_lines()
                next(lines)
                server.process.send_signal(signal.SIGTERM)
                events = sse_events(lines)
            assert server.process.wait(30) == 0

        assert events[-1]["error"]["code"] == "shutdown"
        (tree,) = [t for t in receiver.trees() if t.attribute("gen_ai.request.id") == "outlives"]
        assert tree is not None
        receiver.check_all()


def test_keys_name_their_tenants_and_the_header_does_not_override_them(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# tenants\nalpha key-a\nbeta key-b\n")
    with Server("--model", "dummy:tiny", "--tenant-keys", str(keys)) as server:
        prompt = small(SYSTEM)
        alpha = {"authorization": "Bearer key-a", "x-tenant": "beta"}
        beta = {"authorization": "Bearer key-b"}
        ids(server, prompt, headers=alpha)

        assert cached(ids(server, prompt, headers=beta)) == 0
        again = ids(server, prompt, headers=alpha)
        assert cached(again) == 96
        assert server.facts_of(again["id"])["tenant"] == "alpha"
        assert server.client.post("/v1/completions", json={"prompt": [20]}).status_code == 401
        stolen = {"x-tenant": "alpha"}
        answer = server.client.post("/v1/completions", json={"prompt": [20]}, headers=stolen)
        assert answer.status_code == 401
        body = {"prompt": [20, 21], "max_tokens": 1500, "ignore_eos": True, "stream": True}
        mine = {**alpha, "x-request-id": "mine"}
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=body, headers=mine, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            assert server.client.delete("/v1/requests/mine", headers=beta).status_code == 404
            assert server.client.delete("/v1/requests/mine").status_code == 401
            assert server.client.delete("/v1/requests/mine", headers=alpha).status_code == 200


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--speculative-tokens", "4", "--pipeline-depth", "2"), "--pipeline-depth 1"),
        (("--itl-target-ms", "0"), "--itl-target-ms"),
        (("--kv-offload-tenant-share", "2"), "--kv-offload-tenant-share"),
        (("--stream-buffer", "1"), "--stream-buffer"),
        (("--tenant-keys", "/does/not/exist"), "--tenant-keys"),
        (("--drain-timeout", "-1"), "--drain-timeout"),
        (("--api-key", ""), "--api-key"),
        (("--tenant-keys", "/dev/null"), "no keys"),
    ],
)
def test_contradicting_policies_are_one_line_of_error(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything else is tried: the port is taken, too."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        code = main(["serve", "--model", "dummy:tiny", "--port", port, *flags])

    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("phasescope: ")
    assert words in line
