"""Log-probabilities of generated tokens as JSON.

Those of a whole answer may be millions of texts, and they are made on the event loop. So it is
given up after each `ENTRIES_AT_ONCE` of them, and what was made is kept as bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from service.engine.plan import TokenLogprob
from service.gateway.generation.choice import ScoredToken
from service.gateway.ingest.score_rendering import token_name
from service.text.tokenizer import Tokenizer

ENTRIES_AT_ONCE = 512
"""Texts of tokens that are made without a pause: at most 2 ms."""

Render = Callable[[Sequence[ScoredToken]], dict[str, Any]]
_encode = msgspec.json.Encoder().encode


def chat_logprobs(
    tokenizer: Tokenizer, scored: Sequence[ScoredToken], by_id: bool = False
) -> dict[str, Any]:
    """The `logprobs` object of a chat choice."""
    name = token_name(tokenizer, by_id)

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": name(token_id),
            "logprob": logprob,
            "bytes": list(tokenizer.token_bytes(token_id)),
        }

    content = [
        {
            **entry(token.token_id, token.logprob),
            "top_logprobs": [entry(top.token_id, top.logprob) for top in token.top],
        }
        for token in scored
    ]
    return {"content": content, "refusal": None}


def text_logprobs(
    tokenizer: Tokenizer, scored: Sequence[ScoredToken], by_id: bool = False, after: int = 0
) -> dict[str, Any]:
    """The `logprobs` object of a text completion choice, which comes `after` so many characters."""
    name = token_name(tokenizer, by_id)
    return {
        "tokens": [name(token.token_id) for token in scored],
        "token_logprobs": [token.logprob for token in scored],
        "top_logprobs": [
            {
                name(t.token_id): t.logprob
                for t in (*token.top, TokenLogprob(token.token_id, token.logprob))
            }
            for token in scored
        ],
        "text_offset": [after + token.offset for token in scored],
    }


async def in_pieces(render: Render, scored: Sequence[ScoredToken]) -> dict[str, Any]:
    """`render(scored)` with its lists as JSON; other tasks run between pieces of them."""
    lists: dict[str, list[bytes]] = {}
    others: dict[str, Any] = {}
    for piece in _pieces(scored):
        for name, value in render(piece).items():
            if isinstance(value, list):
                lists.setdefault(name, []).append(_encode(value)[1:-1])
            else:
                others[name] = value
        await asyncio.sleep(0)
    joined = {name: msgspec.Raw(b"[" + b",".join(parts) + b"]") for name, parts in lists.items()}
    return {**joined, **others}


async def chat_entries(tokenizer: Tokenizer, scored: Sequence[ScoredToken]) -> list[msgspec.Raw]:
    """The `content` of `chat_logprobs`, each entry as JSON; other tasks run between pieces of
    them."""
    found: list[msgspec.Raw] = []
    for piece in _pieces(scored):
        content = chat_logprobs(tokenizer, piece)["content"]
        found += (msgspec.Raw(_encode(entry)) for entry in content)
        await asyncio.sleep(0)
    return found


def _pieces(scored: Sequence[ScoredToken]) -> Iterator[Sequence[ScoredToken]]:
    """Tokens with at most `ENTRIES_AT_ONCE` texts together; one that alone has more by itself."""
    begin = texts = 0
    for at, token in enumerate(scored):
        more = 1 + len(token.top)
        if begin < at and texts + more > ENTRIES_AT_ONCE:
            yield scored[begin:at]
            begin, texts = at, 0
        texts += more
    if begin < len(scored):
        yield scored[begin:]
