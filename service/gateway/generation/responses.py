"""Response bodies of the chat and text completion routes, whole and in chunks; pure functions of
what was generated. `/v1/responses` has `responses_writer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from service.gateway.errors import ApiError
from service.gateway.generation.choice import Choice, Delta, ScoredToken
from service.gateway.generation.logprobs import chat_logprobs, in_pieces, text_logprobs
from service.gateway.generation.prompt_echo import PromptEcho
from service.gateway.generation.tool_text import delta_calls, message_calls
from service.gateway.ingest.compat.compat_options import NO_COMPAT_OPTIONS, CompatOptions
from service.gateway.ingest.schemas import GenerationRequest, Operation
from service.text.tokenizer import Tokenizer
from telemetry.requests.timings import RequestTimings

_PLACEHOLDER = "\0"  # nothing after the text in a chunk can contain it
_encode = msgspec.json.Encoder().encode
DONE_EVENT = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What all chunks of one response have in common; `prompt_ids` are the prompts of its choices,
    None where they were not asked for."""

    operation: Operation
    request_id: str
    created_unix_s: int
    model: str
    with_logprobs: bool
    include_usage: bool
    compat_options: CompatOptions = NO_COMPAT_OPTIONS
    prompt_ids: list[list[int]] | None = None
    only_calls: bool = False

    def envelope(self, chunk: bool) -> dict[str, Any]:
        if self.operation is Operation.CHAT:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
            name = f"chatcmpl-{self.request_id}"
        else:
            kind, name = "text_completion", f"cmpl-{self.request_id}"
        found = {"id": name, "object": kind, "created": self.created_unix_s, "model": self.model}
        if self.compat_options.tier is not None:
            found["service_tier"] = self.compat_options.tier
        return found


def usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int = 0
) -> dict[str, Any]:
    """`cached_tokens` of the prompt were in the prefix cache; `reasoning_tokens` are a part of
    `completion_tokens`."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def event(body: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def role_events(head: ResponseHead, choices: list[Choice]) -> list[bytes]:
    """The first chunk of each choice of a chat stream, which has its role."""
    if head.operation is not Operation.CHAT:
        return []
    # an answer that is nothing but calls has no text
    delta = {"role": "assistant", "content": None if head.only_calls else ""}
    return [
        _chunk(
            head,
            {"index": c.index, "delta": delta, "logprobs": None, "finish_reason": None},
            prompt_ids=None if head.prompt_ids is None else head.prompt_ids[c.index],
        )
        for c in choices
    ]


class ChunkWriter:
    """Writes one response of the chat or the text route, in chunks or whole.

    Most chunks have a piece of text and nothing else that is new. The bytes around the text are
    the same from chunk to chunk, so they are encoded once for each choice.
    """

    def __init__(self, head: ResponseHead, tokenizer: Tokenizer) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._around: dict[tuple[int, bool], tuple[bytes, bytes]] = {}
        is_text = head.operation is Operation.TEXT
        prompts = head.prompt_ids if is_text else None  # in chat the chunk with the role has it
        self._prompt_ids = dict(enumerate(prompts or ()))

    done = DONE_EVENT

    def opening(self) -> bytes:
        """Nothing: OpenAI's chat streams begin with the first output."""
        return b""

    def first(self, choices: list[Choice]) -> list[bytes]:
        """The roles."""
        return role_events(self._head, choices)

    def last(self, counts: dict[str, Any], timings: RequestTimings | None) -> bytes:
        """Usage and metrics, if they were asked for."""
        return last_event(self._head, counts, timings)

    def failed(self, error: ApiError) -> None:
        """An error is its own event."""
        return

    async def whole(
        self,
        choices: list[Choice],
        deltas: list[Delta],
        counts: dict[str, Any],
        timings: RequestTimings | None,
        echoes: Sequence[PromptEcho] = (),
    ) -> bytes:
        """The response in one piece."""
        return await full_body(
            self._head, choices, deltas, counts, self._tokenizer, timings, echoes
        )

    def chunk(self, choice: Choice, delta: Delta, counts: dict[str, Any] | None = None) -> bytes:
        """The same bytes as `delta_event`. `counts` is the usage so far, if each chunk has it."""
        more = delta.token_ids is not None or counts is not None
        is_plain = bool(delta.text) != bool(delta.reasoning)
        is_plain = is_plain and not delta.calls
        if more or delta.scored or not is_plain or delta.finish_reason is not None:
            prompt_ids = self._prompt_ids.pop(choice.index, None)
            return delta_event(self._head, choice, delta, self._tokenizer, counts, prompt_ids)
        key = choice.index, bool(delta.reasoning)
        around = self._around.get(key)
        if around is None:
            around = self._around[key] = self._frame(choice, is_reasoning=key[1])
        return around[0] + _encode(delta.text or delta.reasoning) + around[1]

    def _frame(self, choice: Choice, is_reasoning: bool) -> tuple[bytes, bytes]:
        texts = ("", _PLACEHOLDER) if is_reasoning else (_PLACEHOLDER, "")
        delta = Delta(texts[0], [], None, reasoning=texts[1])
        whole = delta_event(self._head, choice, delta, self._tokenizer)
        before, mark, after = whole.rpartition(_encode(_PLACEHOLDER))
        assert mark, "a chunk without its text"
        return before, after


def delta_event(
    head: ResponseHead,
    choice: Choice,
    delta: Delta,
    tokenizer: Tokenizer,
    counts: dict[str, Any] | None = None,
    prompt_ids: list[int] | None = None,
) -> bytes:
    """One chunk of one choice; `prompt_ids` of its prompt in the first one, where asked for."""
    body: dict[str, Any] = {"index": choice.index}
    if head.operation is Operation.CHAT:
        texts = (("reasoning_content", delta.reasoning), ("content", delta.text))
        body["delta"] = {name: text for name, text in texts if text}
        if delta.calls:
            body["delta"]["tool_calls"] = delta_calls(delta.calls)
    else:
        body["text"] = delta.text
    body["logprobs"] = _logprobs(head, delta, tokenizer)
    body["finish_reason"] = delta.finish_reason
    if prompt_ids is not None:
        body["prompt_token_ids"] = prompt_ids
    if delta.token_ids is not None:
        body["token_ids"] = delta.token_ids
    return _chunk(head, body, counts)


def last_event(head: ResponseHead, counts: dict[str, Any], timings: RequestTimings | None) -> bytes:
    """The last chunk: usage and metrics, if they were asked for; else no bytes."""
    body: dict[str, Any] = {**head.envelope(chunk=True), "choices": []}
    if head.include_usage:
        body["usage"] = counts
    if timings is not None:
        body["metrics"] = timings
    return event(body) if head.include_usage or timings is not None else b""


def best_choices(candidates: list[Choice], request: GenerationRequest) -> list[Choice]:
    """The `n` candidates of each prompt with the highest log-probability per token, best first, as
    OpenAI chooses; all candidates in their order where there are no more than `n`."""
    each = request.candidates
    if each == request.choices:
        return candidates
    best: list[Choice] = []
    for first in range(0, len(candidates), each):
        ranked = sorted(candidates[first : first + each], key=lambda c: -c.mean_logprob)
        best += ranked[: request.choices]
    for index, choice in enumerate(best):
        choice.index = index
    return best


async def full_body(
    head: ResponseHead,
    choices: list[Choice],
    deltas: list[Delta],
    counts: dict[str, Any],
    tokenizer: Tokenizer,
    timings: RequestTimings | None = None,
    echoes: Sequence[PromptEcho] = (),
) -> bytes:
    """A response in one piece; `echoes` are of its prompts, which have as many choices each. Other
    tasks run while it is made."""
    bodies: list[dict[str, Any]] = []
    said = echoes or (PromptEcho(),)
    each = max(1, len(choices) // len(said))
    for place, (choice, delta) in enumerate(zip(choices, deltas, strict=True)):
        echo = said[place // each]
        body: dict[str, Any] = {"index": choice.index}
        if head.operation is Operation.CHAT:
            body["message"] = _message(choice, delta)
        else:
            body["text"] = echo.text + delta.text
        generated = None
        if head.with_logprobs and delta.scored:
            render = partial(_rendered, head, tokenizer, after=echo.scored_characters)
            generated = await in_pieces(render, delta.scored)
        body["logprobs"] = echo.logprobs(generated)
        body["finish_reason"] = delta.finish_reason
        if delta.token_ids is not None:
            body["token_ids"] = delta.token_ids
        if echo.by_id is not None and head.operation is not Operation.CHAT:
            body["prompt_logprobs"] = msgspec.Raw(echo.by_id)
        bodies.append(body)
    whole: dict[str, Any] = {**head.envelope(chunk=False), "choices": bodies, "usage": counts}
    if head.prompt_ids is not None:
        _add_prompt_ids(head.operation, whole, head.prompt_ids)
    if head.operation is Operation.CHAT and said[0].by_id is not None:
        whole["prompt_logprobs"] = msgspec.Raw(said[0].by_id)
    if timings is not None:
        whole["metrics"] = timings
    return msgspec.json.encode(whole)


def _message(choice: Choice, delta: Delta) -> dict[str, Any]:
    """The message of a chat choice that is complete. Beside calls, white space is no text."""
    message: dict[str, Any] = {"role": "assistant", "content": delta.text, "refusal": None}
    if delta.reasoning:
        message["reasoning_content"] = delta.reasoning
    calls = [] if choice.tools is None else choice.tools.calls
    if calls:
        message["content"] = delta.text if delta.text.strip() else None
        message["tool_calls"] = message_calls(calls)
    return message


def _add_prompt_ids(
    operation: Operation, whole: dict[str, Any], prompt_ids: list[list[int]]
) -> None:
    """Add the token ids of prompts as vLLM has them: a conversation's to the whole answer, a
    prompt's to its choices."""
    if operation is Operation.CHAT:
        whole["prompt_token_ids"] = prompt_ids[0]
        return
    for body in whole["choices"]:
        body["prompt_token_ids"] = prompt_ids[body["index"]]


def _chunk(
    head: ResponseHead,
    choice: dict[str, Any],
    counts: dict[str, Any] | None = None,
    prompt_ids: list[int] | None = None,
) -> bytes:
    body = {**head.envelope(chunk=True), "choices": [choice]}
    if head.include_usage:
        body["usage"] = counts
    if prompt_ids is not None:
        body["prompt_token_ids"] = prompt_ids
    return event(body)


def _logprobs(head: ResponseHead, delta: Delta, tokenizer: Tokenizer) -> dict[str, Any] | None:
    if not head.with_logprobs or not delta.scored:
        return None
    return _rendered(head, tokenizer, delta.scored)


def _rendered(
    head: ResponseHead, tokenizer: Tokenizer, scored: Sequence[ScoredToken], *, after: int = 0
) -> dict[str, Any]:
    """The log-probabilities of tokens that come `after` so many characters of a text."""
    by_id = head.compat_options.name_token_ids
    if head.operation is Operation.CHAT:
        return chat_logprobs(tokenizer, scored, by_id)
    return text_logprobs(tokenizer, scored, by_id, after)
