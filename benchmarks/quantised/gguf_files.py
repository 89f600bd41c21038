"""GGUF files: the default model's weights in other types, and random blocks of a larger shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from benchmarks.quantised.rounding import q4_k, q6_k
from service.device.models.tensors import GGUF_NAMES, tensor_names, tensor_shape
from service.device.spec import ModelSpec
from service.model_files.gguf_file import GgufFile

Kind = gguf.GGMLQuantizationType
Bytes = NDArray[np.uint8]
Choose = Callable[[str, tuple[int, ...]], Kind]
_K_VALUES = 256
_SIX_BITS = ("attn_v", "ffn_down")  # of half the layers, in llama.cpp's Q4_K_M
_WEIGHT = 0.02


def all_of(kind: Kind) -> Choose:
    return lambda name, shape: kind


def q4_k_m(name: str, shape: tuple[int, ...]) -> Kind:
    """The kind of a matrix as llama.cpp mixes: six bits for values, some of the feed-forward and
    the embedding; where inputs are no multiple of 256 its Q5_0 and Q8_0 take their place, here Q8_0
    for both."""
    if shape[-1] % _K_VALUES:
        return Kind.Q8_0
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    is_six = any(part in name for part in _SIX_BITS) and layer % 2 == 0
    return Kind.Q6_K if is_six or "blk." not in name else Kind.Q4_K


def requantised(path: Path, base: Path, choose: Choose) -> Path:
    """Another file of the same model: matrices in the types that `choose` gives."""
    reader, floats = gguf.GGUFReader(base), GgufFile(base)
    writer = gguf.GGUFWriter(path, str(floats.metadata["general.architecture"]))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    for name, info in floats.tensors.items():
        values = floats.load(name)
        if len(info.shape) == 1:
            writer.add_tensor(name, values)
            continue
        kind = choose(name, info.shape)
        writer.add_tensor(name, _rounded(values, kind), raw_dtype=kind)
    return _written(writer, path)


def random_file(path: Path, spec: ModelSpec, choose: Choose) -> Path:
    """A whole Llama file without a tokenizer: for speed, which does not depend on the numbers."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.context_tokens)
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(spec.ffn)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_freq_base(spec.rope.theta)
    writer.add_vocab_size(spec.vocab)
    for name in tensor_names(spec):
        stored, shape = GGUF_NAMES.stored(name), tensor_shape(spec, name)
        if len(shape) == 1:
            writer.add_tensor(stored, np.ones(shape, np.float32))
            continue
        kind = choose(stored, shape)
        values = rng.normal(0.0, _WEIGHT, (64, shape[1])).astype(np.float32)
        few = _rounded(values, kind)
        rows = np.tile(few, (-(-shape[0] // len(few)), 1))[: shape[0]]
        writer.add_tensor(stored, rows, raw_dtype=kind)
    return _written(writer, path)


def _rounded(values: NDArray[np.float32], kind: Kind) -> Bytes:
    match kind:
        case Kind.Q4_K:
            return q4_k(values)
        case Kind.Q6_K:
            return q6_k(values)
        case Kind.BF16 | Kind.Q8_0:
            found: Bytes = gguf.quantize(values, kind)
            return found
        case _:
            raise ValueError(f"no way to write {kind.name}")


def _written(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
