"""Log-probabilities of whole answers: other streams go on while they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from service.engine.plan import TokenLogprob
from service.gateway.generation.choice import Choice, Delta, ScoredToken
from service.gateway.generation.logprobs import ENTRIES_AT_ONCE, chat_logprobs, text_logprobs
from service.gateway.generation.prompt_echo import PromptEcho
from service.gateway.generation.responses import ChunkWriter, ResponseHead, usage
from service.gateway.generation.responses_writer import ResponsesWriter
from service.gateway.ingest.schemas import Operation
from service.text.tokenizer import Tokenizer

TOP = tuple(TokenLogprob(token_id, -1.5) for token_id in range(20))
COUNTS = usage(1, 1, 0)
READS = 2
"""How often the bytes of a token are looked up for each text of it."""


class Counted(list[bytes]):
    """The bytes of each token, and how often they were looked up."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


def tokenizer_of(texts: Counted) -> Tokenizer:
    return Tokenizer(
        Backend(models.BPE(vocab={}, merges=[])),
        token_bytes=texts,
        special_ids=frozenset(),
        bos_token_id=None,
        eos_token_ids=(),
        add_bos=False,
        strip_first_space=False,
        chat_template=None,
    )


def scored(tokens: int) -> list[ScoredToken]:
    return [ScoredToken(place % 50, -0.5, TOP, place) for place in range(tokens)]


def head(operation: Operation) -> ResponseHead:
    return ResponseHead(operation, "id", 1, "m", with_logprobs=True, include_usage=False)


def written(writing: Coroutine[Any, Any, bytes], texts: Counted) -> tuple[Any, list[int]]:
    """The answer, and how often texts were looked up in each turn of the event loop."""

    async def scenario() -> tuple[Any, list[int]]:
        reads = [texts.reads]
        task = asyncio.ensure_future(writing)
        while not task.done():
            await asyncio.sleep(0)
            reads.append(texts.reads)
        return msgspec.json.decode(task.result()), [after - now for now, after in pairwise(reads)]

    return asyncio.run(scenario())


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.TEXT])
@pytest.mark.parametrize(("choices", "tokens"), [(3, 300), (400, 3)])
def test_the_loop_is_given_up_between_pieces_of_an_answer(
    operation: Operation, choices: int, tokens: int
) -> None:
    """The pieces together are what is written of all at once."""
    texts = Counted([b"a"] * 64)
    tokenizer = tokenizer_of(texts)
    several = [Choice(index, index, tokenizer, ()) for index in range(choices)]
    deltas = [Delta("a", scored(tokens), "stop") for _ in several]
    writer = ChunkWriter(head(operation), tokenizer)
    body, turns = written(writer.whole(several, deltas, COUNTS, None), texts)
    render = chat_logprobs if operation is Operation.CHAT else text_logprobs
    plain = msgspec.json.decode(msgspec.json.encode(render(tokenizer, scored(tokens))))

    assert sum(turns) >= choices * tokens * (1 + len(TOP))
    assert max(turns) <= READS * ENTRIES_AT_ONCE
    assert [one["logprobs"] for one in body["choices"]] == [plain] * choices


def test_the_loop_is_given_up_between_pieces_of_a_response() -> None:
    texts = Counted([b"a"] * 64)
    tokenizer = tokenizer_of(texts)
    choice, delta = Choice(0, 7, tokenizer, ()), Delta("a", scored(300), "stop")
    writer = ResponsesWriter(head(Operation.RESPONSES), tokenizer, b"{}", may_call=False)
    body, turns = written(writer.whole([choice], [delta], COUNTS, None), texts)
    plain = chat_logprobs(tokenizer, scored(300))["content"]

    assert max(turns) <= READS * ENTRIES_AT_ONCE
    assert body["output"][0]["content"][0]["logprobs"] == plain


def test_a_token_with_more_alternatives_than_a_piece_may_have_is_a_piece_by_itself() -> None:
    texts = Counted([b"a"] * 64)
    tokenizer = tokenizer_of(texts)
    many = tuple(TokenLogprob(0, -1.5) for _ in range(2 * ENTRIES_AT_ONCE))
    wide = [ScoredToken(0, -0.5, many, place) for place in range(2)]
    choice, delta = Choice(0, 7, tokenizer, ()), Delta("a", wide, "stop")
    writer = ChunkWriter(head(Operation.CHAT), tokenizer)
    body, turns = written(writer.whole([choice], [delta], COUNTS, None), texts)

    assert len(body["choices"][0]["logprobs"]["content"]) == 2
    assert max(turns) == READS * (1 + len(many))


def test_what_is_generated_comes_after_the_echoed_prompt() -> None:
    """Its offsets count the characters of the prompt."""
    tokenizer = tokenizer_of(Counted([b"a"] * 64))
    echo = PromptEcho("ab", (b'["a","b"]', b"[null,-1.0]", b'[null,{"b":-1.0}]', b"[0,1]"))
    choice, delta = Choice(0, 7, tokenizer, ()), Delta("aa", scored(2), "stop")
    writer = ChunkWriter(head(Operation.TEXT), tokenizer)
    body = asyncio.run(writer.whole([choice], [delta], COUNTS, None, [echo]))
    (found,) = msgspec.json.decode(body)["choices"]

    assert found["text"] == "abaa"
    assert found["logprobs"]["tokens"] == ["a", "b", "a", "a"]
    assert found["logprobs"]["text_offset"] == [0, 1, 2, 3]
