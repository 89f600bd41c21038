"""Weights from a GGUF file, dequantised tensor by tensor.

llama.cpp stores the query and key projections of `llama` models with the rotary pairs
interleaved; they are put back into halves here, so that the decoder knows one layout.

While the decoder fuses and converts one layer, a thread dequantises the next: never more
than one, so that the price is a layer's memory.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from service.config.settings import ConfigError
from service.device.rope import rope_frequencies
from service.device.spec import ModelSpec, Rope, RopeScaling
from service.device.weights.dummy import tensor_shape
from service.device.weights.gguf_keys import GENERAL_PREFIXES, of_family
from service.device.weights.inventory import tensor_names
from service.model_files.gguf_file import GgufFile
from service.model_files.strict_keys import StrictKeys, refuse_tensors

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ROPE_FREQUENCIES = "rope_freqs.weight"
_TOP_NAMES = {"embed_tokens": "token_embd", "norm": "output_norm"}


class GgufWeights:
    """Answers canonical names from one GGUF file."""

    def __init__(self, path: str) -> None:
        self._file = GgufFile(Path(path))
        self._spec = _read_spec(self._file)
        _check_tensors(self._file, self._spec)
        self._reader = ThreadPoolExecutor(1, "phasescope-weights")
        self._ahead: dict[str, Future[torch.Tensor]] = {}
        self._layer = -1

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def tensor(self, name: str) -> torch.Tensor:
        stored = gguf_name(name)
        self._read_ahead(stored)
        ready = self._ahead.pop(stored, None)
        return self._load(stored) if ready is None else ready.result()

    def _read_ahead(self, stored: str) -> None:
        """At the first tensor of a layer, begin with the layer after it."""
        layer = _layer_of(stored)
        if layer is None or layer == self._layer:
            return
        self._layer = layer
        for name in [n for n in self._ahead if _layer_of(n) != layer]:
            self._ahead.pop(name).cancel()
        for name in self._file.tensors:
            if _layer_of(name) == layer + 1:
                self._ahead[name] = self._reader.submit(self._load, name)

    def _load(self, stored: str) -> torch.Tensor:
        heads = self._interleaved_heads(stored)
        order = None if heads is None else halves_order(self._file, stored, heads)
        return torch.from_numpy(self._file.load(stored, order))

    def _interleaved_heads(self, stored: str) -> int | None:
        if self._spec.family == "llama":
            if ".attn_q." in stored:
                return self._spec.heads
            if ".attn_k." in stored:
                return self._spec.kv_heads
        return None


def gguf_name(name: str) -> str:
    """GGUF's name for a canonical tensor."""
    stem, _, kind = name.rpartition(".")
    if stem == "lm_head":
        return f"output.{kind}"
    stem = stem.removeprefix("model.")
    if not stem.startswith("layers."):
        return f"{_TOP_NAMES[stem]}.{kind}"
    _, layer, part = stem.split(".", 2)
    return f"blk.{layer}.{_LAYER_NAMES[part]}.{kind}"


def _layer_of(stored: str) -> int | None:
    parts = stored.split(".", 2)
    return int(parts[1]) if parts[0] == "blk" and parts[1].isdecimal() else None


def halves_order(file: GgufFile, name: str, heads: int) -> NDArray[np.int64] | None:
    """Which stored row comes where, to undo the interleaving of rotary pairs: rows
    (head, pair, 2) become (head, 2, pair). Reordering rows before they are dequantised
    moves a sixth of the bytes."""
    info = file.tensors.get(name)
    if info is None:
        return None  # `load` says so
    rows = info.shape[0]
    if rows % (2 * heads):
        return None  # the shape is wrong, and whoever checks it names it
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(rows)


def _read_spec(file: GgufFile) -> ModelSpec:
    """Every key but the tokenizer's is obeyed, known to be harmless, or refused."""
    meta = StrictKeys(
        file.path,
        {key: file.metadata[key] for key in file.metadata if not key.startswith("tokenizer.")},
    )
    family = meta.take("general.architecture")
    if family not in _FAMILIES:
        raise ConfigError(
            f"{file.path} is a {family} model; supported are {', '.join(_FAMILIES)} "
            "(SmolLM is llama)"
        )
    if meta.integer(f"{family}.expert_count", 0) > 0:
        raise ConfigError(f"{file.path} is a mixture of experts, which is not supported")
    heads = meta.integer(f"{family}.attention.head_count")
    hidden = meta.integer(f"{family}.embedding_length")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path} has no tensor token_embd.weight")
    eos = file.metadata.get("tokenizer.ggml.eos_token_id")
    spec = ModelSpec(
        family=family,
        layers=meta.integer(f"{family}.block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=meta.integer(f"{family}.attention.head_count_kv", heads),
        head_dim=_head_dim(meta, family, hidden // max(1, heads)),
        ffn=meta.integer(f"{family}.feed_forward_length"),
        vocab=embedding.shape[0],
        context_tokens=meta.integer(f"{family}.context_length"),
        norm_eps=meta.number(f"{family}.attention.layer_norm_rms_epsilon"),
        rope=_read_rope(file, meta, family),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        tied_embeddings="output.weight" not in file.tensors,
        sliding_window_tokens=meta.take(f"{family}.attention.sliding_window"),
        eos_token_ids=() if eos is None else (int(eos),),
    )
    meta.finish(of_family(family), GENERAL_PREFIXES)
    return spec


def _head_dim(meta: StrictKeys, family: str, usual: int) -> int:
    """Queries, keys and values have heads of one size, which is rotated whole. Raises
    ConfigError."""
    size = meta.integer(f"{family}.attention.key_length", usual)
    for key in (f"{family}.attention.value_length", f"{family}.rope.dimension_count"):
        stated = meta.integer(key, size)
        if stated != size:
            raise meta.refused(key, stated, f"heads are of {size} values and rotated whole")
    return size


def _read_rope(file: GgufFile, meta: StrictKeys, family: str) -> Rope:
    theta = meta.number(f"{family}.rope.freq_base", 10_000.0)
    kind = meta.take(f"{family}.rope.scaling.type", "none")
    factor = meta.number(f"{family}.rope.scaling.factor", 1.0)
    original = meta.integer(f"{family}.rope.scaling.original_context_length", 8192)
    if _ROPE_FREQUENCIES in file.tensors:
        return _llama3_rope(file, theta, original)
    if kind == "none":
        if factor != 1.0:
            raise meta.refused(f"{family}.rope.scaling.factor", factor, "of what kind is not told")
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, scaling=RopeScaling.LINEAR, factor=factor)
    raise ConfigError(f"{file.path}: rope scaling {kind!r} is not supported")


def _llama3_rope(file: GgufFile, theta: float, original: int) -> Rope:
    """llama.cpp stores Llama 3's stretched frequencies as divisors; the factor is their
    maximum, and the other three numbers are the same in every published Llama 3 model."""
    divisors = torch.from_numpy(file.load(_ROPE_FREQUENCIES))
    rope = Rope(
        theta=theta,
        scaling=RopeScaling.LLAMA3,
        factor=float(divisors.max()),
        original_context_tokens=original,
    )
    head_dim = 2 * len(divisors)
    meant = rope_frequencies(Rope(theta=theta), head_dim) / rope_frequencies(rope, head_dim)
    if divisors.dim() != 1 or not torch.allclose(divisors, meant, rtol=1e-3):
        raise ConfigError(
            f"{file.path}: tensor {_ROPE_FREQUENCIES} does not hold Llama 3's divisors; other ways "
            "to stretch the context are not supported"
        )
    return rope


def _check_tensors(file: GgufFile, spec: ModelSpec) -> None:
    """The right ones, of the right shapes. Raises ConfigError."""
    canonical = {gguf_name(name): name for name in tensor_names(spec)}
    extra = file.tensors.keys() - canonical.keys() - {_ROPE_FREQUENCIES}
    why = f"no part of a {spec.family} model of {spec.layers} layers; use a file without"
    refuse_tensors(file.path, extra, why)
    for stored, name in canonical.items():
        info = file.tensors.get(stored)
        if info is None:
            raise ConfigError(f"{file.path} has no tensor {stored}")
        expected = tensor_shape(spec, name)
        if info.shape != expected:
            raise ConfigError(
                f"{file.path}: tensor {stored} has shape {list(info.shape)}, "
                f"expected {list(expected)}"
            )
