"""What the grammar of calls allows, token by token, in every format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.device.sampling.grammar import bit
from service.engine.plan import Grammar, GrammarKind
from service.engine.vocabulary import JSON_SPELLING
from service.text.dummy_tokenizer import dummy_tokenizer
from service.text.hf_tokenizer import hf_tokenizer
from service.text.tools.call_grammar import CallableFunction, call_grammar
from service.text.tools.dialect import FORMATS
from service.text.tools.schemas import arguments_schema
from service.text.tools.tool_format import ToolFormat, ToolFormatName, WrittenCall
from tests.support.models.scripted_model import scripted_folder
from tests.support.worlds.grammar_world import World

PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GOOD = [
    WrittenCall("abcdefghi", "get", '{"city": "a } b"}'),
    WrittenCall("abcdefghj", "put", '{"n": 3}'),
]
BAD = [WrittenCall("abcdefghi", "get", '{"n": 3}')]
FORMS = pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name.value)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World(dummy_tokenizer("tiny"))
    yield world
    world.compiler.close()


def functions(strict: bool = False) -> list[CallableFunction]:
    numbers: dict[str, Any] = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return [
        CallableFunction("get", arguments_schema(PLACE, strict, JSON_SPELLING)),
        CallableFunction("put", arguments_schema(numbers, strict, JSON_SPELLING)),
    ]


def outcome(world: World, source: str, text: str | list[int]) -> str:
    """`complete` or `open` if the text may come so, else `refused`."""
    matcher = world.compiler.matcher(Grammar(GrammarKind.TOOLS, source))
    ids = world.tokenizer.encode(text) if isinstance(text, str) else text
    for token_id in ids:
        if not bit(world.mask(matcher), token_id):
            return "refused"
        matcher.accept(token_id)
    return "complete" if matcher.is_complete else "open"


def grammar(form: ToolFormat, **fields: Any) -> str:
    given = {"special_ids": {}, "needed": True, "most_calls": 4, **fields}
    return call_grammar(form, functions(), **given)


@FORMS
def test_needed_calls_and_nothing_else(world: World, form: ToolFormat) -> None:
    source = grammar(form)
    calls = GOOD[: form.most_calls]

    assert outcome(world, source, form.write(calls)) == "complete"
    assert outcome(world, source, form.write(BAD)) == "refused"
    assert outcome(world, source, "Hello") == "refused"
    assert outcome(world, source, form.write(calls)[:-1]) == "open"


@FORMS
def test_possible_calls_may_follow_a_text(world: World, form: ToolFormat) -> None:
    source = grammar(form, needed=False)
    calls = GOOD[: form.most_calls]

    assert outcome(world, source, "Hello <b>") == "complete"
    assert outcome(world, source, f"Hello {form.write(calls)}") == "complete"
    assert outcome(world, source, f"Hello {form.write(BAD)}") == "refused"
    assert outcome(world, source, f"Hello {form.marker} world") == "refused"


@FORMS
def test_one_call_where_parallel_ones_are_not_wanted(world: World, form: ToolFormat) -> None:
    source = grammar(form, most_calls=1)

    assert outcome(world, source, form.write(GOOD[:1])) == "complete"
    assert outcome(world, source, form.write(GOOD)) == "refused"


@FORMS
def test_an_answer_in_json_is_the_alternative_to_calls(world: World, form: ToolFormat) -> None:
    answer = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    source = grammar(form, needed=False, answer=answer)

    assert outcome(world, source, '{"a": 3}') == "complete"
    assert outcome(world, source, form.write(GOOD[:1])) == "complete"
    assert outcome(world, source, '{"b": 3}') == "refused"
    assert outcome(world, source, "Hello") == "refused"


def test_a_marker_that_is_a_special_token_comes_as_that_token(tmp_path: Path) -> None:
    form = FORMATS[ToolFormatName.MISTRAL]
    folder = scripted_folder(tmp_path, {"a": form.marker}, "", special=(form.marker,))
    world = World(hf_tokenizer(folder))
    mark = world.tokenizer.token_id(form.marker)
    assert mark is not None
    source = grammar(form, special_ids={form.marker: mark}, needed=False)
    call = world.tokenizer.encode(form.write(GOOD).removeprefix(form.marker))
    text = world.tokenizer.encode("Hello")

    assert outcome(world, source, [*text, mark, *call]) == "complete"
    assert outcome(world, source, [*text, mark, *text]) == "refused"
    world.compiler.close()


def test_a_keyword_that_no_grammar_holds_is_refused_where_a_function_is_strict(
    world: World,
) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    form = next(iter(FORMATS.values()))
    answers = []
    for number, strict in enumerate((True, False)):
        function = CallableFunction("f", arguments_schema(parameters, strict, JSON_SPELLING))
        source = call_grammar(form, [function], special_ids={}, needed=True, most_calls=1)
        answers.append(world.compiled(1000 + number, Grammar(GrammarKind.TOOLS, source)))

    assert "uniqueItems" in (answers[0].error or "")
    assert answers[1].error is None
