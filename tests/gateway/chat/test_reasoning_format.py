"""Which markers a model has, and what the beginning of an answer says about its reasoning."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from service.config.model_ref import ReasoningName
from service.config.settings import ConfigError
from service.engine.plan import Reasoning
from service.gateway.generation.reasoning_text import ReasoningText
from service.text.dummy_tokenizer import dummy_tokenizer
from service.text.hf_tokenizer import hf_tokenizer
from service.text.reasoning import (
    AUTO,
    FORMATS,
    OFF,
    ReasoningFormat,
    ReasoningState,
    reasoning_format,
)
from service.text.tokenizer import Tokenizer
from tests.support.models.scripted_model import scripted_folder

THINK = ReasoningFormat("think", "<think>", "</think>", 1, 2)


def model(folder: Path, words: list[str], template: str) -> Tokenizer:
    return hf_tokenizer(scripted_folder(folder, dict.fromkeys(words, "x"), template))


def test_every_name_of_the_flag_is_a_format() -> None:
    assert set(get_args(ReasoningName)) == {AUTO, OFF, *FORMATS}


@pytest.mark.parametrize("name", FORMATS)
def test_the_markers_are_found_where_vocabulary_and_template_have_them(
    tmp_path: Path, name: str
) -> None:
    begin, end = FORMATS[name]
    tokenizer = model(tmp_path, [begin, end], f"{{{{ '{begin}{end}' }}}}")
    found = reasoning_format(tokenizer, AUTO)

    assert found is not None
    assert (found.name, tokenizer.token_text(found.begin_id)) == (name, begin)
    assert tokenizer.token_text(found.end_id) == end
    assert reasoning_format(tokenizer, OFF) is None


def test_markers_that_the_template_does_not_know_are_taken_only_if_they_are_named(
    tmp_path: Path,
) -> None:
    """Some vocabularies have tokens that their model does not use."""
    tokenizer = model(tmp_path, ["<think>", "</think>"], "{{ messages }}")

    assert reasoning_format(tokenizer, AUTO) is None
    assert reasoning_format(tokenizer, "think") is not None


def test_a_format_without_tokens_for_its_markers_is_refused_at_the_start(tmp_path: Path) -> None:
    tokenizer = model(tmp_path, ["<think>"], "{{ '<think></think>' }}")

    assert reasoning_format(tokenizer, AUTO) is None
    with pytest.raises(ConfigError, match=r"<think> and </think> are not tokens of this model"):
        reasoning_format(tokenizer, "think")


@pytest.mark.parametrize(
    ("tail", "state"),
    [
        ("", ReasoningState.POSSIBLE),
        ("<|assistant|>\n", ReasoningState.POSSIBLE),
        ("<|assistant|>\n<think>\n", ReasoningState.OPEN),
        ("<think>\n\n</think>\n\n", ReasoningState.NONE),
        ("</think>", ReasoningState.NONE),
        ("<think>a</think>b<think>", ReasoningState.OPEN),
    ],
)
def test_the_last_marker_of_the_beginning_of_an_answer_counts(
    tail: str, state: ReasoningState
) -> None:
    assert THINK.state_after(tail) is state


def test_white_space_within_the_reasoning_comes_with_what_follows_it() -> None:
    """And that around it does not come."""
    tokenizer = dummy_tokenizer("tiny")
    reasoning = ReasoningText(Reasoning(300, 301, is_open=True), tokenizer)
    pieces: list[str] = []
    for token_id in [*tokenizer.encode("\n a \n\n b \n"), 301]:
        assert not reasoning.accept(token_id)
        pieces.append(reasoning.take())

    assert [piece for piece in pieces if piece] == ["a", " \n\n b"]
