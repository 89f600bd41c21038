"""A model that reasons, on a real server: its reasoning is a field of its own, and has a budget."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.models.scripted_model import scripted_folder
from tests.support.servers.server import Server, eventually, sse_events

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think></think>\\n\\n' }}{% endif %}"
    "{% if opened is defined %}<think>{% endif %}{% endif %}"
)
FOLLOWS = dict(
    zip(
        ["<|assistant|>", "<think>", "\n", "Let", " me", " add", "</think>", "\n\n", "It", " is"],
        ["<think>", "\n", "Let", " me", " add", "</think>", "\n\n", "It", " is", " four."],
        strict=True,
    )
)
QUESTION = [{"role": "user", "content": "2+2? <think>"}]
THOUGHT, ANSWER = "Let me add", "It is four."


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = scripted_folder(tmp_path_factory.mktemp("thinker"), FOLLOWS, TEMPLATE)
    with Server("--model", str(folder), "--served-model-name", "thinker") as running:
        yield running
        eventually(running.is_empty, "an empty engine after the tests")


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    body = {"messages": QUESTION, "temperature": 0, **fields}
    answer = server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = {**answer.json(), "request_id": answer.headers["x-request-id"]}
    return found


def message(answer: dict[str, Any], index: int = 0) -> tuple[str | None, str]:
    """Reasoning and answer of a choice."""
    said = answer["choices"][index]["message"]
    return said.get("reasoning_content"), said["content"]


def reasoned(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return count


def test_reasoning_and_answer_are_two_fields_and_their_tokens_are_counted(thinker: Server) -> None:
    """In the answer, in the request's record and in the metrics."""
    answer = ask(thinker)

    assert message(answer) == (THOUGHT, ANSWER)
    assert (reasoned(answer), answer["usage"]["completion_tokens"]) == (4, 11)
    assert thinker.facts_of(answer["request_id"])["reasoning_tokens"] == 4
    assert "phasescope_reasoning_tokens_total" in thinker.client.get("/metrics").text


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"thinking_token_budget": 2}])
def test_a_stream_has_the_same_texts_in_deltas(thinker: Server, fields: dict[str, Any]) -> None:
    body = {"messages": QUESTION, "temperature": 0, "stream": True, **fields}
    texts: dict[tuple[int, str], str] = {}
    with thinker.client.stream("POST", "/v1/chat/completions", json=body) as stream:
        for event in sse_events(stream.iter_lines())[:-1]:
            for choice in event["choices"]:
                for name in ("reasoning_content", "content"):
                    key = choice["index"], name
                    texts[key] = texts.get(key, "") + (choice["delta"].get(name) or "")
    whole = ask(thinker, **fields)

    for index in range(fields.get("n", 1)):
        streamed = texts[index, "reasoning_content"], texts[index, "content"]
        assert streamed == message(whole, index)


@pytest.mark.parametrize(
    ("budget", "thought", "count"),
    [(0, None, 0), (2, "Let", 2), (-1, THOUGHT, 4), (100, THOUGHT, 4)],
)
def test_a_budget_ends_the_reasoning_and_the_answer_follows(
    thinker: Server, budget: int, thought: str | None, count: int
) -> None:
    answer = ask(thinker, thinking_token_budget=budget)

    assert message(answer) == (thought, ANSWER)
    assert reasoned(answer) == count


def test_the_template_says_whether_reasoning_is_open_closed_or_may_come(thinker: Server) -> None:
    """And not the markers that a user writes."""
    for variables, expected in (
        ({"enable_thinking": False}, (None, ANSWER)),
        ({"opened": True}, (THOUGHT, ANSWER)),
    ):
        assert message(ask(thinker, chat_template_kwargs=variables)) == expected
    assert message(ask(thinker, reasoning_effort="none")) == (None, ANSWER)


@pytest.mark.parametrize("budget", [None, 1])
def test_a_constraint_holds_for_the_answer(thinker: Server, budget: int | None) -> None:
    fields = {"structured_outputs": {"choice": ["yes", "no"]}, "thinking_token_budget": budget}
    answer = ask(thinker, **fields)

    assert message(answer)[1] in ("yes", "no")
    assert reasoned(answer) == (4 if budget is None else 1)

    def validated() -> bool:
        return thinker.facts_of(answer["request_id"])["output_valid"] is True

    assert validated()


def test_stop_strings_and_log_probabilities_are_of_the_answer(thinker: Server) -> None:
    answer = ask(thinker, stop=["me", " is"], logprobs=True)
    tokens = [one["token"] for one in answer["choices"][0]["logprobs"]["content"]]

    assert message(answer) == (THOUGHT, "It")
    assert "".join(tokens).strip().startswith("It")


def test_reasoning_that_is_not_wanted_is_left_out_and_still_counted(thinker: Server) -> None:
    answer = ask(thinker, include_reasoning=False)

    assert message(answer) == (None, ANSWER)
    assert reasoned(answer) == 4


def test_an_output_that_is_cut_within_its_reasoning_has_no_answer(thinker: Server) -> None:
    answer = ask(thinker, max_tokens=3)

    assert message(answer) == ("Let", "")
    assert answer["choices"][0]["finish_reason"] == "length"


def test_the_last_message_can_be_continued_within_its_reasoning(thinker: Server) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "<think>\nLet"}]

    assert message(ask(thinker, messages=begun, continue_final_message=True)) == (
        "me add", ANSWER,
    )  # fmt: skip
    answered = [*QUESTION, {"role": "assistant", "content": "It"}]
    assert message(ask(thinker, messages=answered, continue_final_message=True)) == (
        None, " is four.",
    )  # fmt: skip


def test_the_openai_client_shows_reasoning_as_a_field(thinker: Server) -> None:
    client = openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(model="thinker", messages=QUESTION, temperature=0)  # type: ignore[arg-type]

    said = answer.choices[0].message
    assert json.loads(said.model_dump_json())["reasoning_content"] == THOUGHT
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 4


def test_a_response_has_its_reasoning_as_an_item_before_the_message(thinker: Server) -> None:
    """In the stream too; and it may come back with the next turn."""
    client = openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0)
    with client.responses.stream(model="thinker", input="2+2?", temperature=0) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_response()
    reasoning, said = final.output
    back = [item.model_dump(exclude_unset=True) for item in final.output]
    again = client.responses.create(
        model="thinker", temperature=0, extra_body={"thinking_token_budget": 2},
        input=[{"role": "user", "content": "2+2?"}, *back, {"role": "user", "content": "?"}],
    )  # fmt: skip

    assert [reasoning.type, said.type] == ["reasoning", "message"]
    assert reasoning.content[0].text == THOUGHT  # type: ignore[union-attr,index]
    assert final.output_text == again.output_text == ANSWER
    assert names.index("response.reasoning_text.done") < names.index("response.output_text.delta")
    assert again.usage is not None
    assert again.usage.output_tokens_details.reasoning_tokens == 2


def test_a_model_that_does_not_reason_refuses_a_budget(server: Server) -> None:
    body = {"messages": QUESTION, "thinking_token_budget": 5}
    answer = server.client.post("/v1/chat/completions", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "thinking_token_budget"
