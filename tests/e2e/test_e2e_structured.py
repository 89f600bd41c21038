"""Structured output on the real server: valid texts, clear refusals, waits that are named."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from tests.support.servers.server import Server, eventually, sse_events

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def chat(**fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "Describe a person as JSON."}
    return {"messages": [message], "max_tokens": 120, "temperature": 0.7, "seed": 3, **fields}


def test_the_openai_client_gets_an_object_of_its_schema(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    raw = client.chat.completions.with_raw_response.create(
        model="SmolLM2-135M-Instruct",
        **chat(response_format=json_schema(PERSON)),
    )
    answer = raw.parse()
    text = answer.choices[0].message.content
    facts = server.facts_of(raw.headers["x-request-id"])

    assert answer.choices[0].finish_reason == "stop"
    assert set(json.loads(text or "")) >= {"name", "age"}
    assert facts["output_valid"] is True
    assert facts["sequences"][0]["wait_ns"]["grammar"] > 0
    assert facts["sequences"][0]["grammar_compile_ns"] is not None


def test_a_grammar_is_compiled_once_and_masks_are_counted(server: Server) -> None:
    before = server.snapshot()["totals"]
    body = {"prompt": "Answer:", "max_tokens": 20, "structured_outputs": {"regex": "(yes|no)!"}}
    texts = [server.completion(**body).json()["choices"][0]["text"] for _ in range(2)]
    judged = lambda: server.snapshot()["totals"]["outputs_valid"] - before["outputs_valid"]  # noqa: E731
    eventually(lambda: judged() == 2, "both answers judged")  # which is after they were sent
    after = server.snapshot()["totals"]
    metrics = server.client.get("/metrics").text

    assert all(re.fullmatch("(yes|no)!", text) for text in texts)
    assert after["grammars_compiled"] - before["grammars_compiled"] == 1
    assert after["grammars_cached"] - before["grammars_cached"] == 1
    assert after["masked_tokens"] > before["masked_tokens"]
    for name in ("phasescope_grammar_mask_seconds_total", "phasescope_sampled_masked_tokens_total"):
        assert name in metrics


def test_choices_streams_and_stop_strings_work_under_a_grammar(server: Server) -> None:
    body = {
        "prompt": "Numbers: ", "max_tokens": 40, "n": 2, "stream": True, "seed": 5,
        "structured_outputs": {"regex": "[0-9]{3}(, [0-9]{3})*"}, "stop": ", ",
        "temperature": 1.0,
    }  # fmt: skip
    texts = {0: "", 1: ""}
    with server.client.stream("POST", "/v1/completions", json=body) as answer:
        for event in sse_events(answer.iter_lines()):
            for choice in event["choices"] if event != "[DONE]" else ():
                texts[choice["index"]] += choice["text"]

    assert all(re.fullmatch("[0-9]{3}", text) for text in texts.values())


def test_a_text_that_was_cut_is_neither_valid_nor_invalid(server: Server) -> None:
    answer = server.client.post(
        "/v1/chat/completions", json=chat(response_format=json_schema(PERSON), max_tokens=3)
    )

    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert server.facts_of(answer.headers["x-request-id"])["output_valid"] is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"response_format": json_schema({"type": "strnig"})}, "strnig"),
        ({"response_format": json_schema({"type": "object", "if": {"type": "null"}})}, "if"),
        ({"response_format": json_schema({"enum": []})}, "nsatisfiable"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"structured_outputs": {"regex": "(unclosed"}}, "regex"),
        ({"structured_outputs": {"grammar": "root ::= missing"}}, "missing"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "end"),
    ],
)  # fmt: skip
def test_an_unsupported_constraint_is_a_400_with_the_reason(
    server: Server, fields: dict[str, Any], words: str
) -> None:
    """Twice, with the same words: from the compiler, and from its cache."""
    answers = [server.client.post("/v1/chat/completions", json=chat(**fields)) for _ in range(2)]
    messages = [answer.json()["error"]["message"] for answer in answers]

    assert [answer.status_code for answer in answers] == [400, 400]
    assert messages[0] == messages[1]
    assert words in messages[0] + str(answers[0].json()["error"]["param"])


def test_candidates_that_are_not_sent_are_not_judged(server: Server) -> None:
    """Their text is not made: it would be an empty one that obeys nothing."""
    regex = {"regex": "(yes|no)!"}
    answer = server.completion(max_tokens=20, best_of=4, structured_outputs=regex)
    facts = server.facts_of(answer.headers["x-request-id"])

    (choice,) = answer.json()["choices"]
    assert re.fullmatch(regex["regex"], choice["text"])
    assert facts["output_valid"] is True
