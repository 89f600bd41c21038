"""What an answer repeats of its prompts is bounded, with all of its choices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.config.settings import ModelKind, ModelRef, SamplingDefaults
from service.gateway.http import limits
from service.gateway.ingest.prompting import BodyReader, IngestResult
from service.gateway.ingest.schemas import Operation
from service.text.tokenizer import load_tokenizer
from telemetry.facts.clock import MonotonicClock

MODEL = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
READER = BodyReader(load_tokenizer(MODEL), MODEL.name, SamplingDefaults(), MonotonicClock())


def read(operation: Operation, **fields: Any) -> IngestResult:
    body = json.dumps({"max_tokens": 1, **fields}).encode()
    return READER.read(operation, body, 1 << 20)


def ids(each: int) -> list[list[int]]:
    return [[5] * each] * 16


@pytest.mark.parametrize(
    ("fields", "few", "many", "param"),
    [
        ({"prompt": ids(2048), "prompt_logprobs": 2}, 8, 16, "prompt_logprobs"),
        ({"prompt": ids(2048), "echo": True, "logprobs": 2}, 8, 16, "logprobs"),
        ({"prompt": ids(2048), "prompt_logprobs": 2, "echo": True, "logprobs": 2}, 4, 8,
         "prompt_logprobs"),
        ({"prompt": ids(8192), "return_token_ids": True}, 8, 16, "return_token_ids"),
        ({"prompt": ["a" * 60_000] * 16, "echo": True}, 8, 16, "echo"),
    ],
)  # fmt: skip
def test_each_choice_of_an_answer_that_repeats_its_prompts_counts(
    fields: dict[str, Any], few: int, many: int, param: str
) -> None:
    """They are written in one piece, which would hold up all other requests."""
    assert read(Operation.TEXT, n=few, **fields).refusal is None
    refusal = read(Operation.TEXT, n=many, **fields).refusal

    assert refusal is not None
    assert (refusal.status, refusal.param) == (400, param)


def test_what_a_conversation_repeats_once_counts_once() -> None:
    messages = [{"role": "user", "content": "ab " * 60_000}]
    found = read(Operation.CHAT, messages=messages, n=16, prompt_logprobs=1)

    assert found.refusal is None
    assert found.prompts[0].tokens * 2 * 16 > limits.PROMPT_SCORES.value
