"""Answers `POST /tokenize` and `POST /detokenize`: a body in, the body of the answer out.

What that takes grows with the body, so it runs where bodies are read
(`service.gateway.ingest.pool`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from service.gateway.errors import ApiError, bad_request, model_not_found
from service.gateway.http import limits
from service.gateway.ingest.chat_prompt import chat_options, chat_prompt, template_message
from service.gateway.ingest.decoding import decode
from service.gateway.ingest.prompting import PackedError
from service.gateway.ingest.request_types import ChatBody, ChatMessage
from service.gateway.ingest.token_bodies import (
    DetokenizeBody,
    Detokenized,
    TokenizeBody,
    Tokenized,
)
from service.gateway.ingest.tools.tool_requests import check_tool_messages
from service.text.tokenizer import Tokenizer
from service.text.tools.dialect import ToolDialect

_OF_MESSAGES = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class TokenTask(StrEnum):
    """What is asked for."""

    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


class TokenReader:
    """Serves one model's tokenizer."""

    def __init__(self, tokenizer: Tokenizer, model: str, dialect: ToolDialect) -> None:
        """`dialect` is how the model is told of calls, which messages may have."""
        self._tokenizer = tokenizer
        self._model = model
        self._dialect = dialect

    def read(
        self, task: TokenTask, body: bytes, context_tokens: int, adapters: Sequence[str] = ()
    ) -> bytes | PackedError:
        """The answer as JSON, or the refusal. `adapters` are served too; they have the model's
        tokens."""
        try:
            match task:
                case TokenTask.TOKENIZE:
                    sent = decode(body, TokenizeBody)
                    self._check_model(sent.model, adapters)
                    answer = msgspec.json.encode(self._tokenize(sent, context_tokens))
                case TokenTask.DETOKENIZE:
                    given = decode(body, DetokenizeBody)
                    self._check_model(given.model, adapters)
                    answer = msgspec.json.encode(self._detokenize(given))
        except ApiError as error:
            return PackedError.of(error)
        return answer

    def _tokenize(self, sent: TokenizeBody, context_tokens: int) -> Tokenized:
        tokenizer = self._tokenizer
        if (sent.prompt is None) == (sent.messages is None):
            raise bad_request("send either prompt or messages", "prompt")
        if sent.messages is not None:
            text = self._rendered(sent, sent.messages)
            add_special = bool(sent.add_special_tokens)
        else:
            for name in _OF_MESSAGES:
                if getattr(sent, name) is not None:
                    raise bad_request(f"{name} is for messages, not for a prompt", name)
            text, add_special = sent.prompt or "", sent.add_special_tokens is not False
        ids = tokenizer.encode(text, add_special)
        most = limits.TOKENIZED_IDS.value
        if len(ids) > most:
            raise bad_request(
                f"the answer would have {len(ids)} tokens; {most} may be asked for in one request",
                "prompt" if sent.messages is None else "messages",
            )
        strings = [tokenizer.token_string(i) for i in ids] if sent.return_token_strs else None
        return Tokenized(
            count=len(ids), max_model_len=context_tokens, tokens=ids, token_strs=strings
        )

    def _rendered(self, sent: TokenizeBody, messages: list[ChatMessage]) -> str:
        """The text of the messages as the chat route renders them."""
        check_tool_messages(messages)
        chat = ChatBody(messages=messages, **{name: getattr(sent, name) for name in _OF_MESSAGES})
        shown = [template_message(one, at) for at, one in enumerate(messages)]
        told = self._dialect.messages(shown, ())
        return chat_prompt(self._tokenizer, told, chat_options(chat))

    def _detokenize(self, sent: DetokenizeBody) -> Detokenized:
        worst = max(sent.tokens, default=0)
        if worst >= self._tokenizer.vocab_size:
            raise bad_request(
                f"token id {worst} is outside the vocabulary of {self._tokenizer.vocab_size}",
                "tokens",
            )
        size_bytes = sum(len(self._tokenizer.token_bytes(token_id)) for token_id in sent.tokens)
        most_bytes = limits.DETOKENIZED_BYTES.value
        if size_bytes > most_bytes:
            raise bad_request(
                f"the answer would have {size_bytes} bytes of text; {most_bytes} may be asked for "
                "in one request",
                "tokens",
            )
        return Detokenized(prompt=self._tokenizer.decode(sent.tokens, skip_special=False))

    def _check_model(self, model: str | None, adapters: Sequence[str]) -> None:
        served = (self._model, *adapters)
        if model is not None and model not in served:
            raise model_not_found(model, *served)
