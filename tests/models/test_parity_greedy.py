"""Greedy text equals transformers', however it is batched, chunked or interrupted."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch

from service.config.settings import ModelKind, ModelRef
from service.device.loader import LoadedEngine
from service.engine.plan import SamplingParams
from service.engine.prompt_output import PromptOutput, PromptScores
from service.text.tokenizer import load_tokenizer
from tests.support.models.parity import Engine, Judge, load_ours, load_reference, rounded_to_bf16

pytestmark = pytest.mark.long

LENGTHS = (1, 2, 3, 5, 9, 16, 17, 23, 31, 33, 48, 64, 65, 100, 129, 200)
BUDGET_TOKENS = 64
# as many as a block holds: every text crosses from one block into the next
OUTPUT_TOKENS = 16
LONG_TOKENS = 1000
FORCED_TOKENS = 256
NEAR_TIE = 0.01
# Kept Q8_0 weights are multiplied by rows of 14-bit integers, so scores differ from float32's: by
# 0.001 on average, and by 0.011 at most, in the 730 positions here; 0.00004 with --weights float.
SCORE_ERROR = 0.02
LICENSE = Path(__file__).parents[2] / "LICENSE"


@pytest.fixture(scope="module")
def text_ids(default_model: Path) -> list[int]:
    model = ModelRef(kind=ModelKind.GGUF, path=str(default_model), name="default")
    return load_tokenizer(model).encode(LICENSE.read_text())


@pytest.fixture(scope="module")
def prompts(text_ids: list[int]) -> list[list[int]]:
    """Sixteen windows of a real text, 1 to 200 tokens."""
    return [text_ids[37 * i : 37 * i + length] for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def reference(default_model: Path) -> Any:
    return load_reference(default_model)


@pytest.fixture(scope="module")
def judge(reference: Any) -> Judge:
    return Judge(reference)


@pytest.fixture(scope="module")
def loaded(default_model: Path) -> LoadedEngine:
    return load_ours(default_model, "float32")


def compare(
    judge: Judge,
    prompts: list[list[int]],
    outputs: list[list[int]],
    label: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every token is the one that the reference would have written there, or as good as it."""
    assert [len(ours) for ours in outputs] == [OUTPUT_TOKENS] * len(prompts)
    behind = [judge.behind(prompt, ours) for prompt, ours in zip(prompts, outputs, strict=True)]
    ties = sum(logits > 0 for text in behind for logits in text)
    with capsys.disabled():
        print(f"\n[{label}] {len(prompts) * OUTPUT_TOKENS} tokens compared, {ties} at a near tie")
    different = [index for index, text in enumerate(behind) if max(text) >= NEAR_TIE]
    assert not different, f"{label}: prompts {different} differ from the reference"


@pytest.mark.parametrize(("batch", "chunked"), [(1, False), (12, False), (12, True)])
def test_greedy_output_equals_the_reference(
    loaded: LoadedEngine,
    prompts: list[list[int]],
    judge: Judge,
    batch: int,
    chunked: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Chunked or whole prefill, alone or twelve at a time."""
    engine = Engine(loaded, max_seqs=batch, chunked_prefill=chunked, budget_tokens=BUDGET_TOKENS)
    outputs = engine.greedy(prompts, OUTPUT_TOKENS)

    compare(judge, prompts, outputs, f"batch {batch}, chunked {chunked}", capsys)
    assert engine.largest_batch == batch
    assert (engine.chunks > len(prompts)) == chunked


def test_a_long_prompt_alone_is_read_in_chunks(
    loaded: LoadedEngine, text_ids: list[int], judge: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    """A first chunk, several in the middle, and a last one that is not full."""
    engine = Engine(loaded, max_seqs=1)
    prompts = [text_ids[:LONG_TOKENS]]
    outputs = engine.greedy(prompts, OUTPUT_TOKENS)

    compare(judge, prompts, outputs, f"{engine.chunks} chunks", capsys)
    assert engine.chunks == 1 + LONG_TOKENS // engine.limits.budget_tokens


def test_greedy_output_survives_preemption(
    loaded: LoadedEngine, prompts: list[list[int]], judge: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a pool for little more than one sequence, others are thrown out and recomputed."""
    engine = Engine(loaded, blocks_total=15, max_model_tokens=224)
    outputs = engine.greedy(prompts, OUTPUT_TOKENS)

    assert engine.preemptions > 0
    compare(judge, prompts, outputs, f"{engine.preemptions} preemptions", capsys)


def test_the_overlapped_loop_gives_the_same_text(
    default_model: Path,
    prompts: list[list[int]],
    judge: Judge,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Depth 2: a step is launched before the tokens of the last one are read."""
    loaded = load_ours(default_model, "float32", pipeline_depth=2)
    engine = Engine(loaded, depth=2, max_seqs=8)
    outputs = engine.greedy(prompts[:14], OUTPUT_TOKENS)
    loaded.executor.close()

    compare(judge, prompts[:14], outputs, "depth 2", capsys)


def teacher_forced_tokens(engine_path: Path, ids: list[int], dtype: str) -> list[int]:
    """Our argmax at every position of a text."""
    from service.device.inputs import SequenceSpan, StepInputs

    loaded = load_ours(engine_path, dtype)
    executor = loaded.executor
    everything = torch.arange(len(ids))
    inputs = StepInputs(
        token_ids=torch.tensor(ids),
        positions=everything,
        slot_mapping=everything,
        sampled=everything,
        decodes=(),
        prefills=(SequenceSpan(0, len(ids), 0, tuple(range(-(-len(ids) // 16)))),),
    )
    logits = executor._decoder.forward(inputs, executor._cache)
    return logits.argmax(dim=-1).tolist()


def test_bf16_agrees_with_float32_as_well_as_the_reference_does(
    default_model: Path, text_ids: list[int], reference: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Teacher-forced top-1 agreement with transformers' float32, ours against theirs."""
    ids = text_ids[:FORCED_TOKENS]
    with torch.inference_mode():
        truth = reference(torch.tensor([ids])).logits[0].argmax(dim=-1)
        rounded = rounded_to_bf16(reference)(torch.tensor([ids])).logits[0]
    theirs = (rounded.argmax(dim=-1) == truth).float().mean().item()
    ours_tokens = torch.tensor(teacher_forced_tokens(default_model, ids, "bfloat16"))
    ours = (ours_tokens == truth).float().mean().item()

    with capsys.disabled():
        print(f"\n[bf16] top-1 agreement with float32: ours {ours:.4f}, theirs {theirs:.4f}")
    assert ours >= theirs - 0.01


def test_scores_of_prompts_are_the_log_softmax_of_the_reference(
    loaded: LoadedEngine, prompts: list[list[int]], reference: Any
) -> None:
    """In chunks, with preemptions in between; each prompt token but the first, once."""
    engine = Engine(loaded, blocks_total=15, max_model_tokens=224, budget_tokens=BUDGET_TOKENS)
    engine.generate(
        prompts, OUTPUT_TOKENS, SamplingParams(temperature=0.0), PromptOutput(logprobs=1)
    )

    assert engine.preemptions > 0
    for prompt, found in zip(prompts, engine.read, strict=True):
        ours, likeliest = array("f"), array("f")
        for piece in found:
            assert isinstance(piece, PromptScores)
            ours.frombytes(piece.logprobs)
            likeliest.frombytes(piece.top_logprobs)
        with torch.inference_mode():
            logits = reference(input_ids=torch.tensor([prompt])).logits[0, :-1]
        wanted = torch.log_softmax(logits, dim=-1)
        own = wanted[torch.arange(len(prompt) - 1), torch.tensor(prompt[1:], dtype=torch.int64)]
        assert list(ours) == pytest.approx(own.tolist(), abs=SCORE_ERROR)
        assert list(likeliest) == pytest.approx(wanted.amax(dim=-1).tolist(), abs=SCORE_ERROR)
