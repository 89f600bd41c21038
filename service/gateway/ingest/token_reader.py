"""Answers `POST /tokenize` and `POST /detokenize`: a body in, the body of the answer out.

What that takes grows with the body, so it runs where bodies are read
(`service.gateway.ingest.pool`).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from service.gateway.errors import ApiError, bad_request, model_not_found
from service.gateway.ingest.chat_prompt import ChatOptions, chat_prompt, template_message
from service.gateway.ingest.decoding import decode
from service.gateway.ingest.prompting import PackedError
from service.gateway.ingest.token_bodies import (
    DetokenizeBody,
    Detokenized,
    TokenizeBody,
    Tokenized,
)
from service.text.tokenizer import Tokenizer


class TokenTask(StrEnum):
    """What is asked for."""

    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"


class TokenReader:
    """Serves one model's tokenizer."""

    def __init__(self, tokenizer: Tokenizer, model: str) -> None:
        self._tokenizer = tokenizer
        self._model = model

    def read(self, task: TokenTask, body: bytes, context_tokens: int) -> bytes | PackedError:
        """The answer as JSON, or the refusal."""
        try:
            match task:
                case TokenTask.TOKENIZE:
                    answer = msgspec.json.encode(self._tokenize(body, context_tokens))
                case TokenTask.DETOKENIZE:
                    answer = msgspec.json.encode(self._detokenize(body))
        except ApiError as error:
            return PackedError.of(error)
        return answer

    def _tokenize(self, body: bytes, context_tokens: int) -> Tokenized:
        sent = decode(body, TokenizeBody)
        self._check_model(sent.model)
        tokenizer = self._tokenizer
        if (sent.prompt is None) == (sent.messages is None):
            raise bad_request("send either prompt or messages", "prompt")
        if sent.messages is not None:
            begins_answer = sent.add_generation_prompt is not False
            messages = [template_message(one, at) for at, one in enumerate(sent.messages)]
            options = ChatOptions(add_generation_prompt=begins_answer)
            text = chat_prompt(tokenizer, messages, options)
            add_special = bool(sent.add_special_tokens)
        else:
            if sent.add_generation_prompt is not None:
                raise bad_request(
                    "add_generation_prompt is for messages, not for a prompt",
                    "add_generation_prompt",
                )
            text, add_special = sent.prompt or "", sent.add_special_tokens is not False
        ids = tokenizer.encode(text, add_special)
        strings = [tokenizer.token_string(i) for i in ids] if sent.return_token_strs else None
        return Tokenized(
            count=len(ids), max_model_len=context_tokens, tokens=ids, token_strs=strings
        )

    def _detokenize(self, body: bytes) -> Detokenized:
        sent = decode(body, DetokenizeBody)
        self._check_model(sent.model)
        worst = max(sent.tokens, default=0)
        if worst >= self._tokenizer.vocab_size:
            raise bad_request(
                f"token id {worst} is outside the vocabulary of {self._tokenizer.vocab_size}",
                "tokens",
            )
        return Detokenized(prompt=self._tokenizer.decode(sent.tokens, skip_special=False))

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._model:
            raise model_not_found(model, self._model)
