"""Tracing and recording are switched while the server runs; a bad receiver affects no request."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers.otlp_receiver import Fault, OtlpReceiver, silent_port
from tests.support.servers.server import Server, eventually

MODEL = ("--model", "dummy:tiny")


@pytest.fixture(scope="module")
def switched() -> Iterator[tuple[Server, OtlpReceiver]]:
    """A small server that can export but was told not to."""
    with OtlpReceiver() as receiver:
        flags = (*MODEL, "--otlp-endpoint", receiver.endpoint, "--tracing", "off")
        with Server(*flags) as server:
            yield server, receiver


def tracing(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get("/debug/tracing").json()
    return found


def set_tracing(server: Server, **change: Any) -> httpx.Response:
    return server.client.put("/debug/tracing", json=change)


def complete(server: Server, **fields: Any) -> str:
    """Its request id, once the request has ended in the facts."""
    answer = server.completion(prompt=[20, 21, 22], max_tokens=4, ignore_eos=True, **fields)
    assert answer.status_code == 200, answer.text
    request_id: str = answer.headers["x-request-id"]
    server.facts_of(request_id)
    return request_id


def exported_ids(receiver: OtlpReceiver) -> set[str]:
    return {tree.attribute("gen_ai.request.id") for tree in receiver.trees()}


def test_the_mode_is_changed_while_the_server_runs(
    switched: tuple[Server, OtlpReceiver],
) -> None:
    """Off, full, and sampled at rate 0, where a cancelled request is still kept."""
    server, receiver = switched
    silent = complete(server)
    assert set_tracing(server, mode="full").json()["mode"] == "full"
    loud = complete(server)
    changed = set_tracing(server, mode="sampled", rate=0.0).json()
    assert (changed["mode"], changed["rate"]) == ("sampled", 0.0)
    usual = complete(server)
    body = {"prompt": [20], "max_tokens": 2000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        cancelled = answer.headers["x-request-id"]
        next(answer.iter_lines())
    tree = receiver.tree_of(cancelled)

    assert tree.attribute("sampling.reason") == "cancelled"
    assert tree.attribute("server.port") == server.port
    assert receiver.tree_of(loud).attribute("sampling.reason") == "full"
    assert not exported_ids(receiver) & {silent, usual}
    assert tracing(server)["traces_left"]["off"] >= 1
    # held for a while first: others may turn out to have waited for it
    eventually(lambda: tracing(server)["traces_left"]["rate"] >= 1, "the verdict on the usual one")
    assert server.snapshot()["tracing"]["mode"] == "sampled"
    set_tracing(server, mode="off")


def test_the_mode_is_in_the_metrics(switched: tuple[Server, OtlpReceiver]) -> None:
    server, _ = switched
    set_tracing(server, mode="sampled", rate=0.125)
    families = {
        family.name: {tuple(s.labels.values()): s.value for s in family.samples}
        for family in text_string_to_metric_families(server.client.get("/metrics").text)
    }
    set_tracing(server, mode="off")

    assert families["phasescope_tracing_mode"] == {("off",): 0, ("sampled",): 1, ("full",): 0}
    assert families["phasescope_trace_rate"] == {(): 0.125}
    assert families["phasescope_recording"] == {(): 1}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"mode":"loud"}', b'{"rate":1.5}', b'{"rate":-1}', b'{"moode":"off"}'],
)
def test_a_wrong_change_is_a_400_and_changes_nothing(
    switched: tuple[Server, OtlpReceiver], body: bytes
) -> None:
    server, _ = switched
    before = tracing(server)
    answer = server.client.put("/debug/tracing", content=body)

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]
    after = tracing(server)
    assert (after["mode"], after["rate"]) == (before["mode"], before["rate"])


def test_recording_is_switched_off_and_on_between_requests(
    switched: tuple[Server, OtlpReceiver],
) -> None:
    """Off: served, and nothing is known of it. On: as before."""
    server, _ = switched
    complete(server)
    eventually(server.is_empty, "an empty engine")
    before = server.snapshot()
    off = server.client.put("/debug/telemetry", json={"recording": False})
    assert (off.status_code, off.json()) == (200, {"recording": False})
    answer = server.completion(prompt=[20], max_tokens=4, ignore_eos=True)
    during = server.snapshot()
    eventually(
        lambda: server.client.put("/debug/telemetry", json={"recording": True}).is_success,
        "recording again",
    )
    known = complete(server)

    assert answer.json()["usage"]["completion_tokens"] == 4
    assert during["recording"] is False
    assert during["steps_total"] == before["steps_total"]
    assert server.client.get(f"/debug/requests/{answer.headers['x-request-id']}").status_code == 404
    assert server.facts_of(known)["output_tokens"] == 4
    assert server.snapshot()["steps_total"] > before["steps_total"]
    assert server.client.get("/debug/telemetry").json() == {"recording": True}


def test_recording_is_not_switched_in_the_middle_of_a_request(
    switched: tuple[Server, OtlpReceiver],
) -> None:
    """No request is recorded by half; one that is still sending its body is one."""
    server, _ = switched
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n"

    def refused() -> httpx.Response | None:
        answer = server.client.put("/debug/telemetry", json={"recording": True})
        return answer if answer.status_code == 409 else None

    with socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(head)
        answer: httpx.Response = eventually(refused, "a refusal")

    assert answer.json()["error"]["code"] == "not_idle"
    assert server.client.get("/debug/telemetry").json() == {"recording": True}


def test_switches_are_behind_the_debug_key_and_need_somewhere_to_send_spans() -> None:
    with Server(*MODEL, "--debug-key", "secret", env={"OTEL_SDK_DISABLED": "true"}) as server:
        headers = {"authorization": "Bearer secret"}
        refused = server.client.put("/debug/tracing", json={"mode": "full"})
        nowhere = server.client.put("/debug/tracing", json={"mode": "full"}, headers=headers)
        seen = server.client.get("/debug/tracing", headers=headers).json()

    assert refused.status_code == 401
    assert nowhere.status_code == 409
    assert nowhere.json()["error"]["code"] == "no_endpoint"
    assert (seen["mode"], seen["target"]) == ("off", None)


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[Server, OtlpReceiver]]:
    """A server that exports everything over HTTP and does not wait long for an answer."""
    with OtlpReceiver("http") as receiver:
        receiver.retry_after_s = 0.2
        flags = ("--otlp-endpoint", receiver.endpoint, "--otlp-protocol", "http/protobuf")
        with Server(*MODEL, *flags, env={"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}) as server:
            yield server, receiver


def settled(server: Server) -> dict[str, Any] | None:
    """The counts of spans, once none is in flight."""
    books = tracing(server)
    return None if books["traces_queued"] else books


@pytest.mark.parametrize("fault", [*Fault, "refused"])
def test_a_bad_receiver_affects_no_request_and_every_span_is_counted(
    traced: tuple[Server, OtlpReceiver], fault: str
) -> None:
    """Requests are answered meanwhile; what could be delivered later was, the rest is counted."""
    server, receiver = traced
    complete(server)
    before = eventually(lambda: settled(server), "an empty queue")
    if fault == "refused":
        receiver.down()
    else:
        receiver.fault = Fault(fault)
    workers = [threading.Thread(target=complete, args=(server,)) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)
    attempts = before["attempts"]
    eventually(lambda: tracing(server)["attempts"] > attempts, "an attempt")
    if fault in ("refused", Fault.BLACK_HOLE, Fault.UNAVAILABLE):
        assert tracing(server)["traces_queued"] > 0
    if fault == "refused":
        receiver.up()
    receiver.fault = None
    after = eventually(lambda: settled(server), "an empty queue")

    tree = 10  # root, eight phases, one chunk
    kept = after["traces_kept"]["full"] - before["traces_kept"]["full"]
    gone = sum(after["spans_dropped"].values()) - sum(before["spans_dropped"].values())
    assert kept == 6
    assert after["spans_exported"] - before["spans_exported"] + gone == 6 * tree
    assert after["spans_exported"] == receiver.spans_taken
    assert (gone > 0) == (fault in (Fault.REFUSE, Fault.PARTIAL))


@pytest.mark.parametrize("endpoint", ["hangs", "silent"])
def test_a_server_ends_while_its_receiver_hangs(endpoint: str) -> None:
    """Long before the receiver's thirty seconds are over."""
    with OtlpReceiver("grpc") as receiver, silent_port() as silent:
        receiver.fault = Fault.BLACK_HOLE
        target = silent if endpoint == "silent" else receiver.endpoint
        with Server(*MODEL, "--otlp-endpoint", target) as server:
            complete(server)
            if endpoint == "hangs":
                assert receiver.hanging.wait(20)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(20) == 0
