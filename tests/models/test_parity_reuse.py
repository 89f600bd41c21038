"""Prefix reuse, host tier and drafts on the real model: the texts stay what they are.

Reused keys and values are the very numbers that were computed before, but the same prompt
in other pieces rounds differently in the last bits; so texts are compared in float32 up to
the first place where the plain run itself is nearly undecided.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from service.device.loader import LoadedEngine
from service.engine.plan import SamplingParams
from service.model_files.model_store import resolve_model
from service.text.tokenizer import load_tokenizer
from tests.support.models.parity import Engine, load_ours

REPEATING = "red, green, blue, red, green, blue, red, green, blue, red, green,"


@pytest.fixture(scope="module")
def loaded(default_model: Path) -> LoadedEngine:
    return load_ours(default_model, "float32", kv_offload_bytes=64 << 20)


def encode(text: str) -> list[int]:
    return load_tokenizer(resolve_model(None, lambda line: None)).encode(text)


def test_a_reused_prefix_gives_the_text_that_a_computed_one_gives(loaded: LoadedEngine) -> None:
    system = encode("You are a careful assistant. Answer in one short sentence. " * 8)
    questions = [encode(text) for text in ("Where is Rome?", "What is snow?", "Who was Homer?")]
    prompts = [system + question for question in questions]
    plain = [Engine(loaded, prefix_cache=False).greedy([prompt], 12)[0] for prompt in prompts]

    engine = Engine(loaded)
    reused = [engine.greedy([prompt], 12)[0] for prompt in prompts]

    shared = len(system) // 16 * 16
    assert engine.hit_tokens == 2 * shared
    assert reused == plain


def test_blocks_that_came_back_from_host_memory_give_the_same_text(loaded: LoadedEngine) -> None:
    prompt = encode("The lighthouse keeper wrote down the weather every morning. " * 6)
    filler = [[1000 + seed * 7 + i for i in range(400)] for seed in range(2)]
    plain = Engine(loaded, prefix_cache=False).greedy([prompt], 10)[0]

    engine = Engine(loaded, blocks_total=32, max_model_tokens=512, max_seqs=4, host_slots=64)
    first = engine.greedy([prompt], 10)[0]
    for tokens in filler:
        engine.greedy([tokens], 2)
    again = engine.greedy([prompt], 10)[0]

    assert engine.host_tokens > 0
    assert first == again == plain


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_speed_a_repeating_text_up_and_leave_it_as_it_was(
    loaded: LoadedEngine, temperature: float
) -> None:
    """Greedy, and sampled with a seed: the draw depends on seed and place alone."""
    sampling = SamplingParams(temperature=temperature, seed=11, top_p=0.9)
    prompt = encode(REPEATING)
    plain = Engine(loaded, prefix_cache=False).generate([prompt], 40, sampling)[0]

    engine = Engine(loaded, prefix_cache=False, draft_tokens=4)
    drafted = engine.generate([prompt], 40, sampling)[0]

    assert engine.accepted > 3
    assert drafted == plain
