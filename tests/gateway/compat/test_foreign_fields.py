"""The table of foreign fields is what parsing does: each row as it says, for each setting."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from docs.generate.compatibility import all_marks
from service.config.settings import Compat, SamplingDefaults
from service.gateway.errors import ApiError
from service.gateway.ingest.compat.dialects import Dialect, Foreign, Treatment, is_taken
from service.gateway.ingest.compat.fields import OWN, ForeignFields
from service.gateway.ingest.pool import IngestPool
from service.gateway.ingest.request_types import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    NotSupported,
)
from service.gateway.ingest.schemas import GenerationRequest, parse_chat, parse_completion
from tests.support.capped_types import smallest

MARKS = all_marks()
TOP = {name: mark for name, mark in MARKS.items() if "." not in name}
REFUSED = [name for name, mark in TOP.items() if mark.treatment is Treatment.REFUSED]
TAKEN = [name for name, mark in TOP.items() if mark.treatment is not Treatment.REFUSED]
SETTINGS: tuple[Compat, ...] = get_args(Compat)
# values that a refused field must not have, one of which its type allows in another field
ON: list[Any] = [True, False, 1, 2, "x", "http://x", ["x"], {"x": 1}, [1]]


def parsed(compat: Compat = "all", **fields: Any) -> GenerationRequest:
    body = msgspec.json.encode({"prompt": "x", **fields})
    return parse_completion(body, SamplingDefaults(), compat)


def outcome_of(compat: Compat = "all", **fields: Any) -> ApiError | None:
    """The refusal of a body; None if it is taken."""
    try:
        parsed(compat, **fields)
    except ApiError as error:
        return error
    return None


def refusal_of(compat: Compat = "all", **fields: Any) -> ApiError:
    found = outcome_of(compat, **fields)
    assert found is not None, fields
    assert found.status == 400
    return found


def value_of(name: str) -> Any:
    """A value that the field takes: for a refused one a value that means off."""
    kinds = {field.encode_name: field.type for field in inspect.type_info(CompletionBody).fields}  # type: ignore[attr-defined]
    found = smallest(kinds[name])
    if TOP[name].treatment is Treatment.REFUSED and isinstance(found, bool):
        return not TOP[name].wrong
    return "{}" if name == "json_schema" else found


@pytest.mark.parametrize("name", TOP)
def test_each_row_is_taken_by_exactly_the_settings_of_its_dialects(name: str) -> None:
    value = value_of(name)
    for compat in SETTINGS:
        expected = any(is_taken(dialect, compat) for dialect in TOP[name].dialects)
        if expected or value is None:
            assert outcome_of(compat, **{name: value}) is None, compat
        else:
            error = refusal_of(compat, **{name: value})
            assert (error.code, error.param) == ("unknown_field", name)
            assert f"--compat {TOP[name].dialects[0].value}" in error.message


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_field_is_refused_with_its_reason_unless_its_value_means_off(name: str) -> None:
    found = [error for value in ON if (error := outcome_of(**{name: value}))]

    assert len(found) >= len(ON) - 1, "more than one value means off"
    for error in found:
        assert (error.status, error.code, error.param) == (400, "unsupported", name)
        assert TOP[name].reason in error.message
    assert parsed(**{name: None}) == parsed()
    assert parsed(**{name: value_of(name)}) == parsed()


OFF = {
    "do_remote_decode": False, "do_remote_prefill": False, "remote_engine_id": None,
    "remote_block_ids": None, "remote_host": None, "remote_port": None,
}  # fmt: skip


@pytest.mark.parametrize("given", [{}, OFF, {"remote_block_ids": []}])
def test_a_router_may_say_that_no_cache_is_to_be_moved(given: dict[str, Any]) -> None:
    assert parsed(kv_transfer_params=given) == parsed()


@pytest.mark.parametrize(
    "given",
    [
        {**OFF, "do_remote_decode": True},  # what a P/D router asks of a server for prefill
        {**OFF, "do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 5600},
        {"remote_block_ids": [3]}, {"remote_engine_id": "e"}, {"unknown": None},
    ],
)  # fmt: skip
def test_a_part_of_a_disaggregated_request_is_refused_with_a_word_on_why(
    given: dict[str, Any],
) -> None:
    """An answer of a server that ignored it would be computed twice, or be of the wrong text."""
    error = refusal_of(kv_transfer_params=given)

    assert (error.code, error.param) == ("unsupported", "kv_transfer_params")
    assert "where a prompt is computed" in error.message


@pytest.mark.parametrize("name", TAKEN)
def test_a_field_without_effect_changes_nothing_and_an_honoured_one_does(name: str) -> None:
    """With a value that is not the default."""
    other = {"skip_special_tokens": False, "detokenize": False, "service_tier": "flex"}
    other |= {"truncation_side": "right", "json_schema": "{}", "add_special_tokens": False}
    least = value_of(name)
    value = other.get(name, True if least is False else least)
    changed = parsed(**{name: value}) != parsed()

    assert changed == (TOP[name].treatment is Treatment.HONOURED)


def test_each_row_has_a_dialect_and_a_reason_that_reads_as_a_part_of_a_sentence() -> None:
    for name, mark in MARKS.items():
        assert mark.dialects, name
        assert mark.reason[-1] not in ".;:", name
        assert mark.reason[0].islower() or mark.reason[0] == "`", name


def test_no_field_is_both_foreign_and_the_servers_own() -> None:
    """A second definition would win, and the table would not be true any more."""
    foreign = set(ForeignFields.__struct_fields__)
    for kind in (NotSupported, GenerationBody, ChatBody, CompletionBody):
        assert not foreign & set(kind.__annotations__), kind


def test_what_the_server_is_said_to_have_itself_it_has() -> None:
    has = {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}
    for names in OWN.values():
        assert set(names) <= has - set(TOP)


def test_every_foreign_field_carries_its_mark() -> None:
    assert set(ForeignFields.__struct_fields__) == set(TOP)


@pytest.mark.parametrize(
    ("sent", "nearest"),
    [("max_token", "max_tokens"), ("temprature", "temperature"), ("lora_paths", "lora_path")],
)
def test_a_misspelt_field_is_a_refusal_that_names_the_nearest(sent: str, nearest: str) -> None:
    error = refusal_of(**{sent: 1})

    assert (error.code, error.param) == ("unknown_field", sent)
    assert f"did you mean {nearest!r}?" in error.message


def test_a_field_like_no_other_is_refused_without_a_guess() -> None:
    assert refusal_of(zzz=1).message == "unknown field 'zzz'"


def test_a_misspelt_field_of_an_object_names_the_nearest_one_there() -> None:
    error = refusal_of(stream=True, stream_options={"include_usages": True})

    assert error.param == "stream_options.include_usages"
    assert "did you mean 'include_usage'?" in error.message


def test_running_usage_is_vllms_and_needs_usage() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    wanted = parsed(stream=True, stream_options=options)
    without = parsed(stream=True, stream_options={"continuous_usage_stats": True})

    assert wanted.compat_options.running_usage
    assert not without.compat_options.running_usage
    assert refusal_of("sglang", stream=True, stream_options=options).code == "unknown_field"


def test_two_keys_of_the_cache_share_only_what_shares_both() -> None:
    salts = [
        parsed(cache_salt="a").cache_salt,
        parsed(extra_key="a").cache_salt,
        parsed(cache_salt="a", extra_key="b").cache_salt,
        parsed(cache_salt="b", extra_key="a").cache_salt,
        parsed(cache_salt="a\0b").cache_salt,
        parsed(cache_salt="ab", extra_key="c").cache_salt,
        parsed(cache_salt="a", extra_key="bc").cache_salt,
        parsed().cache_salt,
    ]

    assert len(set(salts)) == len(salts)
    assert parsed(cache_salt="a", extra_key="b").cache_salt == salts[2]


def test_a_foreign_schema_is_read_by_a_worker_as_any_other() -> None:
    """Schemas are never read on the event loop."""
    for name in ("json_schema", "regex", "ebnf"):
        body = msgspec.json.encode({"prompt": "x", name: "a"})
        assert not IngestPool.reads_in_place(body)


def test_chat_takes_the_same_fields() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "rid": "a.b", "no_stop_trim": True}
    compat_options = parse_chat(msgspec.json.encode(body), SamplingDefaults()).compat_options

    assert (compat_options.answer_id, compat_options.keep_stop) == ("a.b", True)


def test_every_dialect_has_rows_of_each_treatment_that_it_needs() -> None:
    """An empty column of the page would mean that it was not looked at."""
    found: set[tuple[Dialect, Treatment]] = set()
    for mark in MARKS.values():
        assert isinstance(mark, Foreign)
        found |= {(dialect, mark.treatment) for dialect in mark.dialects}

    assert found == {(dialect, treatment) for dialect in Dialect for treatment in Treatment}
