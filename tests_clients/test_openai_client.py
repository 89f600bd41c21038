"""The examples of the official client's own documentation, against the default model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from pydantic import BaseModel

from tests.support.servers.server import Server

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


class Step(BaseModel):
    """One step of a sum."""

    explanation: str
    output: str


class Answer(BaseModel):
    """A sum, step by step."""

    steps: list[Step]
    final_answer: str


class Weather(BaseModel):
    """Arguments of a tool."""

    city: str


SAID = [
    {"role": "developer", "content": "Talk like a pirate."},
    {"role": "user", "content": "How do I check if a Python object is an instance of a class?"},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=SAID, max_completion_tokens=24)  # type: ignore[call-overload]

    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 24


def test_chat_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=SAID, max_completion_tokens=12, stream=True  # type: ignore[call-overload]
    )  # fmt: skip
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    assert text


def test_chat_streamed_with_the_stream_helper(client: openai.OpenAI) -> None:
    """The helper builds the whole answer from the events, and would raise at one that is odd."""
    asked = {"role": "user", "content": "What is the capital of France?"}
    with client.chat.completions.stream(
        model=MODEL, messages=[asked], max_completion_tokens=60, temperature=0  # type: ignore[list-item]
    ) as stream:  # fmt: skip
        kinds = {event.type for event in stream}
        whole = stream.get_final_completion()

    assert {"content.delta", "content.done", "chunk"} <= kinds
    assert whole.choices[0].message.content


def test_structured_output_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Solve 8x + 31 = 2."}],
        response_format=Answer,
        max_completion_tokens=400,
        temperature=0,
    )
    choice = answer.choices[0]

    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Answer)


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Say this is a test", max_tokens=7)

    assert answer.choices[0].text
    assert answer.usage is not None


def test_async_client(server: Server) -> None:
    async def ask() -> str | None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            answer = await client.chat.completions.create(
                model=MODEL, messages=SAID, max_completion_tokens=8  # type: ignore[call-overload]
            )  # fmt: skip
            content: str | None = answer.choices[0].message.content
            return content

    assert asyncio.run(ask())


def test_raw_response_has_the_request_id(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(  # type: ignore[call-overload]
        model=MODEL, messages=SAID, max_completion_tokens=2
    )

    assert raw.headers["x-request-id"] == raw.parse().id.removeprefix("chatcmpl-")


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=MODEL, prompt="x", temperature=9)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")


def test_models(client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()][:1] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_tools(client: openai.OpenAI) -> None:
    """A call that must come, its arguments by the schema, and the answer to its result."""
    question = {"role": "user", "content": "What is the weather in Paris?"}
    first = client.chat.completions.create(
        model=MODEL, messages=[question], tools=[TOOL], tool_choice="required", temperature=0,
        max_completion_tokens=120,
    )  # type: ignore[call-overload]  # fmt: skip
    message = first.choices[0].message
    (call,) = message.tool_calls[:1]
    Weather.model_validate_json(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "14 degrees"}
    second = client.chat.completions.create(
        model=MODEL, messages=[question, message, result], tools=[TOOL], tool_choice="none",
        max_completion_tokens=20,
    )  # type: ignore[call-overload]  # fmt: skip

    assert first.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "get_weather"
    assert second.choices[0].message.content


def test_a_pydantic_tool_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        max_completion_tokens=120,
        temperature=0,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls

    assert isinstance(calls[0].function.parsed_arguments, Weather)


def test_responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL, instructions="Be brief.", input="Say this is a test.", max_output_tokens=16
    )

    assert answer.output_text


def test_responses_streamed(client: openai.OpenAI) -> None:
    events = list(
        client.responses.create(model=MODEL, input="Hello", max_output_tokens=16, stream=True)
    )

    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert any(event.type == "response.output_text.delta" for event in events)


def test_responses_parsed(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model=MODEL, input="Solve 8x + 31 = 2.", text_format=Answer, max_output_tokens=400,
        temperature=0,
    )  # fmt: skip

    assert isinstance(answer.output_parsed, Answer)
