"""What an answer says about its prompt: its text (`echo`), and scores of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from service.engine.prompt_output import PromptResult, PromptScores
from service.gateway.ingest.pool import IngestPool
from service.gateway.ingest.prompting import PackedPrompt
from service.gateway.ingest.schemas import GenerationRequest
from service.gateway.ingest.score_rendering import LEGACY_FIELDS, ScoredPrompt, ScoreShape

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """What an answer says of one prompt: its text, empty without `echo`; and as JSON arrays the
    fields of OpenAI's legacy `logprobs`, and vLLM's `prompt_logprobs`, where they are wanted."""

    text: str = ""
    legacy: tuple[bytes, ...] = ()
    by_id: bytes | None = None

    @property
    def scored_characters(self) -> int:
        """How many characters with scores come before those of the generated tokens."""
        return len(self.text) if self.legacy else 0

    def logprobs(self, generated: dict[str, Any] | None) -> Any:
        """The `logprobs` of a choice: those of the prompt, then those of the generated tokens,
        whose offsets count `scored_characters`."""
        if not self.legacy:
            return generated
        later = generated or dict.fromkeys(LEGACY_FIELDS, ())
        return {
            name: msgspec.Raw(_joined(own, _encode(later[name])))
            for name, own in zip(LEGACY_FIELDS, self.legacy, strict=True)
        }


async def echoes_of(
    ingest: IngestPool,
    request: GenerationRequest,
    prompts: Sequence[PackedPrompt],
    read: Sequence[Sequence[PromptResult]],
) -> list[PromptEcho]:
    """One for each prompt; `read` is what came of each. Raises ApiError."""
    return [
        await _echo(ingest, request, prompt, found)
        for prompt, found in zip(prompts, read, strict=True)
    ]


async def _echo(
    ingest: IngestPool,
    request: GenerationRequest,
    prompt: PackedPrompt,
    found: Sequence[PromptResult],
) -> PromptEcho:
    width = request.prompt_scores
    if width is None:
        return PromptEcho(prompt.text)
    scores = [one for one in found if isinstance(one, PromptScores)]
    legacy: tuple[bytes, ...] = ()
    by_id = None
    if request.echo and request.logprobs is not None:
        by_id_name = request.compat_options.name_token_ids
        scored = _scored(prompt, scores, width, request.logprobs, by_id_name)
        legacy = tuple(await ingest.render_scores(ScoreShape.LEGACY, scored))
    if request.prompt_logprobs is not None:
        scored = _scored(prompt, scores, width, request.prompt_logprobs)
        (by_id,) = await ingest.render_scores(ScoreShape.VLLM, scored)
    return PromptEcho(prompt.text, legacy, by_id)


def _scored(
    prompt: PackedPrompt,
    scores: Sequence[PromptScores],
    width: int,
    shown: int,
    by_id: bool = False,
) -> ScoredPrompt:
    """The pieces of all chunks as one."""
    at = 1
    for piece in scores:
        assert piece.first == at, f"scores of token {at} are missing"
        at += len(piece.ranks) // 4
    assert at == prompt.tokens, f"{at} of {prompt.tokens} tokens have scores"
    return ScoredPrompt(
        ids=bytes(prompt.ids),
        logprobs=b"".join(piece.logprobs for piece in scores),
        ranks=b"".join(piece.ranks for piece in scores),
        top_ids=b"".join(piece.top_ids for piece in scores),
        top_logprobs=b"".join(piece.top_logprobs for piece in scores),
        width=width,
        shown=shown,
        by_id=by_id,
    )


def _joined(first: bytes, second: bytes) -> bytes:
    """Two JSON arrays as one."""
    if second == b"[]":
        return first
    return second if first == b"[]" else first[:-1] + b"," + second[1:]
