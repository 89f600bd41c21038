"""Turns the body of POST /v1/responses into a GenerationRequest.

Its input becomes the messages of a chat, and is checked as one; errors name its own fields. The
server keeps nothing between requests, so what refers to an earlier response is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from service.config.settings import SamplingDefaults
from service.gateway.errors import ApiError, bad_request
from service.gateway.ingest.decoding import decode
from service.gateway.ingest.request_types import (
    ChatBody,
    ChatMessage,
    NamedSchema,
    ResponseFormat,
)
from service.gateway.ingest.responses_body import (
    InputItem,
    InputPart,
    NotStored,
    ResponsesBody,
    TextFormat,
)
from service.gateway.ingest.schemas import GenerationRequest, chat_request
from service.gateway.ingest.tools.responses_tools import chat_choice, chat_tools, repeated_tools
from service.gateway.ingest.tools.tool_types import CalledFunction, ToolCall

_SHARED = tuple(name for name in ResponsesBody.__struct_fields__ if name in
                set(ChatBody.__struct_fields__) - {
                    "top_logprobs", "stream_options", "store", "metadata", "tools", "tool_choice",
                    "parallel_tool_calls"})  # fmt: skip
_NAMES = (
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
)
_NEED_A_STORE = frozenset(NotStored.__struct_fields__)
_LOGPROBS = "message.output_text.logprobs"


def parse_responses(body: bytes, defaults: SamplingDefaults) -> GenerationRequest:
    """Body of POST /v1/responses. Raises ApiError."""
    try:
        sent = decode(body, ResponsesBody)
    except ApiError as error:
        raise (_not_stored(error.param) if error.param in _NEED_A_STORE else error) from error
    if sent.background:
        raise _not_stored("background")
    request = chat_request(_as_chat(sent), defaults)
    return replace(request, repeated=_repeated(sent, request))


def renamed(error: ApiError) -> ApiError:
    """An error about a field of a chat, in the names of this route."""
    if error.code == "unknown_field":
        return error
    for theirs, ours in _NAMES:
        error.message = error.message.replace(theirs, ours)
        error.param = error.param and error.param.replace(theirs, ours)
    if error.param == "messages":
        error.param = "input"
    return error


def _not_stored(param: str | None) -> ApiError:
    return bad_request(
        f"{param}: this server stores no responses and runs none in the background; send the "
        "earlier items of the conversation in input",
        param,
        "unsupported",
    )


def _as_chat(sent: ResponsesBody) -> ChatBody:
    """The chat that the model sees. Raises ApiError."""
    messages = _messages(sent.input)
    if sent.instructions:
        messages.insert(0, ChatMessage(role="system", content=sent.instructions))
    if not messages:
        raise bad_request("input has no items", "input")
    wants_logprobs = sent.top_logprobs is not None or _LOGPROBS in (sent.include or ())
    return ChatBody(
        messages=messages,
        max_completion_tokens=sent.max_output_tokens,
        response_format=_response_format(sent.text.format if sent.text else None),
        reasoning_effort=sent.reasoning.effort if sent.reasoning else None,
        logprobs=wants_logprobs or None,
        top_logprobs=sent.top_logprobs,
        tools=chat_tools(sent.tools),
        tool_choice=chat_choice(sent.tool_choice),
        parallel_tool_calls=sent.parallel_tool_calls,
        **{name: getattr(sent, name) for name in _SHARED},
    )


def _messages(sent: str | list[InputItem]) -> list[ChatMessage]:
    """Items as messages; a reasoning belongs to the message of the assistant after it. Raises
    ApiError."""
    if isinstance(sent, str):
        return [ChatMessage(role="user", content=sent)]
    found: list[ChatMessage] = []
    thought = ""
    for index, item in enumerate(sent):
        if item.type == "reasoning":
            thought += _joined(item.content) or _joined(item.summary)
            continue
        if item.type in ("function_call", "function_call_output"):
            if item.type == "function_call" and thought:
                found.append(ChatMessage(role="assistant", reasoning_content=thought))
                thought = ""
            _add_call(found, item, thought, f"input[{index}]")
            thought = ""
            continue
        if item.role is None or item.content is None:
            name = "role" if item.role is None else "content"
            raise bad_request(f"input[{index}].{name} is required", f"input[{index}].{name}")
        message = ChatMessage(role=item.role, content=_joined(item.content))
        if item.role == "assistant" and thought:
            message.reasoning_content = thought
        thought = ""
        found.append(message)
    return found


def _add_call(messages: list[ChatMessage], item: InputItem, thought: str, where: str) -> None:
    """A call belongs to the assistant's message before it, or is one, with the reasoning `thought`
    before it; a result is a message. Raises ApiError."""
    is_result = item.type == "function_call_output"
    for name in ("call_id", "output") if is_result else ("call_id", "name", "arguments"):
        if getattr(item, name) is None:
            raise bad_request(f"{where}.{name} is required", f"{where}.{name}")
    assert item.call_id is not None
    if is_result:
        output = _joined(item.output)
        messages.append(ChatMessage(role="tool", tool_call_id=item.call_id, content=output))
        return
    assert item.name is not None
    assert item.arguments is not None
    if thought or not messages or messages[-1].role != "assistant":
        messages.append(ChatMessage(role="assistant", reasoning_content=thought or None))
    called = CalledFunction(name=item.name, arguments=item.arguments)
    calls = messages[-1].tool_calls or []
    messages[-1].tool_calls = [*calls, ToolCall(id=item.call_id, function=called)]


def _joined(content: str | list[InputPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or part.refusal or "" for part in content)


def _response_format(sent: TextFormat | None) -> ResponseFormat | None:
    """Raises ApiError."""
    if sent is None:
        return None
    if sent.type != "json_schema":
        return ResponseFormat(type=sent.type)
    for name in ("name", "schema"):
        if getattr(sent, name) is None:
            raise bad_request(f"text.format.{name} is required", f"text.format.{name}")
    assert sent.name is not None
    assert sent.schema is not None
    schema = NamedSchema(
        name=sent.name, schema=sent.schema, strict=sent.strict, description=sent.description
    )
    return ResponseFormat(type="json_schema", json_schema=schema)


def _repeated(sent: ResponsesBody, request: GenerationRequest) -> bytes:
    """What a response says of its request, with the defaults that were used; as JSON, since
    MessagePack has no integers of the sizes that a schema may have."""
    form = sent.text.format if sent.text else None
    shown = form or TextFormat(type="text")
    repeated: dict[str, Any] = {
        "instructions": sent.instructions,
        "max_output_tokens": sent.max_output_tokens,
        "max_tool_calls": sent.max_tool_calls,
        "metadata": sent.metadata or {},
        "parallel_tool_calls": sent.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": sent.reasoning and sent.reasoning.effort, "summary": None},
        "safety_identifier": sent.safety_identifier,
        "prompt_cache_key": sent.prompt_cache_key,
        "service_tier": "default",
        "store": False,
        "background": False,
        "temperature": request.temperature,
        "text": {"format": _shown_format(shown)},
        **repeated_tools(sent.tools, sent.tool_choice),
        "top_logprobs": sent.top_logprobs or 0,
        "top_p": request.top_p,
        "truncation": "disabled",
        "user": sent.user,
    }
    return msgspec.json.encode(repeated)


def _shown_format(form: TextFormat) -> dict[str, Any]:
    if form.type != "json_schema":
        return {"type": form.type}
    return {
        "type": form.type,
        "name": form.name,
        "schema": form.schema,
        "strict": True,
        "description": form.description,
    }
