"""The draw that a device does by itself chooses what the host would have chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.device.sampling.draw import draw_rows
from service.device.sampling.draw_on_device import draw_on_device, draws_of
from service.engine.plan import SamplingParams

some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.2, 1.0, 3.0]),
    top_k=st.sampled_from([0, 0, 1, 5, 40]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.6]),
)
chances = st.floats(0, 1, exclude_max=True)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(some_params, chances), min_size=1, max_size=6),
    st.integers(0, 2**31), st.sampled_from([3, 50, 700]), st.booleans(),
)  # fmt: skip
def test_every_row_gets_the_hosts_token(
    rows: list[tuple[SamplingParams, float]], seed: int, vocab: int, ties: bool
) -> None:
    """Whatever its filters are and the other rows'; equals come in the order of their ids."""
    logits = 3 * torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(seed))
    if ties and not any(params.top_k for params, _ in rows):  # which of equals top-k takes is open
        logits = logits.round()
    params, draws = [one for one, _ in rows], [chance for _, chance in rows]
    greedy = [one.temperature == 0.0 for one in params]
    asked = draws_of(params, draws, greedy)
    found = draw_on_device(logits, asked.numbers, asked.most_k).tolist()

    for index, (one, chance) in enumerate(rows):
        if greedy[index]:
            assert found[index] == int(logits[index].argmax())
        else:
            assert found[index] == draw_rows(logits[index : index + 1], [one], [chance])[0]


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "fields",
    [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1}],
    ids=str,
)
def test_a_row_without_a_distribution_gets_its_likeliest_token_and_spares_the_others(
    fields: dict[str, Any], spoilt: float
) -> None:
    """A token below 0 would end the process on a GPU, and no token at all everybody's step."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(7))
    logits[1, 20] = spoilt
    params = [SamplingParams(temperature=1.0, **fields)] * 3
    chances = [0.3, 0.6, 0.9]
    alone = [draw_rows(logits[row : row + 1], params[:1], [chances[row]])[0] for row in (0, 2)]
    asked = draws_of(params, chances, [False] * 3)

    assert draw_rows(logits, params, chances) == [alone[0], 20, alone[1]]
    found = draw_on_device(logits, asked.numbers, asked.most_k).tolist()
    assert found == [alone[0], 20, alone[1]]


def test_only_the_needed_part_of_the_logits_is_sorted() -> None:
    hot, k, nucleus = (
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_k=7),
        SamplingParams(temperature=1.0, top_p=0.9),
    )
    assert draws_of([hot], [0.5], [False]).most_k == 0
    assert draws_of([hot, k], [0.5, 0.5], [False, False]).most_k == 7
    assert draws_of([k, nucleus], [0.5, 0.5], [False, False]).most_k is None
    assert draws_of([nucleus], [0.5], [True]).most_k == 0
