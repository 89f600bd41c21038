"""What of a chat request reaches the model's template, and what is refused because it would not."""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from service.config.settings import SamplingDefaults
from service.gateway.errors import ApiError
from service.gateway.ingest.chat_prompt import chat_prompt
from service.gateway.ingest.schemas import parse_chat
from service.text import chat_template
from service.text.chat_template import TemplateError, render_chat
from service.text.dummy_tokenizer import CHAT_TEMPLATE, dummy_tokenizer
from telemetry.facts.clock import date_text_at

TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
THINKS = TURNS + "{% if enable_thinking is defined and enable_thinking %}!{% endif %}"
STRIPS = TURNS.replace("m.content", "m.content | trim")
DROPS = TURNS.replace("m.content", "m.content[:2]")
USER = {"role": "user", "content": "Hi"}


def prompt(template: str, *messages: dict[str, Any], **fields: Any) -> str:
    """What the model gets of a body with these messages and fields."""
    tokenizer = dummy_tokenizer("tiny")
    tokenizer.chat_template = template
    body = msgspec.json.encode({"messages": messages or [USER], **fields})
    request = parse_chat(body, SamplingDefaults())
    assert request.messages is not None
    return chat_prompt(tokenizer, request.messages, request.chat, lambda form: f"({form})")


def refusal(template: str, *messages: dict[str, Any], **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        prompt(template, *messages, **fields)
    assert caught.value.status == 400
    return caught.value


def test_a_developer_is_a_system_where_the_template_has_no_such_role() -> None:
    knows = TURNS + "{% if messages[0].role == 'developer' %}.{% endif %}"
    message = {"role": "developer", "content": "Be brief."}

    assert prompt(TURNS, message) == "<system>Be brief.</><assistant>"
    assert prompt(knows, message) == "<developer>Be brief.</><assistant>."


def test_messages_of_the_assistant_come_back_as_clients_send_them() -> None:
    """With null content, with a refusal as text or as a part, with the reasoning beside it."""
    spoken = TURNS.replace("{{ m.content }}", "{{ m.reasoning_content }}|{{ m.content }}")
    empty = {"role": "assistant", "content": None, "refusal": None, "audio": None,
             "function_call": None, "annotations": []}  # fmt: skip
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    thought = {"role": "assistant", "content": "4", "reasoning_content": "2+2"}

    assert "<assistant></>" in prompt(TURNS, USER, empty, USER)
    assert "<assistant>no</>" in prompt(TURNS, USER, {**empty, "refusal": "no"}, USER)
    assert "<assistant>ab</>" in prompt(TURNS, USER, {"role": "assistant", "content": parts}, USER)
    assert "<assistant>2+2|4</>" in prompt(spoken, USER, thought, USER)
    newer = {"role": "assistant", "content": "4", "reasoning": "2+2"}
    assert prompt(spoken, USER, newer) == prompt(spoken, USER, thought)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": "x", "reasoning_content": "y"},
         "messages[0].reasoning_content"),
        ({"role": "system", "content": [{"type": "refusal", "refusal": "y"}]},
         "messages[0].refusal"),
    ],
)  # fmt: skip
def test_what_only_an_assistant_has_is_refused_from_others(
    message: dict[str, Any], param: str
) -> None:
    assert refusal(TURNS, message).param == param


def test_variables_reach_the_template_that_reads_them() -> None:
    assert prompt(THINKS, chat_template_kwargs={"enable_thinking": True}).endswith("!")
    assert not prompt(THINKS, chat_template_kwargs={"enable_thinking": False}).endswith("!")


def test_a_variable_that_the_template_does_not_read_is_refused_by_name() -> None:
    """What is false or null asks for nothing, so clients that always send it are served."""
    error = refusal(THINKS, chat_template_kwargs={"thinking_budget": 3})

    assert error.param == "chat_template_kwargs"
    assert "thinking_budget" in error.message
    assert "enable_thinking" in error.message
    assert prompt(TURNS, chat_template_kwargs={"enable_thinking": False, "x": None})


@pytest.mark.parametrize(
    "variables",
    [{"messages": "x"}, {"tools": None}, {"a b": 1}, {"x": {"y": 1}}, {"x": "y" * 5000},
     {"x": 1 << 30}, {f"n{one}": 1 for one in range(40)}],
)  # fmt: skip
def test_variables_that_are_large_nested_or_the_servers_own_are_refused(
    variables: dict[str, Any],
) -> None:
    assert str(refusal(THINKS, chat_template_kwargs=variables).param).startswith(
        "chat_template_kwargs"
    )


def test_an_effort_reaches_the_template_or_turns_thinking_off_or_is_refused() -> None:
    efforts = TURNS + "{{ reasoning_effort }}"

    assert prompt(efforts, reasoning_effort="low").endswith("low")
    assert prompt(THINKS + "{{ enable_thinking }}", reasoning_effort="none").endswith("False")
    assert prompt(TURNS, reasoning_effort="none") == prompt(TURNS)
    assert refusal(THINKS, reasoning_effort="high").code == "unsupported"


def test_documents_reach_the_template_that_has_a_place_for_them() -> None:
    reads = "{% for d in documents %}[{{ d.title }}: {{ d.text }}]{% endfor %}" + TURNS
    documents = [{"title": "A", "text": "b"}, {"text": "c"}]

    assert prompt(reads, documents=documents).startswith("[A: b][: c]")
    assert refusal(TURNS, documents=documents).param == "documents"


def test_dates_of_a_template_come_from_the_clock_in_forms_of_bounded_length() -> None:
    moment = time.struct_time((2026, 7, 9, 13, 5, 0, 3, 190, 0))

    assert prompt("{{ strftime_now('%d %b %Y') }}" + TURNS).startswith("(%d %b %Y)")
    assert date_text_at(moment, "%d %b %Y, %-H:%M%%") == "09 Jul 2026, 13:05%"
    for form in ("%99999d", "%", "x" * 65):
        with pytest.raises(ValueError, match="no form of a date"):
            date_text_at(moment, form)


@pytest.mark.parametrize("template", [TURNS, STRIPS, CHAT_TEMPLATE])
@pytest.mark.parametrize(
    "content",
    ["The answer is", "The answer is ", " a\n", "x<<CONTINUE y", "<<CONTINUE0>><<CONTINUE1>>"],
)
def test_the_last_message_is_continued_as_transformers_does(template: str, content: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    (theirs,), _ = render_jinja_template(
        [messages], chat_template=template, continue_final_message=True
    )

    assert prompt(template, *messages, continue_final_message=True) == theirs


MARKS = st.lists(st.sampled_from(["<", "<<CONTINUE", "0>>", "<<CONTINUE0>>", "1>>", "x"]))


@settings(max_examples=50, deadline=None)
@given(MARKS.map("".join))
def test_a_template_that_cuts_the_last_message_off_is_found_out_whatever_the_message_says(
    content: str,
) -> None:
    """No text of a client passes for the place where its message ends."""
    cuts = TURNS.replace("m.content", f"m.content[:{len(content)}]")
    messages = [USER, {"role": "assistant", "content": f"{content}rest"}]

    with pytest.raises(TemplateError, match="leaves out a part of the last message"):
        render_chat(cuts, messages, continue_final_message=True)


def lines_run(content: str) -> int:
    """How many lines of the module run to continue a message."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != chat_template.__file__:
            return None
        count += event == "line"
        return note

    messages = [{"role": "assistant", "content": content}]
    before = sys.gettrace()
    sys.settrace(note)
    try:
        render_chat(TURNS, messages, continue_final_message=True)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("more", ["<", "0", ">", "<<CONTINUE"])
def test_a_message_that_is_made_to_look_like_our_mark_costs_no_more_when_it_is_longer(
    more: str,
) -> None:
    """It was read again for each character: a quarter of a megabyte took half a minute."""
    lines_run("the template is compiled")

    assert lines_run("<<CONTINUE" + more * 2000) == lines_run("<<CONTINUE" + more * 20)


def test_options_that_contradict_each_other_are_refused() -> None:
    answer = {"role": "assistant", "content": "The"}
    both = {"continue_final_message": True, "add_generation_prompt": True}

    assert refusal(TURNS, USER, answer, **both).param == "continue_final_message"
    assert refusal(TURNS, USER, continue_final_message=True).param == "continue_final_message"
    empty = {"role": "assistant", "content": ""}
    assert refusal(TURNS, USER, empty, continue_final_message=True).status == 400
    dropped = refusal(DROPS, USER, {**answer, "content": "Paris is"}, continue_final_message=True)
    assert "leaves out a part of the last message" in dropped.message
    assert prompt(TURNS, USER, add_generation_prompt=False) == "<user>Hi</>"


@pytest.mark.parametrize(
    "template",
    ["{{ 'x' * n }}", "{{ n * messages }}", "{{ 7 ** n }}", "{{ 1 / (n - n) }}",
     "{% for a in range(9999) %}{% for b in range(9999) %}{{ pad }}{% endfor %}{% endfor %}"],
)  # fmt: skip
def test_a_template_cannot_be_made_to_write_without_bound(template: str) -> None:
    """Nor does arithmetic on a client's number end in anything but an error of the template."""
    with pytest.raises(TemplateError):
        render_chat(template, [USER], variables={"n": 1 << 30, "pad": "x" * 4096})


def test_parts_that_are_marked_for_training_are_rendered_as_they_are() -> None:
    marked = TURNS.replace("{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}")

    assert prompt(marked, USER) == prompt(TURNS, USER)
