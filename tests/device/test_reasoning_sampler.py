"""The sampler ends a reasoning at its budget, and grammars begin after it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from service.device.sampling.sampler import Sampler
from service.engine.plan import DecodeRow, Reasoning, SamplingParams, SlotStart
from service.text.dummy_tokenizer import dummy_tokenizer
from tests.support.worlds.grammar_world import World, regex, start

VOCAB = 50
BEGIN, END, WORD, STOP = 40, 41, 7, 3


def sampled(
    params: SamplingParams, count: int, *, outputs: Sequence[int] = (),
    drafts: Sequence[int] = (), prefers: int = WORD,
) -> list[int]:  # fmt: skip
    """The tokens of a model that always prefers one."""
    sampler = Sampler(VOCAB)
    sampler.start(SlotStart(0, 0, params, [1], outputs, 0, [STOP]))
    found = list(outputs)
    while len(found) < count:
        guess = drafts[: count - len(found) - 1]
        row = DecodeRow(0, 0, 0, [], len(found), guess)
        logits = torch.zeros(1 + len(guess), VOCAB)
        logits[:, prefers] = 9.0
        found += [one.token_id for one in sampler.sample([row], logits)[0]]
    return found


def thinking(is_open: bool, budget: int | None, temperature: float = 0.0) -> SamplingParams:
    reasoning = Reasoning(BEGIN, END, is_open, budget)
    return SamplingParams(temperature=temperature, seed=5, reasoning=reasoning)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_reasoning_ends_when_its_budget_is_used_up(budget: int, temperature: float) -> None:
    """The end marker comes, likely or not, and once; then the model goes on as it likes."""
    found = sampled(thinking(True, budget, temperature), 6)

    assert found.index(END) == budget
    assert found.count(END) == 1


def test_a_budget_counts_only_what_the_model_has_begun() -> None:
    """A model that does not begin with the marker answers at once."""
    assert sampled(thinking(False, 0), 3) == [WORD] * 3
    assert sampled(thinking(False, 2), 5, prefers=BEGIN) == [BEGIN] * 3 + [END, BEGIN]


def test_without_a_budget_nothing_is_forced() -> None:
    assert sampled(thinking(True, None), 4) == [WORD] * 4


@pytest.mark.parametrize("kept", range(6))
def test_a_preempted_sequence_comes_back_to_where_it_was(kept: int) -> None:
    whole = sampled(thinking(True, 3), 6)

    assert sampled(thinking(True, 3), 6, outputs=whole[:kept]) == whole


@pytest.mark.parametrize("drafts", [[WORD] * 3, [WORD, END], [END] * 2])
def test_drafts_do_not_change_where_a_reasoning_ends(drafts: list[int]) -> None:
    assert sampled(thinking(True, 3), 8, drafts=drafts) == sampled(thinking(True, 3), 8)


def spoken(world: World, is_open: bool, prefers: Sequence[int], count: int) -> list[int]:
    """Greedy tokens under a grammar, from a model that prefers these, the first one most."""
    grammar = regex("no")
    world.compiled(0, grammar)
    begin, end = 300, 301
    reasoning = Reasoning(begin, end, is_open, 2)
    sampler = world.sampler(
        start(0, grammar, ends=[world.end], temperature=0.0, reasoning=reasoning)
    )
    found: list[int] = []
    while len(found) < count:
        logits = torch.zeros(1, world.vocab)
        for rank, token in enumerate(prefers):
            logits[0, token] = 9.0 - rank
        row = DecodeRow(0, 0, 0, [], len(found))
        found.append(sampler.sample([row], logits)[0][0].token_id)
    return found


def test_a_grammar_constrains_the_answer_and_not_the_reasoning() -> None:
    """Within it anything may come but the end of the text, which would leave no answer."""
    world = World(dummy_tokenizer("tiny"))
    x, n, o = b"xno"

    assert spoken(world, True, [world.end, x], 5) == [x, x, 301, n, o]
    assert spoken(world, False, [300, x], 6) == [300, 300, 300, 301, n, o]
    assert spoken(world, False, [x], 2) == [n, o]
