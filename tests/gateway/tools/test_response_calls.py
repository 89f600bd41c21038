"""Text and calls as items of `/v1/responses`, however the output is cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from service.engine.plan import Emission, Sample
from service.gateway.generation.choice import Choice
from service.gateway.generation.responses import ResponseHead, usage
from service.gateway.generation.responses_writer import ResponsesWriter
from service.gateway.generation.tool_text import ToolText
from service.gateway.ingest.schemas import Operation
from service.text.dummy_tokenizer import dummy_tokenizer
from service.text.tools.dialect import FORMATS
from service.text.tools.hermes import HERMES
from service.text.tools.tool_format import ToolFormat, WrittenCall
from service.text.tools.tool_use import ToolUse
from telemetry.facts.clock import ManualClock
from telemetry.facts.reasons import EndReason

TOKENIZER = dummy_tokenizer("tiny")
END = TOKENIZER.eos_token_ids[0]
HEAD = ResponseHead(Operation.RESPONSES, "r", 1, "m", True, False)
CALLS = [WrittenCall("abcdefghi", "f", '{"a": {"b": 1}}'), WrittenCall("abcdefghj", "f", "{}")]


def new_writer() -> ResponsesWriter:
    return ResponsesWriter(HEAD, TOKENIZER, b"{}", may_call=True)


def new_choice(form: ToolFormat, stops: tuple[str, ...] = ()) -> Choice:
    use = ToolUse(format=form.name, names=("f",), schemas=("{}",), grammar="")
    return Choice(0, 7, TOKENIZER, stops, tools=ToolText(use, ManualClock()))


def accept(choice: Choice, text: str, end: EndReason | None = None) -> None:
    """A token a byte, each with a log-probability; the last has the end, if there is one."""
    ids = TOKENIZER.encode(text, add_special=False)
    if end is EndReason.EOS:
        ids.append(END)
    for left, token_id in zip(range(len(ids) - 1, -1, -1), ids, strict=True):
        choice.accept(Emission(7, Sample(token_id, -0.5, ()), None if left else end))


def events(written: bytes) -> list[dict[str, Any]]:
    return [json.loads(one.partition(b"data: ")[2]) for one in written.split(b"\n\n") if one]


def streamed(choice: Choice, pieces: Sequence[str], end: EndReason) -> list[dict[str, Any]]:
    """The events of an output that comes in pieces, each in one chunk."""
    writer, found = new_writer(), list[dict[str, Any]]()
    for left, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
        accept(choice, piece, None if left else end)
        delta = choice.take_delta()
        if not delta.is_empty:
            found += events(writer.chunk(choice, delta))
    return found


def done(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["item"] for one in found if one["type"] == "response.output_item.done"]


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name.value)
def test_calls_that_are_cut_after_their_first_arguments_are_nothing_but_calls(
    form: ToolFormat,
) -> None:
    """The end of the arguments and what was held back come in one chunk."""
    whole = form.write(CALLS[: form.most_calls])
    begin = whole.index(CALLS[0].arguments) + len(CALLS[0].arguments)
    for end in range(begin, len(whole) + 1):
        pieces = [whole[: begin - 1], whole[begin - 1 : end]]
        items = done(streamed(new_choice(form), pieces, EndReason.MAX_TOKENS))

        assert {item["type"] for item in items} == {"function_call"}
        assert items[0]["arguments"] == CALLS[0].arguments


@pytest.mark.parametrize(
    ("before", "after", "stops", "said"),
    [("", "}oops", (), "}oops"), ("Look", HERMES.tail + HERMES.close, ("Look out",), "Look")],
)
def test_text_that_is_let_go_with_the_last_piece_of_a_call_comes_after_the_call(
    before: str, after: str, stops: tuple[str, ...], said: str
) -> None:
    """It follows the call against the format, or might have begun a stop string."""
    call = HERMES.write(CALLS[:1]).removesuffix(HERMES.tail + HERMES.close)
    pieces = [before + call[:-1], call[-1] + after]
    called, message = done(streamed(new_choice(HERMES, stops), pieces, EndReason.EOS))

    assert (called["status"], called["arguments"]) == ("completed", CALLS[0].arguments)
    assert message["content"][0]["text"] == said


@pytest.mark.parametrize("text", ["1 < 2 \U0001f600!", "\U0001f600", "a <tool"])
def test_the_log_probabilities_of_a_stream_are_those_of_a_whole_response(text: str) -> None:
    """Where a call was possible, of tokens too that bring no text by themselves."""
    ids = TOKENIZER.encode(text, add_special=False)
    writer, choice, found = new_writer(), new_choice(HERMES), list[dict[str, Any]]()
    for token_id in ids:
        choice.accept(Emission(7, Sample(token_id, -0.5, ()), None))
        found += events(writer.chunk(choice, choice.take_delta()))
    accept(choice, "", EndReason.EOS)
    found += events(writer.chunk(choice, choice.take_delta()))
    other = new_choice(HERMES)
    accept(other, text, EndReason.EOS)
    whole = new_writer().whole([other], [other.take_delta()], usage(1, 1, 0, 0), None)
    body = asyncio.run(whole)
    (part,) = json.loads(body)["output"][0]["content"]
    deltas = [one for one in found if one["type"] == "response.output_text.delta"]

    assert len(part["logprobs"]) == len(ids) + 1
    assert done(found)[0]["content"] == [part]
    assert [entry for one in deltas for entry in one["logprobs"]] == part["logprobs"]


def test_the_tokens_of_a_call_are_none_of_the_message_before_it() -> None:
    whole = "Hi" + HERMES.write(CALLS[:1])
    message, called = done(streamed(new_choice(HERMES), list(whole), EndReason.EOS))

    assert len(message["content"][0]["logprobs"]) == len("Hi")
    assert called["arguments"] == CALLS[0].arguments
