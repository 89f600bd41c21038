"""Prefill and decode apart, of processes: an engine that computes prompts, one that decodes them,
a gateway, and a server of one engine to compare with."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.servers.bit_flipper import BitFlipper
from tests.support.servers.fleet import FleetFile, FleetGateway, Node
from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.server import Server, eventually, free_port

MODEL = ("--model", "dummy:tiny")
BODY = {"prompt": "x" * 200, "max_tokens": 12, "temperature": 0.9, "seed": 3, "ignore_eos": True}


class Apart:
    """A prefill node, a decode node, and their gateway."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, *flags: str) -> None:
        self.kv_port = free_port()
        listen = ("--role", "prefill", "--kv-listen", f"127.0.0.1:{self.kv_port}")
        self.prefill = stack.enter_context(Node(folder, *MODEL, *flags, *listen))
        self.decode = stack.enter_context(Node(folder, *MODEL, *flags, "--role", "decode"))
        self.file = FleetFile(folder, self.nodes)
        otlp = flags[flags.index("--otlp-endpoint") :][:2] if "--otlp-endpoint" in flags else ()
        always = ("--prefill-split", "always")
        self.gateway = stack.enter_context(FleetGateway(self.file, *MODEL, *otlp, *always))
        self.all_ready()

    @property
    def nodes(self) -> list[Node]:
        return [self.prefill, self.decode]

    def all_ready(self) -> None:
        eventually(lambda: set(self.gateway.states().values()) == {"ready"}, "ready engines", 60)

    def transfers(self, result: str) -> int:
        """Prompts that went the other way, or why not, as the decode node counts them."""
        return int(value(self.decode, f'phasescope_kv_transfers_total{{result="{result}"}}'))

    def all_empty(self) -> None:
        """No block is used, quarantined or held anywhere."""
        for node in self.nodes:
            eventually(node.is_empty, "an empty node")
            for name in ("quarantined", "held"):
                metric = f"phasescope_kv_blocks_{name}"
                eventually(lambda n=node, m=metric: value(n, m) == 0, f"no block {name}")


def value(server: Server, metric: str) -> float:
    text = server.client.get("/metrics").text
    found = re.search(rf"^{re.escape(metric)} (\S+)$", text, re.M)
    return 0.0 if found is None else float(found[1])


@pytest.fixture(scope="module")
def traces() -> Iterator[OtlpReceiver]:
    with OtlpReceiver(protocol="grpc") as running:
        yield running


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory, traces: OtlpReceiver) -> Iterator[Apart]:
    with contextlib.ExitStack() as stack:
        steps = ("--max-batched-tokens", "64", "--max-num-seqs", "16")
        flags = (*steps, "--otlp-endpoint", traces.endpoint)
        yield Apart(stack, tmp_path_factory.mktemp("apart"), *flags)


@pytest.fixture(scope="module")
def expected() -> Iterator[tuple[Any, ...]]:
    with Server(*MODEL) as alone:
        yield text_of(ask(alone, "alone"))


def ask(server: Server, request_id: str, **more: Any) -> httpx.Response:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        headers = {"x-request-id": request_id}
        return client.post("/v1/completions", json={**BODY, **more}, headers=headers)


def text_of(answer: httpx.Response) -> tuple[Any, ...]:
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["text"], choice["finish_reason"], (choice.get("logprobs") or {}).get("tokens")


@pytest.mark.parametrize(("kv_dtype", "memory"), [("auto", "128KiB"), ("int8", "80KiB")])
def test_texts_are_those_of_one_engine(tmp_path: Path, kv_dtype: str, memory: str) -> None:
    """Long and short prompts with a beginning in common, many at once, in little memory."""
    roomy = ("--kv-dtype", kv_dtype, "--max-model-len", "384")
    common = "The same beginning of all of these requests, which is long enough for blocks. "
    bodies: list[dict[str, Any]] = [
        {"prompt": common + "y" * (index * 7) + str(index), "seed": index, "max_tokens": 120}
        for index in range(16)
    ]
    constrained = {"response_format": {"type": "json_object"}, "ignore_eos": False}
    bodies.append({"prompt": "z" * 100, **constrained})
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(Server(*MODEL, *roomy))
        fleet = Apart(stack, tmp_path, *roomy, "--kv-memory", memory)
        gateway = fleet.gateway
        expected = [text_of(ask(alone, f"r{i}", **body)) for i, body in enumerate(bodies)]
        one_by_one = [text_of(ask(gateway, f"o{i}", **body)) for i, body in enumerate(bodies)]
        with ThreadPoolExecutor(16) as threads:
            found = list(
                threads.map(lambda i: text_of(ask(gateway, f"r{i}", **bodies[i])), range(16))
            )

        assert one_by_one == expected
        assert found == expected[:16]
        for index in range(16):
            ledger = gateway.facts_of(f"r{index}")["ledger"]
            assert ledger["residue_ns"] == 0
        fleet.all_empty()
        assert fleet.transfers("admitted") >= len(bodies)
        preempted = [node.snapshot()["preemptions_total"] for node in fleet.nodes]
        assert preempted[1] > 0
        usages = [text_usage(ask(gateway, f"u{index}", **bodies[index])) for index in range(3)]
        assert min(usages) > 0


def text_usage(answer: httpx.Response) -> int:
    cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def test_a_cold_prompt_has_no_cached_tokens_though_its_kv_came(apart: Apart) -> None:
    before = apart.transfers("admitted")
    first, again = (ask(apart.gateway, name, cache_salt="cold") for name in ("cold", "warm"))

    assert apart.transfers("admitted") == before + 2
    assert text_usage(first) == 0
    assert 0 < text_usage(again) < first.json()["usage"]["prompt_tokens"]


def test_its_parts_add_up_its_spans_are_one_tree_and_it_is_counted(
    apart: Apart, traces: OtlpReceiver, expected: tuple[Any, ...]
) -> None:
    before = apart.transfers("admitted")
    assert text_of(ask(apart.gateway, "whole")) == expected
    for server in (apart.gateway, apart.decode):
        found = server.facts_of("whole")
        entries = found["ledger"]["entries"]
        assert sum(entry["ns"] for entry in entries) == found["e2e_ns"]
        parts = {entry["part"] for entry in entries}
        assert {"kv.prefill", "kv.seal", "kv.wire"} <= parts, parts
        assert "own_prefill" not in parts
        assert "not_observed" not in parts
    there = apart.prefill.facts_of("whole.kv.prefill")
    assert there["ledger"]["residue_ns"] == 0

    def whole(trees: list[Any]) -> bool:
        names = [{span.name for span in tree.spans} for tree in traces_of(trees, "whole")]
        wanted = {"kv.reserve", "kv.transfer", "kv.seal", "kv.wait", "kv.prefill dummy:tiny"}
        return len(names) == 1 and wanted <= names[0]

    traces.wait_for(whole, "one tree with the spans of both nodes")
    assert apart.transfers("admitted") == before + 1
    assert value(apart.decode, 'phasescope_kv_splits_total{way="remote"}') >= 1
    assert value(apart.prefill, 'phasescope_kv_transfer_bytes_total{direction="sent"}') > 0
    assert value(apart.decode, 'phasescope_kv_transfer_seconds_total{part="kv.prefill"}') > 0
    apart.all_empty()


def traces_of(trees: list[Any], request_id: str) -> list[Any]:
    return [t for t in trees if t.attribute("gen_ai.request.id") == request_id]


def test_a_flipped_bit_is_never_text(apart: Apart, expected: tuple[Any, ...]) -> None:
    """A proxy between the engines changes one bit of what the prefill engine sends."""
    address = ("127.0.0.1", apart.kv_port)
    addresses = {"n0": apart.prefill.address, "n1": apart.decode.address}
    with BitFlipper(address, after_bytes=8_000) as proxy:
        host, port = proxy.address
        apart.file.write(addresses, kv_addresses={"n0": f"{host}:{port}"})
        eventually(lambda: has_come_through(apart, proxy), "a transfer through the proxy", 60)
        forged = value(apart.decode, 'phasescope_kv_links_total{event="forged"}')
        assert forged == 1
        assert text_of(ask(apart.gateway, "after-flip", cache_salt="flip")) == expected
    apart.file.write(addresses)
    apart.all_empty()


def has_come_through(apart: Apart, proxy: BitFlipper) -> bool:
    """Every text is right, before and after the list of engines was read again."""
    salt = f"flip-{proxy.flipped}-{os.urandom(4).hex()}"
    answer = ask(apart.gateway, salt, cache_salt=salt)
    assert answer.status_code == 200, answer.text
    return proxy.flipped > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_prefill_engine_that_is_lost_costs_time_and_nothing_else(
    apart: Apart, expected: tuple[Any, ...], number: signal.Signals
) -> None:
    pid = eventually(lambda: apart.prefill.snapshot()["engine_pid"], "an engine")
    os.kill(pid, number)
    found = ask(apart.gateway, f"lost-{number}", cache_salt=f"lost-{number}")
    if number is signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
    assert text_of(found) == expected
    assert apart.gateway.facts_of(f"lost-{number}")["ledger"]["residue_ns"] == 0
    apart.all_ready()
    again = ask(apart.gateway, f"again-{number}", cache_salt=f"again-{number}")
    assert text_of(again) == expected
    apart.all_empty()
