"""Every list, text and number that a client sizes has a cap, and the cap is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest

from service.config.settings import SamplingDefaults
from service.gateway.errors import ApiError
from service.gateway.http import limits
from service.gateway.ingest.request_types import NOT_SUPPORTED, ChatBody, CompletionBody
from service.gateway.ingest.responses_body import ResponsesBody
from service.gateway.ingest.responses_request import parse_responses
from service.gateway.ingest.schemas import GenerationRequest, parse_chat, parse_completion
from service.gateway.routes.limits_route import LimitsChange
from service.gateway.routes.ops import TelemetryChange
from service.gateway.routes.view_routes import TracingChange
from tests.support.capped_types import Leaf, leaves_of, most_of, uncapped, value_of, with_leaf

PARSERS: dict[type, Callable[[bytes, SamplingDefaults], GenerationRequest]] = {
    ChatBody: parse_chat,
    CompletionBody: parse_completion,
    ResponsesBody: parse_responses,
}
BODIES = [ChatBody, CompletionBody, ResponsesBody, LimitsChange, TracingChange, TelemetryChange]
LEAVES = [(kind, leaf) for kind in PARSERS for leaf in leaves_of(kind)]
SIZED = [(kind, leaf) for kind, leaf in LEAVES if leaf.path[0] not in NOT_SUPPORTED]


def parsed(kind: type, body: dict[str, Any]) -> GenerationRequest:
    return PARSERS[kind](msgspec.json.encode(body), SamplingDefaults())


def refusal_of(kind: type, body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parsed(kind, body)
    assert caught.value.status == 400
    return caught.value


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "x", **fields}


@pytest.mark.parametrize("kind", BODIES)
def test_no_field_of_a_body_is_without_a_cap(kind: type) -> None:
    assert uncapped(kind) == []


@pytest.mark.parametrize(
    "annotation",
    [
        str, int, float, bytes, Any, list[bool], dict[str, bool], list[str] | None,
        Annotated[list[str], msgspec.Meta(max_length=4)],
        Annotated[dict[str, bool], msgspec.Meta(max_length=4)],
        Annotated[str, msgspec.Meta(min_length=1)],
        Annotated[int, msgspec.Meta(ge=0)],
    ],
)  # fmt: skip
def test_a_new_field_without_a_cap_is_found(annotation: Any) -> None:
    grown = msgspec.defstruct("Grown", [("field", annotation, None)], bases=(CompletionBody,))

    assert uncapped(grown)
    assert all(name.startswith("field") for name in uncapped(grown))


@pytest.mark.parametrize(("kind", "leaf"), SIZED, ids=str)
def test_one_more_than_the_cap_is_refused_with_the_name_of_the_field(
    kind: type, leaf: Leaf
) -> None:
    error = refusal_of(kind, with_leaf(kind, leaf, value_of(leaf.type, most_of(leaf.type) + 1)))

    assert error.param is not None
    assert error.param.startswith(leaf.path[0])
    assert error.param in error.message


@pytest.mark.parametrize(("kind", "leaf"), SIZED, ids=str)
def test_nothing_is_refused_for_its_size_at_the_cap(kind: type, leaf: Leaf) -> None:
    """What else may be wrong with it (a schema that is no schema) is not about its size."""
    body = with_leaf(kind, leaf, value_of(leaf.type, most_of(leaf.type)))
    said = ""
    try:
        parsed(kind, body)
    except ApiError as refusal:
        said = refusal.message

    assert "length" not in said
    assert "<=" not in said


def test_a_million_stop_ids_are_refused_and_those_allowed_are_a_set() -> None:
    error = refusal_of(CompletionBody, completion(stop_token_ids=list(range(1_300_000))))
    taken = parsed(CompletionBody, completion(stop_token_ids=[3, 1, 3]))

    assert error.param == "stop_token_ids"
    assert taken.stop_token_ids == frozenset({1, 3})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (completion(logit_bias={str(one): 1 for one in range(100_000)}), "logit_bias"),
        (completion(stop=["x" * 100_000]), "stop"),
        (completion(prompt=["x"] * 300), "n"),
        (completion(prompt=["x"] * 20, n=16), "n"),
        (completion(user="x" * 100_000), "user"),
        (completion(metadata={str(one): "x" for one in range(17)}), "metadata"),
        (completion(model="x" * 100_000), "model"),
    ],
)
def test_fields_that_a_request_keeps_are_bounded(body: dict[str, Any], param: str) -> None:
    assert refusal_of(CompletionBody, body).param == param


def test_a_repetition_penalty_that_makes_logits_infinite_is_refused() -> None:
    error = refusal_of(CompletionBody, completion(repetition_penalty=5e-324))

    assert error.param == "repetition_penalty"
    assert parsed(CompletionBody, completion(repetition_penalty=0.01)).repetition_penalty == 0.01


def test_a_conversation_of_too_many_messages_is_refused() -> None:
    messages = [{"role": "user", "content": "x"}] * (limits.MESSAGES.value + 1)

    assert refusal_of(ChatBody, {"messages": messages}).param == "messages"


def test_a_schema_is_bounded_in_levels_as_it_is_in_characters() -> None:
    deep: dict[str, Any] = {}
    for _ in range(limits.SCHEMA_LEVELS.value + 1):
        deep = {"items": deep}
    wide = {"description": "x" * limits.GRAMMAR_CHARACTERS.value}

    assert "nested too deeply" in refusal_of(CompletionBody, completion(guided_json=deep)).message
    assert "characters" in refusal_of(CompletionBody, completion(guided_json=wide)).message


def test_an_error_does_not_repeat_what_was_sent_at_length() -> None:
    long = "x" * 1_000_000
    for body in ({long: 1}, {"service_tier": long}, {"response_format": {"type": long}}):
        assert len(refusal_of(CompletionBody, completion(**body)).message) < 500


def test_choices_are_named_where_one_of_them_was_wanted() -> None:
    wrong = {"messages": [{"role": "king", "content": "x"}]}

    assert "system, developer, user, assistant" in refusal_of(ChatBody, wrong).message


def test_bodies_without_optional_fields_and_with_nulls_mean_the_same() -> None:
    names = set(CompletionBody.__struct_fields__) - {"prompt"}
    nulls = dict.fromkeys(names)

    assert parsed(CompletionBody, completion(**nulls)) == parsed(CompletionBody, completion())


def test_a_body_that_is_json_of_another_kind_is_said_to_be_no_object() -> None:
    for body in (b"[1]", b'"x"', b"1", b"null", b"[" * 20_000):
        with pytest.raises(ApiError) as caught:
            parse_completion(body, SamplingDefaults())
        assert caught.value.code == "invalid_json"
    assert json.loads(caught.value.body())["error"]["message"]
