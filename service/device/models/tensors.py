"""The tensors of a model: their canonical names, their shapes, and what files call them.

A tensor that is missing, too many, or not what the model's configuration implies is refused by
name before the first is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from service.config.settings import ConfigError
from service.device.spec import ModelSpec
from service.model_files.strict_keys import refuse_tensors

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_LAYER_PARTS = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """What the files of a family call each tensor, without `.weight` or `.bias`.

    `layer` is the prefix of layer `{}`. `computed` matches stored tensors that follow from the
    configuration and need not be read.
    """

    embedding: str
    norm: str
    head: str
    layer: str
    parts: Mapping[str, str] = field(default_factory=lambda: {part: part for part in _LAYER_PARTS})
    computed: re.Pattern[str] | None = None

    def stored(self, canonical: str) -> str:
        """The stored name of a canonical one. Raises ConfigError where there is none."""
        stem, _, kind = canonical.rpartition(".")
        tops = {
            "model.embed_tokens": self.embedding,
            "model.norm": self.norm,
            "lm_head": self.head,
        }
        if stem in tops:
            return f"{tops[stem]}.{kind}"
        found = _LAYER.fullmatch(stem)
        part = None if found is None else self.parts.get(found[2])
        if found is None or part is None:
            raise ConfigError(f"this family of models has no tensor {canonical}")
        return f"{self.layer.format(found[1])}.{part}.{kind}"

    def is_computed(self, stored: str) -> bool:
        return self.computed is not None and self.computed.fullmatch(stored) is not None


HF_NAMES = TensorNames(
    embedding="model.embed_tokens",
    norm="model.norm",
    head="lm_head",
    layer="model.layers.{}",
    # older versions of transformers wrote the rotary frequencies
    computed=re.compile(r"(model\.layers\.\d+\.self_attn\.|model\.)rotary_emb\.inv_freq"),
)
# checkpoints that were saved without the head around the model, as those for embeddings are
BARE_EMBEDDING = EMBEDDING.removeprefix("model.")


def without_prefix(names: TensorNames) -> TensorNames:
    """The names of a folder whose tensors lack the prefix `model.`."""
    return replace(
        names,
        embedding=names.embedding.removeprefix("model."),
        norm=names.norm.removeprefix("model."),
        layer=names.layer.removeprefix("model."),
    )


GGUF_NAMES = TensorNames(
    embedding="token_embd",
    norm="output_norm",
    head="output",
    layer="blk.{}",
    parts={
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
    },
    computed=re.compile(r"rope_freqs\.weight"),  # read for the configuration
)


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


def tensor_shape(spec: ModelSpec, name: str) -> tuple[int, ...]:
    """Shape of a canonical tensor under `spec`."""
    part = name.removesuffix(".weight").removesuffix(".bias").rsplit(".", 1)[-1]
    rows = {
        "q_proj": (spec.q_size, spec.hidden),
        "k_proj": (spec.kv_size, spec.hidden),
        "v_proj": (spec.kv_size, spec.hidden),
        "o_proj": (spec.hidden, spec.q_size),
        "gate_proj": (spec.ffn, spec.hidden),
        "up_proj": (spec.ffn, spec.hidden),
        "down_proj": (spec.hidden, spec.ffn),
        "embed_tokens": (spec.vocab, spec.hidden),
        "lm_head": (spec.vocab, spec.hidden),
        "q_norm": (spec.head_dim,),
        "k_norm": (spec.head_dim,),
        "input_layernorm": (spec.hidden,),
        "post_attention_layernorm": (spec.hidden,),
        "norm": (spec.hidden,),
    }[part]
    return rows[:1] if name.endswith(".bias") else rows


def layer_of(canonical: str) -> int | None:
    """The layer that a canonical tensor belongs to; None for those of the whole model."""
    found = _LAYER.fullmatch(canonical)
    return None if found is None else int(found[1])


def check_safetensors(
    path: Path, spec: ModelSpec, names: TensorNames, found: Mapping[str, StoredTensor]
) -> None:
    """The right tensors by stored name, of the right shapes, of numbers that need no scale.
    A head beside a tied embedding is left to the caller. Raises ConfigError."""
    wanted = {names.stored(name) for name in tensor_names(spec)}
    extra = {name for name in found if name not in wanted and not names.is_computed(name)}
    if spec.tied_embeddings:
        extra.discard(names.stored(HEAD))
    why = f"no part of a {spec.family} model of {spec.layers} layers as config.json describes it"
    refuse_tensors(path, extra, f"{why}; use a checkpoint without")
    for canonical in tensor_names(spec):
        name = names.stored(canonical)
        stored = found.get(name)
        if stored is None:
            hint = "; tie_word_embeddings is false in config.json" if canonical == HEAD else ""
            raise ConfigError(f"{path} has no tensor {name}{hint}")
        if stored.kind not in _FLOATS:
            raise ConfigError(
                f"{path}: tensor {name} is {stored.kind}, which means nothing without a scale; use "
                "an unquantised checkpoint, and --weights to quantise it"
            )
        _check_shape(path, name, stored.shape, tensor_shape(spec, canonical))


def check_gguf(
    path: Path, spec: ModelSpec, names: TensorNames, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """The right tensors by stored name, of the right shapes. Raises ConfigError."""
    canonical = {names.stored(name): name for name in tensor_names(spec)}
    extra = {name for name in shapes if name not in canonical and not names.is_computed(name)}
    why = f"no part of a {spec.family} model of {spec.layers} layers; use a file without"
    refuse_tensors(path, extra, why)
    for stored, name in canonical.items():
        shape = shapes.get(stored)
        if shape is None:
            raise ConfigError(f"{path} has no tensor {stored}")
        _check_shape(path, stored, shape, tensor_shape(spec, name))


def _check_shape(path: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        shapes = f"{list(shape)}, expected {list(expected)}"
        raise ConfigError(f"{path}: tensor {name} has shape {shapes}")
