"""Grammars on real vocabularies: what comes out always validates, and nothing gets stuck."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.device.sampling.grammar import MaskRows, bit, end_tokens_only
from service.engine.plan import Grammar, GrammarKind
from service.text.dummy_tokenizer import dummy_tokenizer
from service.text.gguf_tokenizer import gguf_tokenizer
from tests.support.worlds.grammar_world import JSON_OBJECT, World, regex, row, schema, start

# all of bounded length, so that any draw of tokens comes to an end
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
     "additionalProperties": False},
    {"enum": ["red", "green", 7, None, {"x": [1, 2]}]},
    {"const": "ünï — 漢字 \n \" \\"},
    {"type": "integer", "minimum": -20, "maximum": 1000},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 9, "multipleOf": 0.5},
    {"type": "string", "maxLength": 6},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"type": "string", "format": "date"},
    {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False,
     "minItems": 2},
    {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 3, "minLength": 2}]},
    {"type": "object", "$defs": {"leaf": {"type": "object", "properties": {
        "v": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["v"],
        "additionalProperties": False}},
     "properties": {"l": {"$ref": "#/$defs/leaf"}, "r": {"$ref": "#/$defs/leaf"}},
     "required": ["l"], "additionalProperties": False},
]  # fmt: skip
REGEXES = [r"[0-9]{3}-[0-9]{4}", r"(yes|no|maybe)", r"[a-f]{1,5}!", r"\d{1,3}(\.\d{1,3}){3}"]


@pytest.fixture(scope="module")
def real(default_model: Path) -> Iterator[World]:
    world = World(gguf_tokenizer(default_model))
    yield world
    world.compiler.close()


@pytest.fixture(scope="module")
def dummy() -> Iterator[World]:
    world = World(dummy_tokenizer("tiny"))
    yield world
    world.compiler.close()


@pytest.mark.parametrize("vocabulary", ["real", "dummy"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.sampled_from(SCHEMAS), seed=st.integers(0, 1 << 30), greedy=st.booleans())
def test_random_logits_under_a_schema_give_text_that_validates(
    request: pytest.FixtureRequest, vocabulary: str, which: dict[str, Any], seed: int, greedy: bool
) -> None:
    world: World = request.getfixturevalue(vocabulary)
    text = world.text_of(schema(which), seed, seed=seed, temperature=0.0 if greedy else 1.0)

    assert text is not None, "a bounded schema came to no end"
    jsonschema.validate(json.loads(text), which)


@pytest.mark.parametrize("vocabulary", ["real", "dummy"])
@pytest.mark.parametrize("pattern", REGEXES)
def test_random_logits_under_a_regex_give_text_that_matches_it_whole(
    request: pytest.FixtureRequest, vocabulary: str, pattern: str
) -> None:
    world: World = request.getfixturevalue(vocabulary)
    for seed in range(5):
        text = world.text_of(regex(pattern), seed, seed=seed)
        assert text is not None
        assert re.fullmatch(pattern, text, re.ASCII)


def test_any_object_that_ends_is_a_json_object(real: World) -> None:
    texts = [real.text_of(JSON_OBJECT, seed, seed=seed) for seed in range(3)]
    ended = [text for text in texts if text is not None]

    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)


@pytest.mark.parametrize(
    "source", ['root ::= [a-c]+ " " ("x" | "y")', 'start: /[a-c]+/ " " ("x" | "y")']
)
def test_both_notations_of_grammars_are_followed(dummy: World, source: str) -> None:
    world_text = dummy.text_of(Grammar(GrammarKind.EBNF, source), 3, seed=3)

    assert world_text is not None
    assert re.fullmatch(r"[a-c]+ [xy]", world_text)


def test_a_complete_text_is_followed_by_an_end_token_only(real: World) -> None:
    matcher = real.compiler.matcher(regex("yes"))
    matcher.replay(real.tokenizer.encode("yes"))

    assert matcher.is_finished
    assert matcher.is_complete
    allowed = [i for i in range(real.vocab) if bit(real.mask(matcher), i)]
    assert sorted(real.tokenizer.eos_token_ids) == allowed


def test_a_forced_text_is_spelt_as_the_model_would_spell_it(real: World) -> None:
    text = '{"temperature":true}'
    wanted = {"type": "object", "properties": {"temperature": {"const": True}},
              "required": ["temperature"], "additionalProperties": False}  # fmt: skip
    matcher = real.compiler.matcher(schema(wanted))
    tokens = real.tokenizer.encode(text)

    assert matcher.allows([*tokens, real.end]) == len(tokens) + 1


def test_replay_after_a_preemption_gives_the_same_mask(real: World) -> None:
    grammar = schema(SCHEMAS[-1])
    steady = real.compiler.matcher(grammar)
    outputs: list[int] = []
    for token in real.tokenizer.encode('{"l": {"v": 4}, "r": {"v": 0}}'):
        again = real.compiler.matcher(grammar)
        again.replay(outputs)
        assert (real.mask(again) == real.mask(steady)).all()
        assert steady.accept(token)
        outputs.append(token)

    assert steady.is_complete


def test_a_preempted_sequence_draws_the_same_tokens(real: World) -> None:
    grammar = schema(SCHEMAS[5])
    source = torch.Generator().manual_seed(1)
    logits = [torch.randn(1, real.vocab, generator=source) for _ in range(6)]
    steady = real.sampler(start(0, grammar, seed=9))
    tokens = [steady.sample([row(0, i)], values)[0][0].token_id for i, values in enumerate(logits)]

    resumed = real.sampler(start(0, grammar, seed=9, outputs=tokens[:3]))
    rest = [resumed.sample([row(0, i)], logits[i])[0][0].token_id for i in range(3, 6)]
    assert tokens[3:] == rest


def test_a_draft_is_allowed_as_far_as_the_grammar_goes(real: World) -> None:
    matcher = real.compiler.matcher(regex("[0-9]{3}"))
    digits = real.tokenizer.encode("123")
    letter = real.tokenizer.encode("a")
    before = real.mask(matcher).copy()

    assert matcher.allows([*digits, real.end]) == 4
    assert matcher.allows([*digits, *digits]) == 3
    assert matcher.allows([digits[0], *letter, digits[0]]) == 1
    assert matcher.allows([real.end]) == 0
    assert matcher.allows([real.vocab - 1]) == 0
    assert (real.mask(matcher) == before).all()


def test_a_token_that_was_not_allowed_leaves_only_the_end(real: World) -> None:
    matcher = real.compiler.matcher(regex("[0-9]+"))
    assert not matcher.accept(real.tokenizer.encode("a")[0])

    assert matcher.is_dead
    ends = end_tokens_only(real.tokenizer.eos_token_ids, real.vocab)
    assert (real.mask(matcher) == ends).all()
    sampler = real.sampler(start(0, regex("[0-9]+"), outputs=real.tokenizer.encode("a")))
    assert sampler.sample([row(0)], torch.zeros(1, real.vocab))[0][0].token_id in (0, 2)


def test_a_refused_grammar_leaves_only_the_end(real: World) -> None:
    matcher = real.compiler.matcher(regex("(a"))

    ends = end_tokens_only(real.tokenizer.eos_token_ids, real.vocab)
    assert (real.mask(matcher) == ends).all()


def test_a_constrained_row_does_not_touch_its_neighbours(real: World) -> None:
    source = torch.Generator().manual_seed(4)
    logits = torch.randn(4, real.vocab, generator=source)
    free = [start(0, None, seed=1), start(2, None, seed=3, temperature=0.0, logprobs=2)]
    bound = [start(1, regex("[0-9]+"), seed=2), start(3, JSON_OBJECT, seed=4, logprobs=0)]
    rows = [row(0), row(1), row(2), row(3)]
    untouched = logits.clone()
    sampler = real.sampler(*free, *bound)
    mixed = sampler.sample(rows, logits)
    plain = real.sampler(*free)

    assert plain.sample([rows[0], rows[2]], logits[[0, 2]]) == (mixed[0], mixed[2])
    assert real.tokenizer.token_bytes(mixed[1][0].token_id).isdigit()
    assert torch.equal(logits, untouched)
    assert (sampler.last_masked_rows, plain.last_masked_rows) == (2, 0)
    assert sampler.last_mask_ns > 0
    assert plain.last_mask_ns == 0
    raw = torch.log_softmax(logits[3], dim=-1)[mixed[3][0].token_id].item()
    assert mixed[3][0].logprob == pytest.approx(raw, abs=1e-5)


def test_min_tokens_gives_way_to_a_grammar_that_is_complete(real: World) -> None:
    ends = real.tokenizer.eos_token_ids
    yes = real.tokenizer.encode("yes")
    done = start(0, regex("yes"), outputs=yes, min_tokens=10, ends=ends)
    open_ended = start(1, regex("yes[a-z]*"), outputs=yes, min_tokens=10, ends=ends)
    logits = torch.zeros(2, real.vocab)
    logits[:, real.end] = 50.0
    drawn = real.sampler(done, open_ended).sample([row(0, 1), row(1, 1)], logits)

    assert drawn[0][0].token_id in ends
    assert drawn[1][0].token_id not in ends


def test_no_padding_and_no_special_token_is_ever_allowed(real: World) -> None:
    row = real.mask(real.compiler.matcher(regex("(.|\n)*")))
    special = [i for i in real.tokenizer.special_ids if i not in real.tokenizer.eos_token_ids]

    assert not any(bit(row, i) for i in special)
    assert not any(bit(row, i) for i in range(real.tokenizer.vocab_size, real.vocab))


def test_masks_unpack_to_the_bits_that_were_set() -> None:
    masks = MaskRows(70)
    rows = np.stack([end_tokens_only([0, 31, 69], 70), end_tokens_only([32, 64], 70)])
    forbidden = masks.forbidden(rows, torch.device("cpu"))

    assert [(~r).nonzero().flatten().tolist() for r in forbidden] == [[0, 31, 69], [32, 64]]
