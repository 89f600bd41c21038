"""LiteLLM's proxy in front of a server of ours, asked by the official client."""

from __future__ import annotations

import json
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from pydantic import BaseModel

from benchmarks.clients.environments import environment
from tests.support.servers.server import Server, eventually, free_port

MODEL = "SmolLM2-135M-Instruct"
SAID = [{"role": "user", "content": "What is the capital of France?"}]
_START_TIMEOUT_S = 240.0
KEY = f"sk-{secrets.token_hex(24)}"  # the proxy does not start without one
# as LiteLLM's documentation says for servers of OpenAI's API, and for those of vLLM
PROVIDERS = {"plain": "openai", "as-vllm": "hosted_vllm"}


class Capital(BaseModel):
    """A city."""

    city: str


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[str]:
    """The address of the proxy."""
    models = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"{provider}/{MODEL}",
                "api_base": f"{server.url}/v1",
                "api_key": "none",
            },
        }
        for name, provider in PROVIDERS.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "log"
        settings = {"model_list": models, "general_settings": {"master_key": KEY}}
        config.write_text(json.dumps(settings))  # YAML is a superset of JSON
        port = free_port()
        program = environment("litellm") / "bin" / "litellm"
        command = [
            str(program),
            "--config",
            str(config),
            "--port",
            str(port),
            "--telemetry",
            "False",
        ]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                return httpx.get(f"{url}/health/liveliness").status_code == 200
            except httpx.TransportError:
                return False

        try:
            eventually(answers, "the proxy", _START_TIMEOUT_S)
            yield url
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture(params=PROVIDERS)
def model(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def client(proxy: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=proxy, api_key=KEY, max_retries=0)


def test_chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=SAID, max_tokens=20, temperature=0  # type: ignore[arg-type]
    )  # fmt: skip

    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_stream(client: openai.OpenAI, model: str) -> None:
    stream = client.chat.completions.create(
        model=model, messages=SAID, max_tokens=20, temperature=0, stream=True,  # type: ignore[arg-type]
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

    assert "Paris" in text
    assert any(chunk.usage for chunk in chunks)


def test_structured_output(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(
        model=model, messages=SAID, response_format=Capital, max_tokens=60, temperature=0  # type: ignore[arg-type]
    )  # fmt: skip

    assert isinstance(answer.choices[0].message.parsed, Capital)


def test_tools(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=SAID, max_tokens=120, temperature=0, tool_choice="required",  # type: ignore[call-overload]
        tools=[openai.pydantic_function_tool(Capital)],
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls[:1]

    Capital.model_validate_json(call.function.arguments)


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="plain", prompt="Once upon a time", max_tokens=8)

    assert answer.choices[0].text


def test_a_refusal_keeps_its_status(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="repetition_penalty"):
        client.chat.completions.create(
            model="plain", messages=SAID, extra_body={"repetition_penalty": 9}  # type: ignore[arg-type]
        )  # fmt: skip
