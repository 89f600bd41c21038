"""What the engine core of a real server says under mixed traffic with too little memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.attach.wire import TurnedOff
from telemetry.facts.engine_records import EngineIdled, GrammarCompiled, SequenceEnded
from telemetry.facts.reasons import EndReason
from tests.attach.sidecar import Connection
from tests_engines.on_vllm.checks import Seen, check
from tests_engines.on_vllm.live_server import LiveServer, live_server

pytestmark = pytest.mark.live
FLAGS = ["--max-num-seqs", "8", "--max-num-batched-tokens", "64"]
FLAGS += ["--block-size", "32", "--num-gpu-blocks-override", "20"]
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
Names = dict[str, Seen]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("live_core"), *FLAGS) as found:
        yield found


def complete(server: LiveServer, name: str, prompt: str, max_tokens: int) -> dict[str, int]:
    """The usage that the server reports."""
    body = {"model": "model", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    answer = server.client.post("/v1/completions", json=body, headers={"x-request-id": name})
    assert answer.status_code == 200, answer.text
    found: dict[str, int] = answer.json()["usage"]
    return found


def leave(server: LiveServer) -> None:
    """A client that goes away after the first token."""
    body = {"model": "model", "prompt": "Tell", "max_tokens": 400, "ignore_eos": True}
    body["stream"] = True
    headers = {"x-request-id": "left"}
    with server.client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        next(answer.iter_bytes())


def as_json(server: LiveServer) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}
    messages = [{"role": "user", "content": "A person as JSON"}]
    body: dict[str, Any] = {"model": "model", "messages": messages, "max_tokens": 40}
    headers = {"x-request-id": "json"}
    answer = server.client.post(
        "/v1/chat/completions", json=body | {"response_format": form}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    assert "age" in json.loads(answer.json()["choices"][0]["message"]["content"])


def is_quiet(core: Connection, ended: int) -> bool:
    facts = core.facts
    count = sum(isinstance(fact, SequenceEnded) for fact in facts)
    return count >= ended and isinstance(facts[-1], EngineIdled)


def test_mixed_traffic_is_accounted_for(server: LiveServer) -> None:
    """Every token of every sequence, preemptions, an abort, a grammar; and nothing is lost."""
    with ThreadPoolExecutor(12) as pool:
        usages = {
            f"long{number}": pool.submit(
                complete, server, f"long{number}", f"{number} is a number. " * 12, 160
            )
            for number in range(6)
        }
        usages["prompt"] = pool.submit(complete, server, "prompt", "word " * 300, 4)
        others = [pool.submit(leave, server), pool.submit(as_json, server)]
        for one in others:
            one.result()
        told = {name: usage.result() for name, usage in usages.items()}
    core = server.core
    core.read_until(lambda one: is_quiet(one, len(told) + 2))
    found = check(core.facts)
    names = {name.seq_id: name.name for batch in core.batches for name in batch.names}
    of = {names[seq_id].split("-")[1]: seen for seq_id, seen in found.items()}

    assert core.lost_facts == 0
    assert not [one for one in core.messages if isinstance(one, TurnedOff)]
    for name, usage in told.items():
        _check_usage(of[name], usage)
    assert of["left"].ended is not None
    assert of["left"].ended.reason is EndReason.DISCONNECT
    assert any(seen.preempted for seen in of.values())
    grammars = [fact for fact in core.facts if isinstance(fact, GrammarCompiled)]
    assert [one.seq_id for one in grammars] == [of["json"].queued.seq_id]
    assert grammars[0].compile_ns > 0
    assert of["json"].queued.constrained


def _check_usage(seen: Seen, usage: dict[str, int]) -> None:
    queued, first = seen.queued, seen.admitted[0]
    assert queued.prompt_tokens == usage["prompt_tokens"]
    assert queued.received_ns is not None
    assert queued.received_ns <= queued.at_ns
    assert seen.ended is not None
    assert seen.ended.output_tokens == usage["completion_tokens"]
    if not seen.preempted:
        chunks = sum(row.tokens for _, row in seen.rows if row.is_prefill)
        assert chunks + first.hit_tokens == queued.prompt_tokens
