"""What honoured fields of other dialects do to prompts and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from service.engine.plan import Emission, Sample
from service.gateway.generation.choice import Choice, Delta
from service.gateway.generation.responses import (
    ChunkWriter,
    ResponseHead,
    full_body,
    role_events,
    usage,
)
from service.gateway.ingest.compat.compat_options import (
    NO_COMPAT_OPTIONS,
    CompatOptions,
    cut_prompt,
)
from service.gateway.ingest.schemas import Operation
from service.text.detokenizer import StopScanner
from service.text.dummy_tokenizer import dummy_tokenizer
from telemetry.facts.reasons import EndReason

TOKENIZER = dummy_tokenizer("tiny")
SPECIAL = min(TOKENIZER.special_ids)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special=False)


def choice_after(
    ids: list[int], compat_options: CompatOptions, end: EndReason, stops: tuple[str, ...] = ()
) -> Choice:
    """A choice whose last token came with its end."""
    choice = Choice(0, 7, TOKENIZER, stops, compat_options)
    for number, token_id in enumerate(ids, 1):
        last = end if number == len(ids) else None
        choice.accept(Emission(7, Sample(token_id), last))
    return choice


def head(
    operation: Operation, compat_options: CompatOptions, prompts: list[list[int]] | None
) -> ResponseHead:
    return ResponseHead(operation, "id", 1, "m", False, True, compat_options, prompts)


def written(body: Coroutine[Any, Any, bytes]) -> Any:
    return msgspec.json.decode(asyncio.run(body))


def chunks(data: bytes) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line[6:]) for line in data.split(b"\n\n") if line]


@pytest.mark.parametrize(("keep", "text"), [(False, "one "), (True, "one two")])
def test_the_text_that_stopped_it_is_kept_where_that_was_asked_for(keep: bool, text: str) -> None:
    compat_options = CompatOptions(keep_stop=keep)
    choice = choice_after(ids_of("one two three"), compat_options, EndReason.EOS, ("two",))

    assert choice.take_delta().text == text
    assert choice.stop_found


def test_of_stop_texts_that_begin_together_the_first_to_be_complete_is_kept() -> None:
    scanner = StopScanner(("abc", "ab"), keep=True)

    assert scanner.push("xa") == ("x", False)
    assert scanner.push("bc") == ("ab", True)


def test_a_kept_stop_text_that_comes_in_pieces_is_whole() -> None:
    scanner = StopScanner(("END",), keep=True)
    found = [scanner.push(piece) for piece in ("a E", "N", "D b")]

    assert "".join(text for text, _ in found) == "a END"
    assert found[-1][1]


@pytest.mark.parametrize("end", [EndReason.EOS, EndReason.STOP_TOKEN])
def test_the_token_that_ends_a_text_is_part_of_it_only_when_it_is_kept_and_shown(
    end: EndReason,
) -> None:
    ids = [*ids_of("a"), SPECIAL]
    shown = TOKENIZER.token_text(SPECIAL)
    texts = {
        (keep, special): choice_after(
            ids, CompatOptions(keep_stop=keep, keep_special=special), end
        ).take_delta().text
        for keep in (False, True)
        for special in (False, True)
    }  # fmt: skip

    assert texts == {
        (False, False): "a",
        (False, True): "a",
        (True, False): "a",
        (True, True): f"a{shown}",
    }


def test_control_tokens_are_text_where_that_was_asked_for() -> None:
    ids = [*ids_of("a"), SPECIAL, *ids_of("b")]
    plain = choice_after(ids, NO_COMPAT_OPTIONS, EndReason.MAX_TOKENS).take_delta().text
    shown = (
        choice_after(ids, CompatOptions(keep_special=True), EndReason.MAX_TOKENS).take_delta().text
    )

    assert plain == "ab"
    assert shown == f"a{TOKENIZER.token_text(SPECIAL)}b"


def test_token_ids_come_with_the_text_that_they_become() -> None:
    """Those of a character that is not complete wait for the rest of it; none is lost."""
    ids = ids_of("aé")
    choice = Choice(0, 7, TOKENIZER, (), CompatOptions(token_ids=True))
    found: list[Delta] = []
    for number, token_id in enumerate(ids, 1):
        end = EndReason.MAX_TOKENS if number == len(ids) else None
        choice.accept(Emission(7, Sample(token_id), end))
        found.append(choice.take_delta())

    assert [one for delta in found for one in delta.token_ids or ()] == ids
    assert all(delta.token_ids is None or not delta.is_empty for delta in found)


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.TEXT])
def test_a_stream_has_the_prompts_tokens_once_and_the_outputs_with_each_chunk(
    operation: Operation,
) -> None:
    compat_options = CompatOptions(token_ids=True)
    top = head(operation, compat_options, [[1, 2]])
    writer, choice = ChunkWriter(top, TOKENIZER), Choice(0, 7, TOKENIZER, (), compat_options)
    data = b"".join(role_events(top, [choice]))
    data += writer.chunk(choice, Delta("a", [], None, [5]))
    data += writer.chunk(choice, Delta("b", [], "stop", [6, 7]))
    found = chunks(data)

    with_prompt = [one for one in found if "prompt_token_ids" in {**one, **one["choices"][0]}]
    assert with_prompt == found[:1]
    assert {**found[0], **found[0]["choices"][0]}["prompt_token_ids"] == [1, 2]
    ids = [ids for one in found for ids in one["choices"][0].get("token_ids", [])]
    assert ids == [5, 6, 7]


def test_a_whole_text_has_the_tokens_of_each_prompt_with_its_choices() -> None:
    compat_options = CompatOptions(token_ids=True, tier="default", answer_id="mine")
    top = head(Operation.TEXT, compat_options, [[1], [1], [2, 3], [2, 3]])
    choices = [Choice(index, index, TOKENIZER, (), compat_options) for index in range(4)]
    deltas = [Delta("a", [], "stop", [index]) for index in range(4)]
    body = written(full_body(top, choices, deltas, usage(1, 2, 0), TOKENIZER))

    assert [one["prompt_token_ids"] for one in body["choices"]] == [[1], [1], [2, 3], [2, 3]]
    assert [one["token_ids"] for one in body["choices"]] == [[0], [1], [2], [3]]
    assert body["service_tier"] == "default"


def test_a_whole_chat_has_its_prompts_tokens_beside_the_choices() -> None:
    compat_options = CompatOptions(token_ids=True)
    top = head(Operation.CHAT, compat_options, [[4, 5]])
    choice, delta = Choice(0, 7, TOKENIZER, (), compat_options), Delta("a", [], "stop", [9])
    body = written(full_body(top, [choice], [delta], usage(1, 2, 0), TOKENIZER))

    assert body["prompt_token_ids"] == [4, 5]
    assert body["choices"][0]["token_ids"] == [9]


def test_usage_comes_with_each_chunk_where_that_was_asked_for() -> None:
    top = head(Operation.TEXT, CompatOptions(running_usage=True), None)
    writer, choice = ChunkWriter(top, TOKENIZER), Choice(0, 7, TOKENIZER, ())
    data = writer.chunk(choice, Delta("a", [], None), usage(3, 1, 0))
    data += writer.chunk(choice, Delta("b", [], None), usage(3, 2, 0))

    assert [one["usage"]["completion_tokens"] for one in chunks(data)] == [1, 2]


@pytest.mark.parametrize(
    ("most", "right", "kept"),
    [
        (None, False, list(range(10))),
        (4, False, [6, 7, 8, 9]),
        (4, True, [0, 1, 2, 3]),
        (40, False, list(range(10))),
        (0, False, []),
        (-1, False, [5, 6, 7, 8, 9]),
        (-1, True, [0, 1, 2, 3, 4]),
    ],
)
def test_a_prompt_is_cut_to_what_was_asked_for_or_to_what_fits(
    most: int | None, right: bool, kept: list[int]
) -> None:
    """The context has 8 tokens, 3 of them for the output."""
    compat_options = CompatOptions(prompt_tokens=most, cut_right=right)

    assert cut_prompt(list(range(10)), compat_options, 8, 3) == kept
