"""Scores of prompts and embeddings of the real device, chunked, equal those of transformers."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM

from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import PlainKvCache
from service.device.models.model import Decoder
from service.device.native.cache import NativeKvCache
from service.device.native.decoder import NativeDecoder
from service.device.native.library import NumberKind
from service.device.quantization.precision import Precision
from service.device.torch_executor import DeviceExecutor, TorchExecutor
from service.device.weights.safetensors import SafetensorsWeights
from service.engine.plan import SamplingParams
from service.engine.prompt_output import Pooled, Pooling, PromptOutput, PromptResult, PromptScores
from telemetry.facts.clock import MonotonicClock
from tests.support.models.parity import Built, Engine

BT, BLOCKS, CONTEXT, VOCAB, ALTERNATIVES = 16, 16, 128, 211, 3
CPU = torch.device("cpu")
FP32 = Precision(torch.float32, torch.float32)
CONFIG = Qwen3Config(
    vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=CONTEXT,
    tie_word_embeddings=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> Any:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(3)
    model = Qwen3ForCausalLM(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.15)
    return model


@pytest.fixture(scope="module")
def folder(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As checkpoints for embeddings are saved: the tensors lack the prefix `model.`."""
    from safetensors.torch import save_file

    place = tmp_path_factory.mktemp("embedder")
    theirs.save_pretrained(place)
    bare = {
        name.removeprefix("model."): tensor.clone()
        for name, tensor in theirs.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(bare, place / "model.safetensors")
    return place


def executor_of(kind: str, folder: Path) -> DeviceExecutor:
    source = SafetensorsWeights(str(folder))
    clock = MonotonicClock()
    if kind == "native":
        number = NumberKind.FLOAT32
        native = NativeDecoder(source, CONTEXT, number, number, torch.float32, threads=1)
        return TorchExecutor(native, NativeKvCache(source.spec, BLOCKS, number), clock)
    decoder = Decoder(source, TorchPagedAttention(BT, CPU), CONTEXT, FP32, CPU)
    cache = PlainKvCache(source.spec, BLOCKS, BT, torch.float32, CPU)
    return TorchExecutor(decoder, cache, clock, depth=2)


def ids_of(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(0, VOCAB, (count,), generator=generator).tolist()
    return found


PROMPTS = [ids_of(count, seed) for seed, count in enumerate((71, 1, 2, 33, 90))]
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module", params=["torch", "native"])
def engine(request: pytest.FixtureRequest, folder: Path) -> Engine:
    """Chunks of a prompt end anywhere."""
    depth = 2 if request.param == "torch" else 1
    built = Built(executor_of(request.param, folder), CONTEXT)
    return Engine(built, depth, budget_tokens=27, max_seqs=4)


def scores_of(found: list[PromptResult]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities, ranks, and log-probabilities of the likeliest, of all pieces."""
    own, ranks, top = array("f"), array("i"), array("f")
    for piece in found:
        assert isinstance(piece, PromptScores)
        assert piece.first == len(own) + 1
        own.frombytes(piece.logprobs)
        ranks.frombytes(piece.ranks)
        top.frombytes(piece.top_logprobs)
    likeliest = torch.tensor(top).view(len(own), ALTERNATIVES)
    return torch.tensor(own), torch.tensor(ranks), likeliest


def test_scores_of_a_prompt_are_those_of_transformers(engine: Engine, theirs: Any) -> None:
    texts = engine.generate(PROMPTS, 5, GREEDY, PromptOutput(logprobs=ALTERNATIVES))
    read = engine.read
    plain = engine.greedy(PROMPTS, 5)

    assert texts == plain
    assert engine.chunks > len(PROMPTS)
    for prompt, found in zip(PROMPTS, read, strict=True):
        own, ranks, top = scores_of(found)
        with torch.inference_mode():
            wanted = torch.log_softmax(theirs(torch.tensor([prompt])).logits[0, :-1].float(), -1)
        mine = wanted[torch.arange(len(prompt) - 1), torch.tensor(prompt[1:], dtype=torch.int64)]
        assert len(own) == len(prompt) - 1
        torch.testing.assert_close(own, mine, rtol=1e-4, atol=2e-4)
        torch.testing.assert_close(top, wanted.topk(ALTERNATIVES).values, rtol=1e-4, atol=2e-4)
        near = (wanted - mine[:, None]).abs() < 1e-3
        least = (wanted > mine[:, None]).sum(-1) + 1 - near.sum(-1)
        assert ((ranks >= least) & (ranks <= least + 2 * near.sum(-1))).all()


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("normalize", [False, True])
def test_embeddings_are_those_of_transformers(
    engine: Engine, theirs: Any, pooling: Pooling, normalize: bool
) -> None:
    output = PromptOutput(pooling=pooling, normalize=normalize, dimensions=None)
    outputs = engine.generate(PROMPTS, 0, GREEDY, output)

    assert outputs == [[] for _ in PROMPTS]
    for prompt, found in zip(PROMPTS, engine.read, strict=True):
        with torch.inference_mode():
            states = theirs.model(torch.tensor([prompt])).last_hidden_state[0].float()
        wanted = {Pooling.LAST: states[-1], Pooling.MEAN: states.mean(0), Pooling.CLS: states[0]}
        vector = wanted[pooling] / wanted[pooling].norm() if normalize else wanted[pooling]
        last = found[-1]
        assert isinstance(last, Pooled)
        torch.testing.assert_close(
            torch.tensor(array("f", last.values)), vector, rtol=1e-4, atol=2e-4
        )


def test_an_embedding_is_cut_before_it_is_scaled(engine: Engine) -> None:
    """As models that may be cut (Matryoshka) are used."""
    whole = PromptOutput(pooling=Pooling.LAST)
    engine.generate(PROMPTS[:1], 0, GREEDY, whole)
    (plain,) = engine.read[0]
    engine.generate(
        PROMPTS[:1], 0, GREEDY, PromptOutput(pooling=Pooling.LAST, dimensions=8, normalize=True)
    )
    (cut,) = engine.read[0]

    assert isinstance(plain, Pooled)
    assert isinstance(cut, Pooled)
    first = torch.tensor(array("f", plain.values)[:8])
    torch.testing.assert_close(torch.tensor(array("f", cut.values)), first / first.norm())
