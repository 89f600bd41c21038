"""The `openai` client, as users have it, against the real server and the default model."""

from __future__ import annotations

import openai
import pytest

from tests.support.servers.server import Server

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_streamed_chat_answers_in_sensible_english(client: openai.OpenAI) -> None:
    """Greedy, streamed, with usage at the end."""
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, finish, usage = "", None, None
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage

    assert text == "The capital of France is Paris."
    assert finish == "stop"
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (37, 8, 45)


def test_a_whole_answer_equals_the_streamed_one(client: openai.OpenAI) -> None:
    """Same request, both ways of delivery, several choices with a seed."""
    wanted = {
        "model": MODEL,
        "prompt": "Once upon a time",
        "max_tokens": 12,
        "temperature": 0.8,
        "seed": 11,
        "n": 3,
    }
    whole = client.completions.create(**wanted)  # type: ignore[call-overload]
    texts = {choice.index: choice.text for choice in whole.choices}
    streamed = dict.fromkeys(texts, "")
    for chunk in client.completions.create(**wanted, stream=True):  # type: ignore[call-overload]
        for choice in chunk.choices:
            streamed[choice.index] += choice.text

    assert streamed == texts
    assert len(set(texts.values())) == 3
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 4


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    """The stop string itself is not shown, and the finish reason is stop."""
    answer = client.completions.create(
        model=MODEL, prompt="1, 2, 3, 4, 5, 6,", max_tokens=40, temperature=0, stop=["9"]
    )

    assert answer.choices[0].text == " 7, 8, "
    assert answer.choices[0].finish_reason == "stop"


def test_logprobs_come_in_the_shape_of_the_chat_api(client: openai.OpenAI) -> None:
    """Token, log-probability, bytes and the alternatives, the best first."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=4,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None

    assert [entry.token for entry in logprobs.content] == ["The", " capital", " of", " France"]
    for entry in logprobs.content:
        assert entry.bytes == list(entry.token.encode())
        best = [top.logprob for top in entry.top_logprobs]
        assert best == sorted(best, reverse=True)
        assert best[0] == entry.logprob <= 0


def test_models_are_listed(client: openai.OpenAI) -> None:
    """The one model, under the name that requests use."""
    assert [model.id for model in client.models.list()] == [MODEL]


def test_errors_have_the_clients_types(client: openai.OpenAI) -> None:
    """A wrong field becomes the client's own BadRequestError, a wrong model NotFoundError."""
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=MODEL, prompt="x", temperature=9)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")


def test_sampling_defaults_are_those_that_the_models_authors_recommend(
    server: Server,
) -> None:
    """The defaults are stated with the model, and the answer makes sense with any seed."""
    (model,) = server.client.get("/v1/models").json()["data"]
    assert model["default_sampling"]["temperature"] == 0.2
    message = {"role": "user", "content": "What is the capital of France?"}
    for seed in range(4):
        body = {"messages": [message], "max_tokens": 30, "seed": seed}
        answer = server.client.post("/v1/chat/completions", json=body).json()
        assert "Paris" in answer["choices"][0]["message"]["content"]
