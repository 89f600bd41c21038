"""Blocks of GGUF that the native decoder multiplies as they are, against the `gguf` package's
floats: every block random, so that each bit of a scale, a minimum and a weight counts."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device.backends import native_backend
from service.device.models.tensors import GGUF_NAMES, tensor_names, tensor_shape
from service.device.quantization.kept_matrix import GgufMatrix
from service.device.spec import ModelSpec, Rope
from service.device.weights.gguf import GgufWeights
from service.model_files.gguf_blocks import format_of
from service.model_files.gguf_file import GgufFile
from tests.support.models.kept_logits import (
    INTEGER_ERROR,
    native_logits,
    relative_error,
    torch_logits,
)

Kind = gguf.GGMLQuantizationType
WIDE = ModelSpec(
    family="llama",
    layers=2,
    hidden=256,
    heads=4,
    kv_heads=2,
    head_dim=64,
    ffn=512,
    vocab=96,
    context_tokens=256,
    norm_eps=1e-5,
    rope=Rope(),
    tied_embeddings=True,
)
# what llama.cpp mixes in its Q4_K_M: values, some feed-forward matrices and the embedding in Q6_K
Q4_K_M = {"v_proj": Kind.Q6_K, "down_proj": Kind.Q6_K, "embed_tokens": Kind.Q6_K}
MIXES: dict[str, dict[str, Kind]] = {
    "Q8_0": {"": Kind.Q8_0},
    "Q4_K": {"": Kind.Q4_K},
    "Q6_K": {"": Kind.Q6_K},
    "Q4_K_M": {**Q4_K_M, "": Kind.Q4_K},
    "Q4_K_M, keys in F16": {"k_proj": Kind.F16, **Q4_K_M, "": Kind.Q4_K},
}
_WEIGHT = 0.05


def halves(rng: np.random.Generator, count: int, size: float) -> NDArray[np.uint8]:
    values = rng.uniform(0.5, 1.5, (count, 1)) * size
    return values.astype(np.float16).view(np.uint8)


def random_blocks(kind: Kind, rows: int, values: int, seed: int) -> NDArray[np.uint8]:
    """[rows, bytes] of which all bits are random but the scales of all, which are sane."""
    rng = np.random.default_rng(seed)
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    count = rows * values // block_values
    blocks = rng.integers(0, 256, (count, block_bytes)).astype(np.uint8)
    match kind:
        case Kind.Q8_0:
            blocks[:, :2] = halves(rng, count, _WEIGHT / 74)
        case Kind.Q4_K:
            blocks[:, :2] = halves(rng, count, _WEIGHT / (32 * 4.6))
            blocks[:, 2:4] = halves(rng, count, _WEIGHT / (32 * 4.6) * 7.5)
        case Kind.Q6_K:
            blocks[:, -2:] = halves(rng, count, _WEIGHT / (74 * 18))
        case _:
            normal = rng.normal(0.0, _WEIGHT, (rows, values)).astype(np.float16)
            return normal.view(np.uint8).reshape(rows, -1)
    return blocks.reshape(rows, -1)


def write_model(path: Path, mix: dict[str, Kind]) -> Path:
    """The kind of a matrix is that of the first name in `mix` that is in its own."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(WIDE.layers)
    writer.add_context_length(WIDE.context_tokens)
    writer.add_embedding_length(WIDE.hidden)
    writer.add_feed_forward_length(WIDE.ffn)
    writer.add_head_count(WIDE.heads)
    writer.add_head_count_kv(WIDE.kv_heads)
    writer.add_layer_norm_rms_eps(WIDE.norm_eps)
    writer.add_vocab_size(WIDE.vocab)
    for seed, name in enumerate(tensor_names(WIDE)):
        shape = tensor_shape(WIDE, name)
        stored = GGUF_NAMES.stored(name)
        if len(shape) == 1:
            writer.add_tensor(stored, np.ones(shape, np.float32))
            continue
        kind = next(kind for part, kind in mix.items() if part in name)
        writer.add_tensor(stored, random_blocks(kind, *shape, seed), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(params=MIXES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> GgufWeights:
    return GgufWeights(str(write_model(tmp_path / "model.gguf", MIXES[request.param])))


def test_the_native_decoder_gives_the_logits_of_the_package_s_floats(source: GgufWeights) -> None:
    """Kept, not widened: the embedding too. One token, a few and more than a tile of them."""
    assert source.kept_form("model.embed_tokens.weight") is not None
    for tokens in (1, 3, 71):
        wanted = torch_logits(source, "float", tokens)
        assert relative_error(native_logits(source, tokens), wanted) < INTEGER_ERROR


def test_the_embedding_s_rows_are_the_package_s_floats(tmp_path: Path) -> None:
    """Looked up, not multiplied, and so to the last bits: with all other matrices zero the logits
    are those of the embedding alone."""
    for kind in (Kind.Q8_0, Kind.Q4_K, Kind.Q6_K):
        path = write_model(tmp_path / f"{kind.name}.gguf", {"embed": kind, "": Kind.F16})
        source = GgufWeights(str(path))
        matrix = source.kept("model.embed_tokens.weight")
        assert isinstance(matrix, GgufMatrix)
        theirs = gguf.dequantize(matrix.blocks, kind)
        assert np.array_equal(matrix.dequantized().numpy(), theirs)


def test_rows_of_rotary_pairs_are_put_in_order_within_their_blocks(tmp_path: Path) -> None:
    source = GgufWeights(str(write_model(tmp_path / "model.gguf", MIXES["Q4_K"])))
    name = "model.layers.1.self_attn.q_proj.weight"
    matrix = source.kept(name)
    assert matrix is not None
    assert torch.equal(matrix.dequantized(), source.tensor(name))


def test_ranks_share_whole_blocks_only() -> None:
    blocks = random_blocks(Kind.Q4_K, 4, 512, seed=3)
    matrix = GgufMatrix(format_of(Kind.Q4_K), blocks)
    part = matrix.part(slice(1, 3), slice(256, 512))
    assert part is not None
    assert torch.equal(part.dequantized(), matrix.dequantized()[1:3, 256:])
    assert matrix.part(slice(0, 4), slice(0, 128)) is None


def test_a_step_reads_the_bytes_of_the_file_s_blocks(tmp_path: Path) -> None:
    """And the facts of the start name what is kept; with `--weights float` all is widened."""
    path = write_model(tmp_path / "model.gguf", MIXES["Q4_K_M"])
    model = ModelRef(kind=ModelKind.GGUF, path=str(path), name="mixed")
    source = GgufWeights(str(path))
    file = GgufFile(path)
    sizes = [info for info in file.tensors.values() if len(info.shape) == 2]
    stored_bytes = sum(info.size_bytes for info in sizes)
    weights = sum(info.shape[0] * info.shape[1] for info in sizes)

    kept = native_backend(EngineConfig(model=model), source, 256, lambda stage: None)
    assert kept.weight_bytes == pytest.approx(stored_bytes / weights)
    assert "Q4_K, Q6_K weights kept" in kept.dtype
    wide = native_backend(
        EngineConfig(model=model, weights_format="float"), source, 256, lambda stage: None
    )
    assert wide.weight_bytes == 2
    assert "Q4_K, Q6_K weights widened" in wide.dtype


def test_threads_change_no_bit(tmp_path: Path) -> None:
    source = GgufWeights(str(write_model(tmp_path / "model.gguf", MIXES["Q4_K_M"])))
    assert torch.equal(native_logits(source, 9, threads=1), native_logits(source, 9, threads=5))


def test_rows_that_are_no_whole_blocks_are_a_typed_error(tmp_path: Path) -> None:
    """48 values of 32 a block: as many bytes as three whole rows of 32 would have."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((2, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = bytearray(path.read_bytes())
    at = data.index(b"token_embd.weight") + len("token_embd.weight")
    data[at + 4 : at + 12] = (48).to_bytes(8, "little")
    data[at + 20 : at + 24] = int(Kind.Q8_0).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"token_embd.weight .*no whole blocks of 32"):
        GgufFile(path)
