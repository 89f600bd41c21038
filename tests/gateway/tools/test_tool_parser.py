"""Calls are told apart from text, however the text arrives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text.tools.dialect import FORMATS
from service.text.tools.parser import ToolParser
from service.text.tools.tool_format import ToolFormat, ToolFormatName, WrittenCall

NAMES = ("get_weather", "get", "put.x")
CALLS = [
    WrittenCall("abcdefghi", "get", '{"city": "a } b", "n": [1, {"x": "]"}]}'),
    WrittenCall("abcdefghj", "put.x", '{"text": "\\"}<tool_call>\\\\"}'),
    WrittenCall("abcdefghk", "get_weather", "{}"),
]


def numbered() -> Iterator[str]:
    return (f"call_{number}" for number in count())


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, ToolParser, list[str]]:
    """The text, the parser, and the pieces of text as they were let go."""
    ids = numbered()
    parser = ToolParser(form, NAMES, lambda: next(ids))
    texts: list[str] = []
    heard: dict[int, str] = {}
    for piece in pieces:
        for found in parser.push(piece):
            if isinstance(found, str):
                texts.append(found)
            else:
                assert found.begins == (found.call.index not in heard)
                heard[found.call.index] = heard.get(found.call.index, "") + found.arguments
    texts.append(parser.finish())
    assert heard == {call.index: call.arguments for call in parser.calls}
    return "".join(texts), parser, texts


def written(form: ToolFormat) -> list[WrittenCall]:
    return CALLS[: form.most_calls]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(FORMATS.values())), st.data())
def test_calls_are_found_wherever_the_text_is_cut(form: ToolFormat, data: st.DataObject) -> None:
    """Text before them stays text, and no part of a marker is among it."""
    before = data.draw(st.sampled_from(["", "Let me look. ", "<tool", "[TOOL", "a < b\n"]))
    whole = before + form.write(written(form))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    text, parser, _ = read(form, pieces)

    assert text == before
    assert [(c.name, c.arguments) for c in parser.calls] == [
        (c.name, c.arguments) for c in written(form)
    ]
    assert all(call.is_whole for call in parser.calls)
    assert parser.malformed == 0


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name.value)
def test_a_text_without_calls_passes_unchanged_and_at_once(form: ToolFormat) -> None:
    pieces = ["Hello", ", 2 < 3", " and [a]", ""]
    text, parser, texts = read(form, pieces)

    assert text == "".join(pieces)
    assert texts[0] == "Hello"
    assert not parser.calls


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name.value)
def test_a_call_that_is_cut_has_what_there_is_and_is_not_whole(form: ToolFormat) -> None:
    whole = form.write(CALLS[:1])
    text, parser, _ = read(form, [whole[: whole.index("a } b")]])

    assert text == ""
    assert [call.is_whole for call in parser.calls] == [False]
    assert parser.calls[0].arguments == '{"city": "'


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name.value)
def test_calls_that_are_cut_after_their_first_arguments_leave_no_text(form: ToolFormat) -> None:
    """Neither what closes a call nor what begins the next one is text."""
    whole, arguments = form.write(written(form)), written(form)[0].arguments
    begin = whole.index(arguments) + len(arguments)
    for end in range(begin, len(whole) + 1):
        text, parser, _ = read(form, list(whole[:end]))

        assert text == "", whole[begin:end]
        assert parser.calls[0].is_whole


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name.value)
def test_what_only_begins_like_a_call_is_text_and_is_counted(form: ToolFormat) -> None:
    said = f"Look: {form.marker} is how calls begin"
    text, parser, _ = read(form, [said])

    assert text == said
    assert parser.malformed == 1


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name.value)
def test_a_call_that_is_cut_before_its_arguments_is_neither_call_nor_text(
    form: ToolFormat,
) -> None:
    """As when max_tokens ends an answer of several calls."""
    name = CALLS[0].name
    one = form.write(CALLS[:1])
    text, parser, _ = read(form, [one[: one.index(name) + 1]])

    assert text == ""
    assert parser.malformed == 1


def test_a_function_that_is_not_offered_is_no_call() -> None:
    form = FORMATS[ToolFormatName.HERMES]
    said = form.write([WrittenCall("", "delete_all", "{}")])

    assert read(form, [said])[0] == said


def test_llama_may_leave_the_marker_out_but_not_beside_answers_in_json() -> None:
    form = next(one for one in FORMATS.values() if not one.marker_needed)
    bare = form.write(CALLS[:1]).removeprefix(form.marker)
    text, parser, _ = read(form, [bare])
    as_answer, other, _ = read(replace(form, marker_needed=True), [bare])

    assert (text, len(parser.calls)) == ("", 1)
    assert (as_answer, len(other.calls)) == (bare, 0)


def test_an_id_that_the_model_writes_is_the_ids_of_its_call() -> None:
    form = next(one for one in FORMATS.values() if one.id_mark)
    _, parser, _ = read(form, [form.write(CALLS[:1])])

    assert parser.calls[0].call_id == CALLS[0].call_id
