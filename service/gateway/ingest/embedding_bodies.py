"""The body of `POST /v1/embeddings`: a prompt that is computed for its states alone."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from service.gateway.errors import bad_request
from service.gateway.http import limits
from service.gateway.ingest.decoding import decode
from service.gateway.ingest.request_types import Prompts, PromptText, WithoutEffect
from service.gateway.ingest.schemas import EmbeddingOptions, GenerationRequest, one_kind_of


class EmbeddingBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/embeddings: a text, token ids, or a list of either."""

    input: PromptText | Prompts
    model: Annotated[str, Meta(max_length=limits.MODEL_CHARACTERS.value)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=limits.TOKENS.value)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=limits.TIMEOUT_S.value)] | None = None
    priority: Annotated[int, Meta(ge=-limits.PRIORITY.value, le=limits.PRIORITY.value)] | None = (
        None
    )
    user: WithoutEffect | None = None


def parse_embeddings(body: bytes) -> GenerationRequest:
    """Raises ApiError."""
    sent = decode(body, EmbeddingBody)
    inputs = one_kind_of(sent.input, "input")
    most = limits.EMBEDDING_INPUTS.value
    if len(inputs) > most:
        raise bad_request(f"input has {len(inputs)} texts; {most} are allowed", "input")
    return GenerationRequest(
        model=sent.model,
        prompts=inputs,
        max_tokens=0,
        embedding=EmbeddingOptions(
            dimensions=sent.dimensions, base64=sent.encoding_format == "base64"
        ),
        timeout_s=sent.timeout,
        priority=sent.priority or 0,
    )
