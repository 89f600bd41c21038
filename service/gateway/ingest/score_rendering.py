"""Prompt scores as JSON: OpenAI's legacy `logprobs` of an echoed prompt, and vLLM's
`prompt_logprobs`.

There are as many entries as the prompt has tokens, each with a client's number of alternatives, so
this runs where bodies are read (`service.gateway.ingest.pool`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from service.text.detokenizer import Detokenizer
from service.text.tokenizer import Tokenizer

_encode = msgspec.json.Encoder().encode


class ScoreShape(StrEnum):
    """The JSON that scores are written as: OpenAI's `logprobs` or vLLM's `prompt_logprobs`."""

    LEGACY = "legacy"  # OpenAI's completions
    VLLM = "vllm"


class ScoredPrompt(msgspec.Struct, frozen=True):
    """`ids` is a MessagePack array of n token ids; the others are as in
    `service.engine.prompt_output.PromptScores`, of the n - 1 tokens after the first. `width`
    alternatives a token are there, `shown` of them are wanted. `by_id`: tokens are named by their
    ids (`token_id:N`) in `LEGACY`."""

    ids: bytes
    logprobs: bytes
    ranks: bytes
    top_ids: bytes
    top_logprobs: bytes
    width: int
    shown: int
    by_id: bool = False

    @property
    def entries(self) -> int:
        """How many token texts the JSON has."""
        return len(self.ranks) // 4 * (1 + self.shown)


class _Entry(msgspec.Struct, frozen=True):
    """One token with its alternatives as (id, log-probability), likeliest first."""

    token_id: int
    logprob: float
    rank: int
    top: Sequence[tuple[int, float]]


def render_scores(shape: ScoreShape, scored: ScoredPrompt, tokenizer: Tokenizer) -> list[bytes]:
    """JSON arrays with an entry for each token of the prompt, the first of them null where there is
    nothing to condition on: `prompt_logprobs`, or four of `LEGACY_FIELDS`."""
    ids: list[int] = msgspec.msgpack.decode(scored.ids, type=list[int])
    entries = list(_entries(ids, scored))
    match shape:
        case ScoreShape.VLLM:
            return [_encode([None, *(_by_id(entry, tokenizer) for entry in entries)])]
        case ScoreShape.LEGACY:
            name = token_name(tokenizer, scored.by_id)
            texts = list(map(name, ids))
            tops = [None, *(_by_name(entry, name) for entry in entries)]
            logprobs = [None, *(entry.logprob for entry in entries)]
            return [_encode(one) for one in (texts, logprobs, tops, _offsets(ids, tokenizer))]


def token_name(tokenizer: Tokenizer, by_id: bool) -> Callable[[int], str]:
    """What tokens are called in log-probabilities: by their text, or `token_id:N`."""
    return (lambda token_id: f"token_id:{token_id}") if by_id else tokenizer.token_text


LEGACY_FIELDS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def _entries(ids: list[int], scored: ScoredPrompt) -> Iterator[_Entry]:
    width, shown = scored.width, scored.shown
    top_ids, top_logprobs = array("i", scored.top_ids), array("f", scored.top_logprobs)
    own = zip(ids[1:], array("f", scored.logprobs), array("i", scored.ranks), strict=True)
    for index, (token_id, logprob, rank) in enumerate(own):
        first = index * width
        top = zip(top_ids[first : first + shown], top_logprobs[first : first + shown], strict=True)
        yield _Entry(token_id, logprob, rank, list(top))


def _by_id(entry: _Entry, tokenizer: Tokenizer) -> dict[str, Any]:
    """vLLM's: by token id; the prompt's own token is there even if it is not likely."""
    found = {
        str(token_id): _vllm(token_id, logprob, rank, tokenizer)
        for rank, (token_id, logprob) in enumerate(entry.top, 1)
    }
    own = str(entry.token_id)
    found[own] = _vllm(entry.token_id, entry.logprob, entry.rank, tokenizer)
    return found


def _vllm(token_id: int, logprob: float, rank: int, tokenizer: Tokenizer) -> dict[str, Any]:
    text = tokenizer.token_text(token_id)
    return {"logprob": logprob, "rank": rank, "decoded_token": text}


def _by_name(entry: _Entry, name: Callable[[int], str]) -> dict[str, float]:
    pairs = (*entry.top, (entry.token_id, entry.logprob))
    return {name(token_id): logprob for token_id, logprob in pairs}


def _offsets(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """Where the text of each token begins, in characters; BOS takes none."""
    detokenizer = Detokenizer(tokenizer)
    found, at = list[int](), 0
    for index, token_id in enumerate(ids):
        found.append(at)
        if tokenizer.is_special(token_id):
            at += len(tokenizer.token_text(token_id)) if index else 0
        else:
            at += len(detokenizer.push(token_id))
    return found
