"""LangChain's examples (tests_clients/programs/langchain_examples.py) against the default model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.servers.server import Server
from tests_clients.conftest import Program

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture
def example(server: Server, run_program: Program) -> Any:
    def run(name: str) -> dict[str, Any]:
        return run_program("langchain", "langchain_examples.py", f"{server.url}/v1", MODEL, name)

    return run


def test_invoke(example: Any) -> None:
    found = example("invoke")

    assert found["text"]
    assert found["usage"]["output_tokens"] <= 24


def test_stream(example: Any) -> None:
    """Piece by piece, with usage at the end."""
    found = example("stream")

    assert found["text"]
    assert found["pieces"] > 3
    assert found["usage"]["output_tokens"] <= 24


@pytest.mark.parametrize("name", ["batch", "abatch"])
def test_batch(example: Any, name: str) -> None:
    assert all(example(name)["texts"])


def test_logprobs(example: Any) -> None:
    assert example("logprobs") == {"tokens": 4}


def test_completion(example: Any) -> None:
    found = example("completion")

    assert found["text"]
    assert found["n"] > 1


@pytest.mark.parametrize("name", ["structured", "structured_by_tool"])
def test_structured_output(example: Any, name: str) -> None:
    """By schema, and by a tool that must be called."""
    found = example(name)

    assert found["type"] == "Joke"
    assert isinstance(found["setup"], str)


def test_json_mode(example: Any) -> None:
    assert isinstance(example("json_mode")["value"], dict)


def test_bind_tools(example: Any) -> None:
    (call,) = example("bind_tools")["calls"]

    assert call["name"] in ("GetWeather", "multiply")


def test_bind_tools_streamed(example: Any) -> None:
    found = example("bind_tools_streamed")
    (call,) = found["calls"]

    assert call["name"] == "GetWeather"
    assert isinstance(call["args"]["location"], str)
    assert found["pieces"] > 1


def test_tool_result(example: Any) -> None:
    found = example("tool_result")

    assert found["text"] or found["calls"]


def test_responses(example: Any) -> None:
    assert example("responses")["text"]
