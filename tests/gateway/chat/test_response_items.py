"""Items of a response that come back become the messages of a chat."""

from __future__ import annotations

import msgspec

from service.config.settings import SamplingDefaults
from service.gateway.ingest.responses_request import parse_responses


def test_the_reasoning_before_a_call_stays_with_the_call() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [
        {"type": "reasoning_text", "text": "look it up"}]}  # fmt: skip
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "4"}
    said = {"role": "assistant", "content": "It is 4."}
    body = msgspec.json.encode({"input": [{"role": "user", "content": "?"}, thought, call, result,
                                          said]})  # fmt: skip
    messages = parse_responses(body, SamplingDefaults()).messages or ()

    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant"]
    assert [one.get("reasoning_content") for one in messages] == [None, "look it up", None, None]
