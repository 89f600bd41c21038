"""A real server of each release, every kind of request at once, and what the facts say of it.

SGLang's own test switch preempts a running sequence every few steps. With a CPU that has other work
a start takes two minutes and a step a second: the figures of time mean nothing here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from service.attach.wire import Hello, Role, TurnedOff
from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    GrammarCompiled,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    StepRecorded,
)
from telemetry.facts.reasons import EndReason, WaitReason
from telemetry.facts.records import RequestAccepted, RequestEnded, RequestParsed
from tests.attach.core_facts import check_core
from tests_engines.on_sglang.environment import MODEL, VERSIONS, python
from tests_engines.on_sglang.server import Listener, Server, serving

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SECRET = "a-word-of-a-prompt"
REQUESTS = 7
pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", params=VERSIONS)
def listener(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Listener]:
    """The facts of a server that has answered everything."""
    if python() is None or not MODEL.exists():
        pytest.skip("no environment: python -m benchmarks.peers.install and .models")
    folder: Path = tmp_path_factory.mktemp("sglang")
    retract = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "5"}
    with serving(request.param, folder, **retract) as server:
        _traffic(server)
        server.wait_for(lambda: _is_over(server.facts))
        yield server.facts


def _traffic(server: Server) -> None:
    """Two streams, a prompt of several chunks, two choices, a schema, one that goes away, and two
    that are refused."""
    words = {"model": "small", "prompt": f"Once {SECRET}", "max_tokens": 12, "ignore_eos": True}
    talk = [{"role": "user", "content": f"Hi {SECRET}"}]
    json_only = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    chat = {"model": "small", "messages": talk}
    calls = [
        (server.post, COMPLETE, {**words}, {"x_request_id": "first", "traceparent": TRACEPARENT}),
        (server.leave, COMPLETE, {**words, "max_tokens": 400}, {"x_request_id": "gone"}),
        (server.post, CHAT, {**chat, "max_tokens": 8, "stream": True}, {"x_request_id": "chat"}),
        (server.post, COMPLETE, {**words, "prompt": "word " * 200}, {"x_request_id": "long"}),
        (server.post, COMPLETE, {**words, "n": 2, "max_tokens": 4}, {"x_request_id": "two"}),
        (server.post, CHAT, {**chat, "max_tokens": 6, "response_format": json_only},
         {"x_request_id": "json"}),
        (server.post, COMPLETE, {**words, "prompt": "word " * 9000}, {"x_request_id": "huge"}),
    ]  # fmt: skip
    threads = [
        threading.Thread(target=call, args=(path, body), kwargs=headers)
        for call, path, body, headers in calls
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _is_over(listener: Listener) -> bool:
    ended = [one for one in listener.facts(Role.FRONT_END) if isinstance(one, RequestEnded)]
    core = listener.facts(Role.ENGINE_CORE)
    return len(ended) >= REQUESTS and isinstance(core[-1], EngineIdled)


def test_both_processes_say_who_they_are(listener: Listener) -> None:
    for role in Role:
        (hello,) = [one for one in listener.messages(role) if isinstance(one, Hello)]
        assert (hello.role, hello.engine) == (role, "sglang")
        assert hello.engine_version in VERSIONS
        assert not [one for one in listener.messages(role) if isinstance(one, TurnedOff)]


def test_the_limits_are_those_of_the_command_line(listener: Listener) -> None:
    core = listener.facts(Role.ENGINE_CORE)
    (started,) = [one for one in core if isinstance(one, EngineStarted)]
    assert (started.model, started.backend) == ("small", "sglang-cpu")
    assert (started.blocks_total, started.block_tokens, started.max_seqs) == (1024, 1, 4)
    assert (started.budget_tokens, started.pipeline_depth) == (64, 2)
    assert started.settings["chunked_prefill_size"] == "64"
    assert started.settings["schedule_policy"] == "fcfs"


def test_the_facts_of_the_scheduler_add_up(listener: Listener) -> None:
    """Each sequence ends once; its rows follow each other and sum to its tokens."""
    check_core(listener.facts(Role.ENGINE_CORE))


def test_steps_overlap(listener: Listener) -> None:
    """A step is planned and launched before the outcome of the one before it is read."""
    steps = [one for one in listener.facts(Role.ENGINE_CORE) if isinstance(one, StepRecorded)]
    assert any(later.launched_ns < before.collected_ns for before, later in pairwise(steps))


def test_a_long_prompt_comes_in_chunks(listener: Listener) -> None:
    steps = [one for one in listener.facts(Role.ENGINE_CORE) if isinstance(one, StepRecorded)]
    chunks = [row for step in steps for row in step.rows if row.is_prefill and not row.sampled]
    assert len({row.context_tokens for row in chunks}) >= 3  # of the prompt of 200 words
    assert all(sum(r.tokens for r in step.rows if r.is_prefill) <= 64 for step in steps)


def test_decodes_wait_for_prompts_and_others_for_a_slot(listener: Listener) -> None:
    steps = [one for one in listener.facts(Role.ENGINE_CORE) if isinstance(one, StepRecorded)]
    reasons = {skip.reason for step in steps for skip in step.skips}
    assert WaitReason.BUDGET in reasons


def test_preempted_sequences_come_back(listener: Listener) -> None:
    core = listener.facts(Role.ENGINE_CORE)
    preempted = [one for step in core if isinstance(step, StepRecorded) for one in step.preempted]
    admitted = [one.seq_id for one in core if isinstance(one, SequenceAdmitted)]
    ended = {one.seq_id: one.preemptions for one in core if isinstance(one, SequenceEnded)}
    assert preempted
    for seq_id in set(preempted):
        assert ended[seq_id] == preempted.count(seq_id)
        assert admitted.count(seq_id) == 1 + preempted.count(seq_id)


def test_a_grammar_is_waited_for(listener: Listener) -> None:
    core = listener.facts(Role.ENGINE_CORE)
    constrained = [
        one.seq_id for one in core if isinstance(one, SequenceQueued) and one.constrained
    ]
    compiled = [one.seq_id for one in core if isinstance(one, GrammarCompiled)]
    assert constrained == compiled
    assert len(compiled) == 1


def test_requests_and_sequences_are_the_same_ones(listener: Listener) -> None:
    """The front end's names of them are the scheduler's, and the tokens agree."""
    names = {one.name: one.seq_id for one in listener.names()}
    core, front = listener.facts(Role.ENGINE_CORE), listener.facts(Role.FRONT_END)
    outputs = {one.seq_id: one.output_tokens for one in core if isinstance(one, SequenceEnded)}
    received = {one.request_id: one for one in front if isinstance(one, RequestEnded)}
    queued = {one.seq_id: one for one in core if isinstance(one, SequenceQueued)}
    for one in listener.submitted():
        assert one.name in names
        assert one.at_ns < queued[names[one.name]].at_ns
    for request_id in ("first", "long", "json"):
        (name,) = [one.name for one in listener.submitted() if one.request_id == request_id]
        assert received[request_id].output_tokens == outputs[names[name]] > 0


def test_every_request_has_one_end(listener: Listener) -> None:
    front = listener.facts(Role.FRONT_END)
    accepted = {one.request_id: one for one in front if isinstance(one, RequestAccepted)}
    ended = [one for one in front if isinstance(one, RequestEnded)]
    reasons = {one.request_id: one.reason for one in ended}
    assert sorted(accepted) == sorted(one.request_id for one in ended)
    assert accepted["first"].trace_id == TRACEPARENT.split("-")[1]
    assert reasons["first"] is reasons["long"] is reasons["two"] is EndReason.MAX_TOKENS
    assert reasons["gone"] is EndReason.DISCONNECT
    assert reasons["huge"] is EndReason.INVALID
    parsed = {one.request_id: one for one in front if isinstance(one, RequestParsed)}
    assert (parsed["json"].output_type, parsed["two"].choices) == ("json", 2)


def test_a_client_that_went_away_ends_its_sequence(listener: Listener) -> None:
    names = {one.name: one.seq_id for one in listener.names()}
    (name,) = [one.name for one in listener.submitted() if one.request_id == "gone"]
    (end,) = [
        one
        for one in listener.facts(Role.ENGINE_CORE)
        if isinstance(one, SequenceEnded) and one.seq_id == names[name]
    ]
    assert end.reason is EndReason.DISCONNECT


def test_no_text_leaves_the_process(listener: Listener) -> None:
    said = repr([listener.messages(role) for role in Role])
    assert SECRET not in said
    assert SECRET not in json.dumps(said)
