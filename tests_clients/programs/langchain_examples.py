"""LangChain's own examples of ChatOpenAI and OpenAIEmbeddings: `FILE BASE_URL MODEL EXAMPLE`.

Runs in an environment that has langchain-openai and nothing of ours; prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

SAID = [
    ("system", "You are a helpful assistant that translates English to French."),
    ("human", "I love programming."),
]
# a small model repeats itself within a text that has no limit; the client raises at a cut one
ENDING = {"max_tokens": 800, "frequency_penalty": 1.0}


class GetWeather(BaseModel):
    """Get the current weather in a given location."""

    location: str = Field(description="The city and state, e.g. San Francisco, CA")


class Joke(BaseModel):
    """Joke to tell user."""

    setup: str = Field(description="The setup of the joke")
    punchline: str = Field(description="The punchline to the joke")


@tool
def multiply(a: int, b: int) -> int:
    """Multiply a and b."""
    return a * b


def chat(url: str, model: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=url, model=model, api_key="none", temperature=0, max_retries=0, timeout=120, **more
    )


def invoke(url: str, model: str) -> dict[str, Any]:
    answer = chat(url, model, max_tokens=24).invoke(SAID)
    return {"text": answer.content, "usage": answer.usage_metadata}


def stream(url: str, model: str) -> dict[str, Any]:
    pieces = list(chat(url, model, max_tokens=24, stream_usage=True).stream(SAID))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece
    return {"text": whole.content, "pieces": len(pieces), "usage": whole.usage_metadata}


def batch(url: str, model: str) -> dict[str, Any]:
    prompt = ChatPromptTemplate.from_messages([("human", "Say {word}.")])
    chain = prompt | chat(url, model, max_tokens=8) | StrOutputParser()
    return {"texts": chain.batch([{"word": "one"}, {"word": "two"}])}


def abatch(url: str, model: str) -> dict[str, Any]:
    async def ask() -> list[str]:
        one = chat(url, model, max_tokens=8)
        return [answer.content for answer in await one.abatch([SAID, SAID])]

    return {"texts": asyncio.run(ask())}


def logprobs(url: str, model: str) -> dict[str, Any]:
    answer = chat(url, model, max_tokens=4).bind(logprobs=True).invoke(SAID)
    return {"tokens": len(answer.response_metadata["logprobs"]["content"])}


def completion(url: str, model: str) -> dict[str, Any]:
    llm = OpenAI(base_url=url, model=model, api_key="none", max_tokens=8, temperature=0)
    return {"text": llm.invoke("Once upon a time"), "n": len(list(llm.stream("Once upon")))}


def structured(url: str, model: str) -> dict[str, Any]:
    llm = chat(url, model, **ENDING).with_structured_output(Joke, method="json_schema")
    found = llm.invoke("Tell me a joke about cats")
    return {"type": type(found).__name__, **found.model_dump()}


def structured_by_tool(url: str, model: str) -> dict[str, Any]:
    llm = chat(url, model, **ENDING).with_structured_output(Joke, method="function_calling")
    found = llm.invoke("Tell me a joke about cats")
    return {"type": type(found).__name__, **found.model_dump()}


def json_mode(url: str, model: str) -> dict[str, Any]:
    llm = chat(url, model, **ENDING).bind(response_format={"type": "json_object"})
    return {"value": json.loads(llm.invoke("A JSON object with the key a.").content)}


def bind_tools(url: str, model: str) -> dict[str, Any]:
    llm = chat(url, model, max_tokens=120).bind_tools(
        [GetWeather, multiply], tool_choice="required", parallel_tool_calls=False
    )
    answer = llm.invoke("what is the weather like in San Francisco")
    return {"calls": answer.tool_calls}


def bind_tools_streamed(url: str, model: str) -> dict[str, Any]:
    llm = chat(url, model, max_tokens=120).bind_tools([GetWeather], tool_choice="GetWeather")
    pieces = list(llm.stream("what is the weather like in San Francisco"))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece
    return {"calls": whole.tool_calls, "pieces": len(pieces)}


def tool_result(url: str, model: str) -> dict[str, Any]:
    call = {"name": "multiply", "args": {"a": 2, "b": 3}, "id": "call_1", "type": "tool_call"}
    said = [
        HumanMessage("What is 2 times 3?"),
        AIMessage("", tool_calls=[call]),
        ToolMessage("6", tool_call_id="call_1"),
    ]
    answer = chat(url, model, max_tokens=16).bind_tools([multiply]).invoke(said)
    return {"text": answer.content, "calls": answer.tool_calls}


def responses(url: str, model: str) -> dict[str, Any]:
    answer = chat(url, model, use_responses_api=True, max_tokens=24).invoke(SAID)
    return {"text": answer.text if isinstance(answer.text, str) else answer.text()}


def embeddings(url: str, model: str) -> dict[str, Any]:
    """Texts as they are: by default LangChain would send tokens of OpenAI's own vocabulary."""
    found = OpenAIEmbeddings(
        base_url=url, model=model, api_key="none", check_embedding_ctx_length=False
    )
    vectors = found.embed_documents(["one", "two"])
    return {"sizes": [len(one) for one in vectors], "query": len(found.embed_query("one"))}


EXAMPLES = {
    one.__name__: one
    for one in (
        invoke, stream, batch, abatch, logprobs, completion, structured, structured_by_tool,
        json_mode, bind_tools, bind_tools_streamed, tool_result, responses, embeddings,
    )
}  # fmt: skip

if __name__ == "__main__":
    base_url, served, example = sys.argv[1:]
    print(json.dumps(EXAMPLES[example](base_url, served)))
