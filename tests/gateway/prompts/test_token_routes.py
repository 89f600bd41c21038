"""/tokenize and /detokenize: in place as in a worker, in vLLM's shapes, with typed refusals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service.config.settings import ModelKind, ModelRef, SamplingDefaults
from service.gateway.errors import ApiError
from service.gateway.http import limits
from service.gateway.ingest.pool import IN_PLACE_BYTES, IngestPool
from service.gateway.ingest.prompting import BodyReader, PackedError
from service.gateway.ingest.token_bodies import DetokenizeBody, TokenizeBody
from service.gateway.ingest.token_reader import TokenReader, TokenTask
from service.text.tokenizer import load_tokenizer
from service.text.tools.dialect import tool_dialect
from telemetry.facts.clock import MonotonicClock
from tests.support.capped_types import uncapped
from tests.support.models.model_folders import write_tokenizer
from tests.support.servers.server import Server

MODEL = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
TOKENIZER = load_tokenizer(MODEL)
DIALECT = tool_dialect(TOKENIZER.chat_template)
CONTEXT_TOKENS = 2048


def ask(task: TokenTask, **fields: Any) -> Any:
    answer = TokenReader(TOKENIZER, MODEL.name, DIALECT).read(
        task, json.dumps(fields).encode(), CONTEXT_TOKENS
    )
    return answer if isinstance(answer, PackedError) else json.loads(answer)


def test_tokens_of_a_text_come_back_as_the_text() -> None:
    found = ask(TokenTask.TOKENIZE, prompt="naïve café", return_token_strs=True)
    back = ask(TokenTask.DETOKENIZE, tokens=found["tokens"])

    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == CONTEXT_TOKENS
    assert found["tokens"] == TOKENIZER.encode("naïve café")
    assert back == {"prompt": "naïve café"}


def test_an_empty_text_has_no_tokens_and_no_tokens_have_no_text() -> None:
    assert ask(TokenTask.TOKENIZE, prompt="", add_special_tokens=False)["tokens"] == []
    assert ask(TokenTask.DETOKENIZE, tokens=[]) == {"prompt": ""}


@pytest.mark.parametrize(
    ("task", "fields", "param"),
    [
        (TokenTask.TOKENIZE, {}, "prompt"),
        (TokenTask.TOKENIZE, {"prompt": "a", "messages": [{"role": "user", "content": "a"}]},
         "prompt"),
        (TokenTask.TOKENIZE, {"prompt": "a", "add_generation_prompt": True},
         "add_generation_prompt"),
        (TokenTask.TOKENIZE, {"prompt": "a", "continue_final_message": True},
         "continue_final_message"),
        (TokenTask.TOKENIZE, {"prompt": "a", "colour": 1}, "colour"),
        (TokenTask.TOKENIZE, {"prompt": "a", "model": "other"}, "model"),
        (TokenTask.TOKENIZE, {"prompt": 3}, "prompt"),
        (TokenTask.DETOKENIZE, {}, "tokens"),
        (TokenTask.DETOKENIZE, {"tokens": [TOKENIZER.vocab_size]}, "tokens"),
        (TokenTask.DETOKENIZE, {"tokens": [-1]}, "tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_by_name(
    task: TokenTask, fields: dict[str, Any], param: str
) -> None:
    refused = ask(task, **fields)

    assert isinstance(refused, PackedError)
    assert refused.status in (400, 404)
    assert (refused.param or "").partition("[")[0] == param


@pytest.mark.parametrize(
    ("task", "fields"),
    [(TokenTask.TOKENIZE, {"prompt": "a"}), (TokenTask.DETOKENIZE, {"tokens": [97]})],
)
def test_an_adapter_is_a_model_that_has_the_tokens_of_its_base(
    task: TokenTask, fields: dict[str, Any]
) -> None:
    reader = TokenReader(TOKENIZER, MODEL.name, DIALECT)

    def named(model: str) -> bytes | PackedError:
        body = json.dumps({**fields, "model": model}).encode()
        return reader.read(task, body, CONTEXT_TOKENS, ["writer"])

    refused = named("other")
    assert named("writer") == named(MODEL.name)
    assert isinstance(refused, PackedError)
    assert refused.status == 404
    assert "'writer'" in refused.message


def test_no_answer_has_more_than_can_be_written_in_one_piece(tmp_path: Path) -> None:
    """However much larger than its body it would be: a rare character is several tokens, and a
    token may be a long text."""
    most = limits.TOKENIZED_IDS.value
    many = ask(TokenTask.TOKENIZE, prompt="é" * (most // 2 + 1))
    assert isinstance(many, PackedError)
    assert (many.status, many.param) == (400, "prompt")
    assert str(most) in many.message

    folder = write_tokenizer(tmp_path, ["x" * 128])
    model = ModelRef(kind=ModelKind.HF_FOLDER, path=str(folder), name="folder")
    reader = TokenReader(load_tokenizer(model), model.name, DIALECT)
    for count, is_refused in ((65_536, False), (65_537, True)):
        body = json.dumps({"tokens": [2] * count}).encode()
        found = reader.read(TokenTask.DETOKENIZE, body, CONTEXT_TOKENS)
        assert isinstance(found, PackedError) == is_refused


def test_no_field_of_the_bodies_is_without_a_cap() -> None:
    assert uncapped(TokenizeBody) == []
    assert uncapped(DetokenizeBody) == []


def test_a_worker_answers_a_long_body_as_it_is_answered_in_place() -> None:
    reader = BodyReader(TOKENIZER, MODEL.name, SamplingDefaults(), MonotonicClock())
    long = msgspec.json.encode({"prompt": "hello " * IN_PLACE_BYTES})
    wrong = msgspec.json.encode({"prompt": "hello " * IN_PLACE_BYTES, "model": "other"})
    named = msgspec.json.encode({"prompt": "hello " * IN_PLACE_BYTES, "model": "writer"})

    async def scenario() -> bytes:
        running = IngestPool(reader, MODEL, 1)
        try:
            with pytest.raises(ApiError) as caught:
                await running.tokens(TokenTask.TOKENIZE, wrong, CONTEXT_TOKENS)
            assert caught.value.status == 404
            found = await running.tokens(TokenTask.TOKENIZE, long, CONTEXT_TOKENS)
            served = ["writer"]
            assert found == await running.tokens(TokenTask.TOKENIZE, named, CONTEXT_TOKENS, served)
            return found
        finally:
            await running.close()

    in_place = TokenReader(TOKENIZER, MODEL.name, DIALECT)
    here = in_place.read(TokenTask.TOKENIZE, long, CONTEXT_TOKENS)

    assert asyncio.run(scenario()) == here


def test_the_server_counts_the_tokens_that_a_completion_is_charged(server: Server) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    counted = server.client.post("/tokenize", json={"messages": messages}).json()
    body = {"messages": messages, "max_tokens": 1, "temperature": 0}
    charged = server.client.post("/v1/chat/completions", json=body).json()
    text = server.client.post("/detokenize", json={"tokens": counted["tokens"]}).json()["prompt"]

    open_end = {"messages": messages, "add_generation_prompt": False}
    shorter = server.client.post("/tokenize", json=open_end).json()

    assert shorter["tokens"] == counted["tokens"][: shorter["count"]]
    assert shorter["count"] < counted["count"]
    assert counted["count"] == charged["usage"]["prompt_tokens"]
    assert "capital of France?" in text
    assert text.endswith("<|im_start|>assistant\n")
    assert server.client.post("/tokenize", json={"prompt": "a", "n": 1}).status_code == 400
