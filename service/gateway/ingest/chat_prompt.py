"""A conversation becomes a prompt: what of a request reaches the model's chat template, and how.

A template reads some variables and not others. What a request gives and the template does not read
would be ignored, so it is refused, with the names that the template does read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from service.gateway.errors import ApiError, bad_request
from service.gateway.ingest.compat.checks import unsupported
from service.gateway.ingest.request_types import ChatBody, ChatMessage
from service.gateway.ingest.tools.tool_requests import template_calls
from service.text.chat_template import TemplateError, TemplateFacts, render_chat, template_facts
from service.text.reasoning import ReasoningFormat, ReasoningState
from service.text.tokenizer import Tokenizer
from telemetry.facts.clock import date_text

_OURS = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
        "bos_token", "eos_token", "chat_template", "tokenize",
    }
)  # fmt: skip
_THINKING_SWITCHES = ("enable_thinking", "thinking")
_SHOWN_NAMES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a conversation is rendered. `variables` are those of `chat_template_kwargs`;
    `tools` those that a template is given that knows tools."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = field(default_factory=dict)
    documents: list[dict[str, str]] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    reasoning_effort: str | None = None


def chat_options(sent: ChatBody) -> ChatOptions:
    """The options of a body. Raises ApiError for those that contradict each other."""
    continued = bool(sent.continue_final_message)
    if continued and sent.add_generation_prompt:
        raise bad_request(
            "continue_final_message goes on with the last message, add_generation_prompt begins a "
            "new one: send one of them",
            "continue_final_message",
        )
    last = sent.messages[-1]
    if continued and (last.role != "assistant" or not content_text(last)):
        raise bad_request(
            "continue_final_message needs a last message of the assistant that has text",
            "continue_final_message",
        )
    variables = sent.chat_template_kwargs or {}
    for name in variables:
        if name in _OURS:
            raise bad_request(
                f"chat_template_kwargs.{name} is set by the server", "chat_template_kwargs"
            )
    documents = None
    if sent.documents is not None:
        pairs = [(("title", one.title), ("text", one.text)) for one in sent.documents]
        documents = [{key: value for key, value in pair if value} for pair in pairs]
    return ChatOptions(
        add_generation_prompt=not continued and sent.add_generation_prompt is not False,
        continue_final_message=continued,
        variables=variables,
        documents=documents,
        reasoning_effort=sent.reasoning_effort,
    )


def template_message(sent: ChatMessage, index: int) -> dict[str, Any]:
    """Message number `index` as templates take it: null content is an empty text, parts are one
    text. Raises ApiError for what only an assistant may have, or may leave out."""
    if sent.role != "assistant":
        _refuse_assistants_own(sent, f"messages[{index}]")
    found: dict[str, Any] = {"role": sent.role, "content": content_text(sent)}
    if sent.name is not None:
        found["name"] = sent.name
    if sent.tool_call_id is not None:
        found["tool_call_id"] = sent.tool_call_id
    if sent.tool_calls:
        found["tool_calls"] = template_calls(sent.tool_calls, f"messages[{index}]")
    if sent.role == "assistant":
        reasoning = sent.reasoning_content or sent.reasoning
        if reasoning:
            found["reasoning_content"] = reasoning
    return found


def content_text(sent: ChatMessage) -> str:
    """The text of a message; what an assistant refused with is its text."""
    if sent.content is None:
        return sent.refusal or ""
    if isinstance(sent.content, str):
        return sent.content
    return "".join(part.text or part.refusal or "" for part in sent.content)


def _refuse_assistants_own(sent: ChatMessage, where: str) -> None:
    """Raises ApiError."""
    if sent.content is None:
        raise bad_request(f"{where}.content is required", f"{where}.content")
    parts = () if isinstance(sent.content, str) else sent.content
    given = {
        "refusal": sent.refusal or any(part.type == "refusal" for part in parts),
        "reasoning_content": sent.reasoning_content,
        "reasoning": sent.reasoning,
    }
    for name, value in given.items():
        if value:
            raise bad_request(f"{where}.{name} is for the assistant", f"{where}.{name}")


def chat_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    options: ChatOptions,
    date: Callable[[str], str] = date_text,
) -> str:
    """The prompt of a conversation, by the model's chat template. Raises ApiError."""
    if tokenizer.chat_template is None:
        raise bad_request("this model has no chat template; use /v1/completions")
    bos = "" if tokenizer.bos_token_id is None else tokenizer.token_text(tokenizer.bos_token_id)
    eos = tokenizer.token_text(tokenizer.eos_token_ids[0]) if tokenizer.eos_token_ids else ""
    try:
        facts = template_facts(tokenizer.chat_template)
        return render_chat(
            tokenizer.chat_template,
            _with_known_roles(messages, facts),
            bos_token=bos,
            eos_token=eos,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            variables=_variables(options, facts),
            date_text=date,
        )
    except TemplateError as error:
        raise bad_request(str(error), "messages") from error


def reasoning_after(
    form: ReasoningFormat,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    options: ChatOptions,
    prompt: str,
) -> ReasoningState:
    """What a prompt says of the reasoning that may follow it.

    Only the beginning of the answer counts, which is what the template adds for
    `add_generation_prompt`: an earlier message may spell the markers as well.
    """
    if options.continue_final_message:
        state = form.state_after(str(messages[-1]["content"]))
        return state if state is ReasoningState.OPEN else ReasoningState.NONE
    if not options.add_generation_prompt:
        return ReasoningState.POSSIBLE
    without = chat_prompt(tokenizer, messages, replace(options, add_generation_prompt=False))
    return form.state_after(_after_common_start(prompt, without))


def _after_common_start(text: str, other: str) -> str:
    """`text` without what it begins with as `other` does."""
    if text.startswith(other):
        return text[len(other) :]
    pairs = enumerate(zip(text, other, strict=False))
    return text[next((at for at, (a, b) in pairs if a != b), len(text)) :]


def _with_known_roles(
    messages: Sequence[Mapping[str, Any]], facts: TemplateFacts
) -> list[Mapping[str, Any]]:
    """`developer` is what older templates call `system`."""
    if facts.knows_developer:
        return list(messages)
    return [
        {**message, "role": "system"} if message["role"] == "developer" else message
        for message in messages
    ]


def _variables(options: ChatOptions, facts: TemplateFacts) -> dict[str, Any]:
    """What the template gets beside the messages. Raises ApiError for what it does not read; false
    and null ask for nothing that is not so anyway."""
    found: dict[str, Any] = {}
    for name, value in options.variables.items():
        if name in facts.reads:
            found[name] = value
        elif value is not None and value is not False:
            raise _unread(f"chat_template_kwargs.{name}", "chat_template_kwargs", facts)
    if options.documents is not None:
        if "documents" not in facts.reads:
            raise unsupported("documents")
        found["documents"] = options.documents
    if options.tools:
        found["tools"] = list(options.tools)
    effort = options.reasoning_effort
    if effort is None:
        return found
    if "reasoning_effort" in facts.reads:
        return {"reasoning_effort": effort, **found}
    if effort != "none":
        raise _unread("reasoning_effort", "reasoning_effort", facts)
    switches = {name: False for name in _THINKING_SWITCHES if name in facts.reads}
    return {**switches, **found}


def _unread(what: str, param: str, facts: TemplateFacts) -> ApiError:
    names = sorted(facts.reads - _OURS)[:_SHOWN_NAMES]
    return bad_request(
        f"{what}: the model's chat template does not read it; among its names are "
        f"{', '.join(names) or 'none'}",
        param,
        "unsupported",
    )
