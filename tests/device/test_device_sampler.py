"""The sampler against plain arithmetic, and its independence of batch and history."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.device.sampling.draw import draw, draw_rows
from service.device.sampling.draw_on_device import draw_on_device
from service.device.sampling.sampler import Sampler, uniform
from service.engine.plan import DecodeRow, SamplingParams, SlotStart

VOCAB = 50


def row(slot: int, index: int = 0) -> DecodeRow:
    return DecodeRow(seq_id=slot, slot=slot, start=0, blocks=[], output_index=index)


def started(
    *params: SamplingParams, prompt: tuple[int, ...] = (), outputs: tuple[int, ...] = (),
    min_tokens: int = 0, ends: tuple[int, ...] = (),
) -> Sampler:  # fmt: skip
    sampler = Sampler(VOCAB)
    for slot, one in enumerate(params):
        sampler.start(SlotStart(slot, slot, one, prompt, outputs, min_tokens, ends))
    return sampler


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, **fields)


def chosen(sampler: Sampler, values: torch.Tensor, index: int = 0) -> int:
    return sampler.sample([row(0, index)], values[None])[0][0].token_id


def test_greedy_takes_the_largest_logit() -> None:
    """Temperature 0 is argmax."""
    assert chosen(started(greedy()), logits()) == int(logits().argmax())


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_p": 0.6}, [0, 1]),
        ({"min_p": 0.5}, [0, 1]),
        ({"top_k": 4, "top_p": 0.75}, [0, 1, 2]),
        ({"top_p": 0.0001}, [0]),
    ],
)
def test_filters_leave_exactly_the_tokens_they_should(
    fields: dict[str, Any], allowed: list[int]
) -> None:
    """Known probabilities 0.4, 0.3, 0.15, 0.1, 0.05: every allowed token comes, no other."""
    values = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]).log()
    params = SamplingParams(temperature=1.0, **fields)
    seen = {draw(values, params, uniform(7, index)) for index in range(400)}

    assert sorted(seen) == allowed


def test_frequencies_follow_the_distribution() -> None:
    """20,000 draws of one seed lie within four standard deviations of the truth."""
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    params = SamplingParams(temperature=1.0)
    draws = 20_000
    counts = Counter(
        draw(probabilities.log(), params, uniform(123, index)) for index in range(draws)
    )

    for token, p in enumerate(probabilities.tolist()):
        deviation = (draws * p * (1 - p)) ** 0.5
        assert abs(counts[token] - draws * p) < 4 * deviation


def test_temperature_sharpens() -> None:
    """A low temperature draws the best token nearly always, a high one does not."""
    values = torch.tensor([1.0, 0.5, 0.0])

    def share(temperature: float) -> float:
        params = SamplingParams(temperature=temperature)
        return sum(draw(values, params, uniform(1, i)) == 0 for i in range(500)) / 500

    assert share(0.05) > 0.99
    assert share(2.0) < 0.6


def test_a_draw_does_not_depend_on_the_batch() -> None:
    """The same request alone, or in any row of a mixed batch, draws the same token."""
    params = SamplingParams(temperature=1.0, seed=42, top_p=0.9)
    alone = [chosen(started(params), logits(5), index) for index in range(10)]
    other = SamplingParams(temperature=0.7, seed=1, top_k=5)
    sampler = started(other, greedy(), params)
    batch = torch.stack([logits(8), logits(9), logits(5)])
    together = [
        sampler.sample([row(0, i), row(1, i), row(2, i)], batch)[2][0].token_id for i in range(10)
    ]

    assert alone == together
    assert len(set(alone)) > 1


def test_repetition_penalty_is_that_of_hugging_face() -> None:
    """Prompt and outputs: positive logits are divided, negative multiplied."""
    from transformers import RepetitionPenaltyLogitsProcessor

    values = logits(3)
    prompt, outputs = (4, 9, 9), (int(values.argmax()), 2)
    ids = torch.tensor([[*prompt, *outputs]])
    expected = RepetitionPenaltyLogitsProcessor(1.7)(ids, values[None].clone())[0]
    sampler = started(greedy(repetition_penalty=1.7), prompt=prompt, outputs=outputs)

    altered = values.clone()
    sampler._alter(altered, sampler._slots[0], 2)
    torch.testing.assert_close(altered, expected)


def test_presence_and_frequency_count_outputs_only() -> None:
    """A token of the prompt is free; each output of a token costs its frequency."""
    values = torch.zeros(VOCAB)
    fields = {"presence_penalty": 0.5, "frequency_penalty": 0.25}
    sampler = started(greedy(**fields), prompt=(1, 1, 1), outputs=(2, 2, 3))
    altered = values.clone()
    sampler._alter(altered, sampler._slots[0], 3)

    assert altered[1] == 0
    assert altered[2].item() == pytest.approx(-1.0)
    assert altered[3].item() == pytest.approx(-0.75)


def test_sampled_tokens_are_counted_as_they_come() -> None:
    """A strong presence penalty makes greedy walk through distinct tokens."""
    sampler = started(greedy(presence_penalty=2.0))
    values = torch.linspace(1.0, 0.0, VOCAB)
    tokens = [chosen(sampler, values, index) for index in range(5)]

    assert tokens == [0, 1, 2, 3, 4]


def test_min_tokens_holds_the_end_tokens_off() -> None:
    """Until enough outputs exist an end token cannot be drawn, however likely."""
    values = torch.zeros(VOCAB)
    values[7] = 10.0
    sampler = started(greedy(), min_tokens=2, ends=(7,))

    assert [chosen(sampler, values, index) == 7 for index in range(3)] == [False, False, True]


def test_logit_bias_moves_the_choice() -> None:
    """The bias is added before anything else."""
    assert chosen(started(greedy(logit_bias={11: 100.0})), logits()) == 11


def test_logprobs_are_of_the_raw_distribution() -> None:
    """Penalties and temperature do not change what is reported."""
    values = logits(6)
    sampler = started(SamplingParams(temperature=0.5, logprobs=2, logit_bias={3: 50.0}))
    ((sample,),) = sampler.sample([row(0)], values[None])
    truth = torch.log_softmax(values, dim=-1)

    assert sample.token_id == 3
    assert sample.logprob == pytest.approx(truth[3].item(), abs=1e-5)
    assert sample.top is not None
    assert [top.token_id for top in sample.top] == truth.topk(2).indices.tolist()


def test_each_row_of_many_has_the_logprobs_that_it_asked_for() -> None:
    """As many as it wants, and those that it would have alone, though they are taken together."""
    wanted = [None, 0, 5, 1, *[2] * 40, None, 3]
    params = [greedy(logprobs=count) for count in wanted]
    batch = torch.stack([logits(seed) for seed in range(len(params))])
    together = started(*params).sample([row(slot) for slot in range(len(params))], batch)

    for count, one, values, (sample,) in zip(wanted, params, batch, together, strict=True):
        ((alone,),) = started(one).sample([row(0)], values[None])
        assert sample == alone
        assert (None if sample.top is None else len(sample.top)) == count


def test_uniform_numbers_lie_in_the_unit_interval_and_differ() -> None:
    """Neighbouring seeds and indices give unrelated numbers."""
    numbers = [uniform(seed, index) for seed in (-5, 0, 1, 1 << 62) for index in range(500)]

    assert all(0.0 <= number < 1.0 for number in numbers)
    assert len(set(numbers)) == len(numbers)
    assert 0.45 < sum(numbers) / len(numbers) < 0.55


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("drafts", [(), (3,), (3, 1, 4), "right", "half"])
def test_drafts_change_how_many_tokens_a_step_gives_but_never_which(
    temperature: float, drafts: tuple[int, ...] | str
) -> None:
    """Penalties and seeds included: the samples are those of one step after another."""
    values = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(5))
    params = SamplingParams(temperature=temperature, seed=7, frequency_penalty=0.4)
    plain = started(params)
    truth = [plain.sample([row(0, i)], values[i : i + 1])[0][0].token_id for i in range(6)]
    if drafts == "right":
        drafts = tuple(truth[:5])
    elif drafts == "half":
        drafts = (*truth[:2], (truth[2] + 1) % VOCAB, *truth[3:5])
    assert not isinstance(drafts, str)

    guess = DecodeRow(0, 0, 0, (0,), 0, drafts)
    (samples,) = started(params).sample([guess], values[: 1 + len(drafts)])

    right = next((i for i, d in enumerate(drafts) if d != truth[i]), len(drafts))
    assert [sample.token_id for sample in samples] == truth[: right + 1]


def full_sort_draw(logits: torch.Tensor, params: SamplingParams, chance: float) -> int:
    """The definition of a draw, with the whole vocabulary sorted."""
    kept, ids = (
        (logits.double() / params.temperature).softmax(-1).sort(descending=True, stable=True)
    )
    if params.top_k:
        kept = kept[: params.top_k]
    if params.min_p > 0.0:
        kept = kept[kept >= params.min_p * kept[0]]
    if params.top_p < 1.0:
        kept = kept / kept.sum()
        kept = kept[kept.cumsum(-1) - kept < params.top_p]
    sums = kept.cumsum(-1)
    return int(ids[min(int((sums <= chance * sums[-1]).sum()), len(kept) - 1)])


@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0], ids=lambda spread: f"spread {spread}")
@pytest.mark.parametrize(
    "filters",
    [
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_p": 0.3, "min_p": 0.02},
        {"min_p": 0.1},
        {"top_k": 40},
        {"top_k": 40, "top_p": 0.8},
        {"top_k": 300, "top_p": 0.95, "min_p": 0.01},
    ],
    ids=str,
)
def test_a_draw_that_sorts_little_equals_one_that_sorts_everything(
    filters: dict[str, float], spread: float
) -> None:
    """Flat and steep distributions, with and without equals, alone and in a batch."""
    generator = torch.Generator().manual_seed(int(10 * spread) + len(filters))
    logits = torch.randn(6, 1500, generator=generator) * spread
    logits[3] = logits[3].round()  # many equals
    params = [SamplingParams(temperature=0.2 + 0.3 * row, **filters) for row in range(6)]  # type: ignore[arg-type]
    if "top_k" in filters:
        logits[3] += torch.arange(1500) * 1e-3  # which equals are among the top k is open
        logits = logits + torch.randn(6, 1500, generator=generator) * 1e-2
    for index in range(3):
        chances = [uniform(row, index) for row in range(6)]
        expected = [full_sort_draw(*one) for one in zip(logits, params, chances, strict=True)]
        assert draw_rows(logits, params, chances) == expected
        assert [draw(*one) for one in zip(logits, params, chances, strict=True)] == expected


TINY = 5e-324


@settings(max_examples=300, deadline=None)
@example(SamplingParams(temperature=1.0, repetition_penalty=TINY, top_p=TINY), 0)
@example(SamplingParams(temperature=1e-5, repetition_penalty=1e-30, top_p=0.5, min_p=1.0), 1)
@given(
    st.builds(
        SamplingParams,
        temperature=st.floats(0, 2),
        top_k=st.integers(0, VOCAB + 5),
        top_p=st.floats(0, 1, exclude_min=True),
        min_p=st.floats(0, 1),
        repetition_penalty=st.floats(0, 2, exclude_min=True),
        presence_penalty=st.floats(-2, 2),
        frequency_penalty=st.floats(-2, 2),
        seed=st.integers(-(1 << 63), (1 << 63) - 1),
        logprobs=st.none() | st.integers(0, 20),
        logit_bias=st.none() | st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100)),
    ),
    st.integers(0, 5),
)
def test_any_sampling_parameters_give_a_token(params: SamplingParams, weather: int) -> None:
    """A row that cannot be drawn would fail the step of everybody."""
    values = logits(weather)
    sampler = started(params, prompt=(1, 2, 3), outputs=(4, 4, 5), min_tokens=9, ends=(6, 7))
    token = chosen(sampler, values, 3)
    plain = started(params).draws([row(0)])

    assert 0 <= token < VOCAB
    assert token not in (6, 7)
    if plain is not None:
        assert 0 <= int(draw_on_device(values[None], plain.numbers, plain.most_k)) < VOCAB
