"""The tensors of a model, all of them: one that is missing, too many, or not what the model's
configuration implies is refused by name before the first is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.config.settings import ConfigError
from service.device.spec import ModelSpec
from service.device.weights.dummy import tensor_shape
from service.model_files.strict_keys import refuse_tensors

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
# Computed from the configuration; older versions of transformers wrote them all the same.
_COMPUTED = re.compile(r"(model\.layers\.\d+\.self_attn\.|model\.)rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a file's header says of a tensor; `kind` is the header's own word."""

    kind: str
    shape: tuple[int, ...]


def tensor_names(spec: ModelSpec) -> Iterator[str]:
    """Canonical names of all tensors that the decoder asks for."""
    yield EMBEDDING
    yield "model.norm.weight"
    if not spec.tied_embeddings:
        yield HEAD
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}"
        for part in ("q", "k", "v", "o"):
            yield f"{prefix}.self_attn.{part}_proj.weight"
        if spec.qkv_bias:
            for part in ("q", "k", "v"):
                yield f"{prefix}.self_attn.{part}_proj.bias"
        if spec.qk_norm:
            yield f"{prefix}.self_attn.q_norm.weight"
            yield f"{prefix}.self_attn.k_norm.weight"
        for part in ("gate", "up", "down"):
            yield f"{prefix}.mlp.{part}_proj.weight"
        yield f"{prefix}.input_layernorm.weight"
        yield f"{prefix}.post_attention_layernorm.weight"


def check_tensors(path: Path, spec: ModelSpec, found: Mapping[str, StoredTensor]) -> None:
    """Of safetensors: the right ones, of the right shapes, of numbers that mean what they say.
    A head beside a tied embedding is left to the caller. Raises ConfigError."""
    wanted = set(tensor_names(spec))
    extra = {name for name in found if name not in wanted and not _COMPUTED.fullmatch(name)}
    if spec.tied_embeddings:
        extra.discard(HEAD)
    why = f"no part of a {spec.family} model of {spec.layers} layers as config.json describes it"
    refuse_tensors(path, extra, f"{why}; use a checkpoint without")
    for name in tensor_names(spec):
        stored = found.get(name)
        if stored is None:
            hint = "; tie_word_embeddings is false in config.json" if name == HEAD else ""
            raise ConfigError(f"{path} has no tensor {name}{hint}")
        if stored.kind not in _FLOATS:
            raise ConfigError(
                f"{path}: tensor {name} is {stored.kind}, which means nothing without a scale; use "
                "an unquantised checkpoint, and --weights to quantise it"
            )
        expected = tensor_shape(spec, name)
        if stored.shape != expected:
            shapes = f"{list(stored.shape)}, expected {list(expected)}"
            raise ConfigError(f"{path}: tensor {name} has shape {shapes}")
