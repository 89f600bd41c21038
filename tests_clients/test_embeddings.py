"""Embeddings as the official client and LangChain ask for them, of the default model's states."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.servers.server import Server
from tests_clients.conftest import Program

MODEL = "SmolLM2-135M-Instruct"
SIZE = 576  # of that model's states


@pytest.fixture(scope="module")
def embedder() -> Iterator[Server]:
    """A vector is the mean over a text's states, since the model's files name no pooling."""
    with Server("--pooling", "mean") as running:
        yield running


def test_the_official_client_gets_a_vector_for_each_text(embedder: Server) -> None:
    """As numbers: it asks for base64 itself, and decodes it."""
    client = openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none", max_retries=0)
    answer = client.embeddings.create(model=MODEL, input=["one text", "another"])
    (alone,) = client.embeddings.create(model=MODEL, input="one text", encoding_format="float").data

    assert [len(one.embedding) for one in answer.data] == [SIZE, SIZE]
    assert answer.data[0].embedding == pytest.approx(alone.embedding, rel=1e-2, abs=1e-2)
    assert answer.usage.prompt_tokens > 0


def test_langchain_embeds_documents_and_a_query(embedder: Server, run_program: Program) -> None:
    found = run_program(
        "langchain", "langchain_examples.py", f"{embedder.url}/v1", MODEL, "embeddings"
    )

    assert found == {"sizes": [SIZE, SIZE], "query": SIZE}
