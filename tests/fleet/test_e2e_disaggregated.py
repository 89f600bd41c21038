"""Prefill and decode apart, of processes: an engine that computes prompts, one that decodes them,
a gateway, and a server of one engine to compare with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.servers.fleet import FleetFile, FleetGateway, Node
from tests.support.servers.server import Server, eventually

MODEL = ("--model", "dummy:tiny")
BODY = {"prompt": "x" * 200, "max_tokens": 12, "temperature": 0.9, "seed": 3, "ignore_eos": True}


@contextlib.contextmanager
def apart(folder: Path, *flags: str, split: str = "always") -> Iterator[tuple[Node, Node, Server]]:
    """A prefill node, a decode node, and their gateway."""
    with contextlib.ExitStack() as stack:
        prefill = stack.enter_context(Node(folder, *MODEL, *flags, "--role", "prefill"))
        decode = stack.enter_context(Node(folder, *MODEL, *flags, "--role", "decode"))
        engines = FleetFile(folder, [prefill, decode])
        gateway = stack.enter_context(FleetGateway(engines, *MODEL, "--prefill-split", split))
        eventually(lambda: set(gateway.states().values()) == {"ready"}, "engines ready", 60)
        yield prefill, decode, gateway


def ask(server: Server, request_id: str, **more: Any) -> httpx.Response:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        headers = {"x-request-id": request_id}
        return client.post("/v1/completions", json={**BODY, **more}, headers=headers)


def text_of(answer: httpx.Response) -> tuple[Any, ...]:
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["text"], choice["finish_reason"], (choice.get("logprobs") or {}).get("tokens")


@pytest.mark.parametrize(("kv_dtype", "memory"), [("auto", "160KiB"), ("int8", "100KiB")])
def test_texts_are_those_of_one_engine(tmp_path: Path, kv_dtype: str, memory: str) -> None:
    """Long and short prompts with a beginning in common, many at once, in little memory."""
    roomy = ("--kv-dtype", kv_dtype, "--max-model-len", "384")
    common = "The same beginning of all of these requests, which is long enough for blocks. "
    bodies: list[dict[str, Any]] = [
        {"prompt": common + "y" * (index * 7) + str(index), "seed": index, "max_tokens": 60}
        for index in range(16)
    ]
    bodies.append({"prompt": "z" * 100, "response_format": {"type": "json_object"}})
    with (
        Server(*MODEL, *roomy) as alone,
        apart(tmp_path, *roomy, "--kv-memory", memory) as (prefill, decode, gateway),
    ):
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
        for node in (prefill, decode):
            eventually(node.is_empty, "an empty node")
