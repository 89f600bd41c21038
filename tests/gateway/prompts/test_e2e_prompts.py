"""What clients ask of prompts: echo, scores, the best of several, embeddings."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.models.scripted_model import scripted_folder
from tests.support.servers.server import Server, eventually

TEXT = "The capital of France is Paris, and the capital of Italy is Rome."


@pytest.fixture(scope="module")
def pooled() -> Iterator[Server]:
    """Random weights in float32, whose states are pooled because a flag says so."""
    flags = ("--model", "dummy:tiny", "--dtype", "float32", "--pooling", "mean")
    with Server(*flags, "--max-num-seqs", "4") as running:
        yield running
        eventually(running.is_empty, "an empty engine after the tests")


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a tokenizer for which a space that a text begins with is none of it."""
    follows = {"<|assistant|>": " It", " It": " is", " is": " four."}
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    folder = scripted_folder(tmp_path_factory.mktemp("spaced"), follows, template, spaced=True)
    with Server("--model", str(folder), "--max-num-seqs", "4") as running:
        yield running
        eventually(running.is_empty, "an empty engine after the tests")


def complete(server: Server, **body: Any) -> dict[str, Any]:
    answer = server.client.post("/v1/completions", json={"temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refusal(server: Server, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


def embed(server: Server, **body: Any) -> list[list[float]]:
    answer = server.client.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    return [one["embedding"] for one in answer.json()["data"]]


def test_an_echoed_prompt_is_scored_as_its_tokens_would_be_generated(server: Server) -> None:
    """As evaluation harnesses ask for it; a prompt that greedy decoding wrote has the scores that
    it had when it was generated."""
    whole = complete(server, prompt=TEXT, max_tokens=12, logprobs=2)
    continued = whole["choices"][0]
    echoed = complete(server, prompt=TEXT + continued["text"], max_tokens=0, echo=True, logprobs=2)
    (choice,) = echoed["choices"]
    scores = choice["logprobs"]
    count = len(scores["tokens"])
    generated = continued["logprobs"]["token_logprobs"]

    assert choice["text"] == TEXT + continued["text"]
    assert choice["finish_reason"] == "length"
    assert echoed["usage"]["completion_tokens"] == 0
    assert echoed["usage"]["prompt_tokens"] == count
    assert {len(values) for values in scores.values()} == {count}
    assert scores["token_logprobs"][0] is None
    assert scores["top_logprobs"][0] is None
    assert scores["token_logprobs"][-len(generated) :] == pytest.approx(generated, abs=0.05)
    assert "".join(scores["tokens"]) == choice["text"]
    for place, token in zip(scores["text_offset"], scores["tokens"], strict=True):
        assert choice["text"][place:].startswith(token)
    for own, top in zip(scores["token_logprobs"][1:], scores["top_logprobs"][1:], strict=True):
        assert max(top.values()) >= own


def test_scores_of_prompt_and_output_are_one_list(server: Server) -> None:
    plain = complete(server, prompt=[TEXT, "Hello"], max_tokens=3, logprobs=1)
    both = complete(
        server, prompt=[TEXT, "Hello"], max_tokens=3, logprobs=1, echo=True, prompt_logprobs=0
    )
    for alone, choice in zip(plain["choices"], both["choices"], strict=True):
        scores = choice["logprobs"]
        assert choice["text"].endswith(alone["text"])
        generated = alone["logprobs"]["token_logprobs"]
        assert scores["token_logprobs"][-3:] == pytest.approx(generated, abs=0.05)
        assert scores["tokens"][-3:] == alone["logprobs"]["tokens"]
        assert choice["text"][scores["text_offset"][-3] :] == alone["text"]
        by_id = choice["prompt_logprobs"]
        own = [next(iter(entry.values()))["logprob"] for entry in by_id[1:]]
        assert by_id[0] is None
        assert all(len(entry) == 1 for entry in by_id[1:])
        assert own == scores["token_logprobs"][1:-3]


def test_prompt_logprobs_of_a_conversation_name_ids_and_ranks(server: Server) -> None:
    body = {
        "messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 2,
        "temperature": 0, "prompt_logprobs": 3,
    }  # fmt: skip
    answer = server.client.post("/v1/chat/completions", json=body).json()
    by_id = answer["prompt_logprobs"]
    ids = server.client.post("/tokenize", json={"messages": body["messages"]}).json()["tokens"]

    assert len(by_id) == len(ids) == answer["usage"]["prompt_tokens"]
    for token_id, entry in zip(ids[1:], by_id[1:], strict=True):
        own = entry[str(token_id)]
        likelier = [one for one in entry.values() if one["logprob"] > own["logprob"]]
        assert 3 <= len(entry) <= 4
        assert own["rank"] > len(likelier) or own["rank"] == 1


def test_a_streamed_echo_begins_with_the_prompt(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    texts = ["", ""]
    for chunk in client.completions.create(
        model="SmolLM2-135M-Instruct", prompt=TEXT, max_tokens=3, n=2, echo=True, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text

    assert all(text.startswith(TEXT) and len(text) > len(TEXT) for text in texts)


def test_prompt_and_completion_are_the_text_of_their_tokens_together(spaced: Server) -> None:
    """The space before the first generated word is one of the text."""
    answer = complete(spaced, prompt="2+2 is", max_tokens=1, echo=True, return_token_ids=True)
    (choice,) = answer["choices"]
    ids = [*choice["prompt_token_ids"], *choice["token_ids"]]
    whole = spaced.client.post("/detokenize", json={"tokens": ids}).json()["prompt"]

    assert choice["text"] == whole == "2+2 is four."


def test_an_answer_begins_with_a_space_only_where_it_continues_a_message(spaced: Server) -> None:
    asked = [{"role": "user", "content": "2+2?"}]
    begun = [*asked, {"role": "assistant", "content": "It is"}]

    def said(**fields: Any) -> str:
        answer = spaced.client.post("/v1/chat/completions", json={"temperature": 0, **fields})
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    assert said(messages=asked) == "It is four."
    assert said(messages=begun, continue_final_message=True) == " four."


def test_the_best_of_several_has_the_highest_logprob_per_token(pooled: Server) -> None:
    """In float32: in bfloat16 logits differ with the shapes of a batch, and a text may part."""
    shared = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 1.5, "seed": 5}
    every = complete(pooled, n=6, logprobs=0, **shared)
    best = complete(pooled, n=2, best_of=6, **shared)

    def mean(choice: dict[str, Any]) -> float:
        scores = choice["logprobs"]["token_logprobs"]
        return float(sum(scores) / len(scores))

    ranked = sorted(every["choices"], key=mean, reverse=True)
    assert [c["text"] for c in best["choices"]] == [c["text"] for c in ranked[:2]]
    assert [c["index"] for c in best["choices"]] == [0, 1]
    assert all(c["logprobs"] is None for c in best["choices"])
    assert best["usage"] == every["usage"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 17}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
    ],
)
def test_what_cannot_be_had_of_prompts_is_refused_by_name(
    server: Server, body: dict[str, Any], param: str
) -> None:
    assert refusal(server, prompt="Hello", **body)["param"] == param


def test_a_model_without_a_pooling_has_no_embeddings(server: Server) -> None:
    error = refusal(server, "/v1/embeddings", input="Hello")

    assert error["code"] == "no_embeddings"
    assert "--pooling" in error["message"]


def test_embeddings_come_through_the_official_client(pooled: Server) -> None:
    """The client asks for base64, and decodes it."""
    client = openai.OpenAI(base_url=f"{pooled.url}/v1", api_key="none", max_retries=0)
    texts = ["one text", "another text", "one text"]
    found = client.embeddings.create(model="dummy:tiny", input=texts)
    (alone,) = embed(pooled, input=texts[1])
    (packed,) = embed(pooled, input=texts[1], encoding_format="base64")

    assert [one.index for one in found.data] == [0, 1, 2]
    assert found.data[0].embedding == pytest.approx(found.data[2].embedding, abs=1e-5)
    assert found.data[1].embedding == pytest.approx(alone, abs=1e-4)
    assert found.data[1].embedding != pytest.approx(found.data[0].embedding, abs=1e-3)
    data = base64.b64decode(packed)  # type: ignore[arg-type]
    assert struct.unpack(f"<{len(data) // 4}f", data) == pytest.approx(alone, abs=1e-6)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


def test_many_inputs_are_computed_a_few_at_a_time(pooled: Server) -> None:
    tokens = [[10 + index % 200, 11, 12] for index in range(300)]
    vectors = embed(pooled, input=tokens)
    (last,) = embed(pooled, input=tokens[-1])

    assert len(vectors) == 300
    assert vectors[-1] == pytest.approx(last, abs=1e-4)
    assert all(math.isfinite(value) for vector in vectors for value in vector)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [1 << 20]}, "input"),
        ({"input": "word " * 100_000}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 3}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "stream": True}, "stream"),
    ],
)
def test_inputs_that_have_no_embedding_are_refused_by_name(
    pooled: Server, body: dict[str, Any], param: str
) -> None:
    assert refusal(pooled, "/v1/embeddings", **body)["param"] == param


def test_an_embedding_is_accounted_like_any_request(pooled: Server) -> None:
    answer = pooled.client.post("/v1/embeddings", json={"input": "a text of its own"})
    facts = pooled.facts_of(answer.headers["x-request-id"])
    names = [phase["name"] for phase in facts["phases"]]
    metrics = pooled.client.get("/metrics").text

    assert facts["outcome"] == "finished"
    assert names[-3:] == ["prefill", "detokenize", "deliver"]
    assert "decode" not in names
    assert 'gen_ai_operation_name="embeddings"' in metrics


def test_the_accounts_of_scored_prompts_sum_to_their_time(server: Server) -> None:
    answer = server.client.post(
        "/v1/completions",
        json={"prompt": TEXT * 20, "max_tokens": 2, "echo": True, "logprobs": 1},
    )
    facts = server.facts_of(answer.headers["x-request-id"])

    assert facts["ledger"]["sum_ns"] == facts["e2e_ns"]
    assert facts["ledger"]["residue_ns"] == 0
