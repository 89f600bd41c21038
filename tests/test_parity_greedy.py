"""Greedy text equals transformers', however it is batched, chunked or interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from parity import Engine, Reference, compare_texts, load_ours, load_reference, reference_greedy

from service.config import ModelKind, ModelRef
from service.device.loader import LoadedEngine
from service.text.tokenizer import load_tokenizer

LENGTHS = (1, 2, 3, 5, 9, 16, 17, 31, 33, 48, 64, 100, 129, 200, 257, 333, 500, 700, 1000, 1500)
OUTPUT_TOKENS = 20
NEAR_TIE = 0.01
LICENSE = Path(__file__).parent.parent / "LICENSE"


@pytest.fixture(scope="module")
def text_ids(default_model: Path) -> list[int]:
    model = ModelRef(kind=ModelKind.GGUF, path=str(default_model), name="default")
    return load_tokenizer(model).encode(LICENSE.read_text())


@pytest.fixture(scope="module")
def prompts(text_ids: list[int]) -> list[list[int]]:
    """Twenty windows of a real text, 1 to 1,500 tokens."""
    return [text_ids[37 * i : 37 * i + length] for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def references(default_model: Path, prompts: list[list[int]]) -> list[Reference]:
    model = load_reference(default_model, torch.float32)
    return [reference_greedy(model, prompt, OUTPUT_TOKENS) for prompt in prompts]


@pytest.fixture(scope="module")
def loaded(default_model: Path) -> LoadedEngine:
    return load_ours(default_model, "float32")


def compare(
    outputs: list[list[int]],
    references: list[Reference],
    label: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Token for token up to the first near tie of the reference; what was compared is shown."""
    pairs = zip(outputs, references, strict=True)
    results = [compare_texts(ours, reference, NEAR_TIE) for ours, reference in pairs]
    compared = sum(result.compared for result in results)
    ties = sum(result.near_tie for result in results)
    total = sum(len(ours) for ours in outputs)
    with capsys.disabled():
        print(f"\n[{label}] {compared} of {total} tokens compared, {ties} texts cut at a near tie")
    different = [index for index, result in enumerate(results) if not result.equal]
    assert not different, f"{label}: prompts {different} differ from the reference"
    assert compared >= total // 2, "too little was compared"


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("batch", [1, 16])
def test_greedy_output_equals_the_reference(
    loaded: LoadedEngine,
    prompts: list[list[int]],
    references: list[Reference],
    chunked: bool,
    batch: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Chunked or whole prefill, alone or sixteen at a time."""
    engine = Engine(loaded, max_seqs=batch, chunked_prefill=chunked)
    outputs = engine.greedy(prompts, OUTPUT_TOKENS)

    compare(outputs, references, f"batch {batch}, chunked {chunked}", capsys)
    assert engine.largest_batch == batch
    assert (engine.chunks > len(prompts)) == chunked


def test_greedy_output_survives_preemption(
    loaded: LoadedEngine,
    prompts: list[list[int]],
    references: list[Reference],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a pool for little more than one sequence, others are thrown out and recomputed."""
    engine = Engine(loaded, blocks_total=97, max_model_tokens=1536)
    outputs = engine.greedy(prompts, OUTPUT_TOKENS)

    assert engine.preemptions > 0
    compare(outputs, references, f"{engine.preemptions} preemptions", capsys)


def test_the_overlapped_loop_gives_the_same_text(
    default_model: Path,
    prompts: list[list[int]],
    references: list[Reference],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Depth 2: a step is launched before the tokens of the last one are read."""
    loaded = load_ours(default_model, "float32", pipeline_depth=2)
    engine = Engine(loaded, depth=2, max_seqs=8)
    outputs = engine.greedy(prompts[:14], OUTPUT_TOKENS)
    loaded.executor.close()

    compare(outputs, references[:14], "depth 2", capsys)


def teacher_forced_tokens(engine_path: Path, ids: list[int], dtype: str) -> list[int]:
    """Our argmax at every position of a text."""
    from service.device.inputs import SequenceSpan, StepInputs

    loaded = load_ours(engine_path, dtype)
    executor = loaded.executor
    everything = torch.arange(len(ids))
    inputs = StepInputs(
        token_ids=torch.tensor(ids),
        positions=everything,
        cells=everything,
        sampled=everything,
        decodes=(),
        prefills=(SequenceSpan(0, len(ids), 0, tuple(range(-(-len(ids) // 16)))),),
    )
    logits = executor._decoder.forward(inputs, executor._cache)
    return logits.argmax(dim=-1).tolist()


def test_bf16_agrees_with_float32_as_well_as_the_reference_does(
    default_model: Path, text_ids: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Teacher-forced top-1 agreement with transformers' float32, ours against theirs."""
    ids = text_ids[:1500]
    with torch.inference_mode():
        exact = load_reference(default_model, torch.float32)(torch.tensor([ids])).logits[0]
        truth = exact.argmax(dim=-1)
        rounded = load_reference(default_model, torch.bfloat16)(torch.tensor([ids])).logits[0]
    theirs = (rounded.argmax(dim=-1) == truth).float().mean().item()
    ours_tokens = torch.tensor(teacher_forced_tokens(default_model, ids, "bfloat16"))
    ours = (ours_tokens == truth).float().mean().item()

    with capsys.disabled():
        print(f"\n[bf16] top-1 agreement with float32: ours {ours:.4f}, theirs {theirs:.4f}")
    assert ours >= theirs - 0.01
