"""Bodies of `POST /tokenize` and `POST /detokenize`, in vLLM's shapes, and their answers.

Every list has a cap and texts are bounded by `--max-body`, as in `request_types`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from service.gateway.http import limits
from service.gateway.ingest.field_types import BodyText
from service.gateway.ingest.request_types import ChatMessage, TemplateVariables, TokenId

ModelName = Annotated[str, Meta(max_length=limits.MODEL_CHARACTERS.value)]


class TokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /tokenize: a `prompt` or `messages`.

    Null or absent: special tokens are added to a prompt (`add_special_tokens`), and not to
    messages, whose template has them; the template ends where the answer begins
    (`add_generation_prompt`) and goes on with no message (`continue_final_message`); there are no
    `token_strs`.
    """

    model: ModelName | None = None
    prompt: BodyText | None = None
    messages: (
        Annotated[list[ChatMessage], Meta(min_length=1, max_length=limits.MESSAGES.value)] | None
    ) = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /detokenize."""

    tokens: Annotated[list[TokenId], Meta(max_length=limits.PROMPT_IDS.value)]
    model: ModelName | None = None


class Tokenized(Struct, kw_only=True):
    """`max_model_len` is the context in tokens; `token_strs` are the tokens as the vocabulary
    spells them, null unless they were asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Struct, kw_only=True):
    """The text of the tokens, special ones included."""

    prompt: str
