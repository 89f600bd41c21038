"""Reads what the metadata of a GGUF file says in the words that llama.cpp uses for all families:
`llama.block_count`, `qwen3.block_count`.

What the metadata leaves out the tensors tell: the vocabulary, biases, norms, a tied embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from service.config.settings import ConfigError
from service.device.models.config_reader import windows_where
from service.device.models.rope_reader import stretched_context
from service.device.models.tensors import EMBEDDING, HEAD, TensorNames
from service.device.rope import rope_frequencies, yarn_magnitude
from service.device.spec import ModelSpec, Rope, RopeScaling
from service.model_files.gguf_file import GgufFile
from service.model_files.strict_keys import StrictKeys

_ROPE_FREQUENCIES = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GgufConfig:
    """One file's metadata. Keys are given without the name of the architecture, `prefix`."""

    file: GgufFile
    stated: StrictKeys
    prefix: str
    names: TensorNames

    def integer(self, key: str, default: int | None = None) -> int:
        return self.stated.integer(f"{self.prefix}.{key}", default)

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        return self.stated.size(f"{self.prefix}.{key}", default, least)

    def number(self, key: str, default: float | None = None) -> float:
        return self.stated.number(f"{self.prefix}.{key}", default)

    def positive(self, key: str, default: float | None = None) -> float:
        return self.stated.positive(f"{self.prefix}.{key}", default)

    def take(self, key: str, default: object = None) -> object:
        return self.stated.take(f"{self.prefix}.{key}", default)

    def refused(self, key: str, value: object, why: str) -> ConfigError:
        return self.stated.refused(f"{self.prefix}.{key}", value, why)

    def has_tensor(self, canonical: str) -> bool:
        return self.names.stored(canonical) in self.file.tensors


def read_gguf_spec(
    config: GgufConfig,
    family: str,
    *,
    ffn_key: str = "feed_forward_length",
    layers: int | None = None,
    rotates_in_part: bool = False,
) -> ModelSpec:
    """The whole spec; `layers` where the family has read how many there are. A window is in every
    layer. Raises ConfigError."""
    file = config.file
    if config.integer("expert_count", 0) > 0:
        raise ConfigError(f"{file.path} is a mixture of experts, which is not supported")
    heads = config.size("attention.head_count")
    hidden = config.size("embedding_length")
    layers = config.size("block_count") if layers is None else layers
    embedding = file.tensors.get(config.names.stored(EMBEDDING))
    if embedding is None:
        raise ConfigError(f"{file.path} has no tensor {config.names.stored(EMBEDDING)}")
    head_dim, dims = _head_dim(config, hidden // heads, rotates_in_part)
    context_tokens = config.size("context_length")
    rope = _read_rope(config, dims, context_tokens)
    context_tokens = stretched_context(rope, context_tokens)
    window = config.size("attention.sliding_window", 0, least=0) or None
    return ModelSpec(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=config.size("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=config.size(ffn_key),
        vocab=embedding.shape[0],
        context_tokens=context_tokens,
        norm_eps=config.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        qkv_bias=config.has_tensor("model.layers.0.self_attn.q_proj.bias"),
        qk_norm=config.has_tensor("model.layers.0.self_attn.q_norm.weight"),
        tied_embeddings=not config.has_tensor(HEAD),
        layer_windows=windows_where(window, [True] * layers),
        eos_token_ids=_end_tokens(file),
    )


def _end_tokens(file: GgufFile) -> tuple[int, ...]:
    """Raises ConfigError."""
    key = "tokenizer.ggml.eos_token_id"
    stated = StrictKeys(file.path, {key: file.metadata.get(key)})
    return () if stated.peek(key) is None else (stated.integer(key),)


def _head_dim(config: GgufConfig, usual: int, rotates_in_part: bool) -> tuple[int, int | None]:
    """The size of heads of queries, keys and values, and how much of it is rotated, None for all.
    Raises ConfigError."""
    size = config.size("attention.key_length", usual)
    values = config.integer("attention.value_length", size)
    dims = config.integer("rope.dimension_count", size)
    if size % 2:
        raise config.refused("attention.key_length", size, "values of a head are rotated in pairs")
    if values != size:
        raise config.refused("attention.value_length", values, f"heads are of {size} values")
    if dims == size:
        return size, None
    if rotates_in_part and 0 < dims < size and dims % 2 == 0:
        return size, dims
    raise config.refused("rope.dimension_count", dims, f"heads of {size} are rotated whole")


def _read_rope(config: GgufConfig, dims: int | None, context_tokens: int) -> Rope:
    theta = config.positive("rope.freq_base", 10_000.0)
    kind = config.take("rope.scaling.type", "none")
    factor = config.positive("rope.scaling.factor", 1.0)
    original = config.size("rope.scaling.original_context_length", 0, least=0)
    if _ROPE_FREQUENCIES in config.file.tensors:
        return _llama3_rope(config.file, theta, original or Rope().original_context_tokens)
    if kind == "none":
        if factor != 1.0:
            raise config.refused("rope.scaling.factor", factor, "rope.scaling.type is not stated")
        return Rope(theta=theta, dims=dims)
    if kind == "linear":
        return Rope(theta=theta, dims=dims, scaling=RopeScaling.LINEAR, factor=factor)
    if kind == "yarn":
        return Rope(
            theta=theta,
            dims=dims,
            scaling=RopeScaling.YARN,
            factor=factor,
            original_context_tokens=original or context_tokens,
            magnitude=yarn_magnitude(factor),
            beta_fast=config.positive("rope.scaling.yarn_beta_fast", Rope().beta_fast),
            beta_slow=config.positive("rope.scaling.yarn_beta_slow", Rope().beta_slow),
        )
    raise ConfigError(f"{config.file.path}: rope scaling {kind!r} is not supported")


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
