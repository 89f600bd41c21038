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
ROUTER = "mlp.router"
ATTENTION_OUT_NORM, FFN_OUT_NORM = "self_attn.out_norm", "mlp.out_norm"
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


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file has a tensor: `rows` of one stored tensor along `axis`, from `begin` on (all of
    it where they are None), or several stored ones, which are stacked. `shape` is that of each
    stored tensor."""

    stored: tuple[str, ...]
    shape: tuple[int, ...]
    axis: int = 0
    begin: int = 0
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """What the files of a family call each tensor, without `.weight` or `.bias`.

    `layer` is the prefix of layer `{}`. A part with a `{}` of its own is stored once for each
    expert. `fused` are stored parts that hold several canonical ones, one after the other along the
    outputs; `bare` are parts that are stored without `.weight`. `computed` matches stored tensors
    that follow from the configuration and need not be read.
    """

    embedding: str
    norm: str
    head: str
    layer: str
    parts: Mapping[str, str] = field(default_factory=lambda: {part: part for part in _LAYER_PARTS})
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bare: frozenset[str] = frozenset()
    computed: re.Pattern[str] | None = None

    def place(self, spec: ModelSpec, canonical: str) -> Place:
        """Where the tensor is. Raises ConfigError where this family has no such tensor."""
        shape = tensor_shape(spec, canonical)
        stem, _, kind = canonical.rpartition(".")
        found = _LAYER.fullmatch(stem)
        for part, together in self.fused.items():
            if found is not None and found[2] in together:
                axis = max(0, len(shape) - 2)
                prefix = stem.removesuffix(found[2])
                sizes = [tensor_shape(spec, f"{prefix}{one}.{kind}")[axis] for one in together]
                whole = (*shape[:axis], sum(sizes), *shape[axis + 1 :])
                begin = sum(sizes[: together.index(found[2])])
                stored = self._in_layer(found[1], part, kind)
                return Place((stored,), whole, axis, begin, shape[axis])
        stored = self.stored(canonical)
        if "{}" in stored:
            return Place(tuple(stored.format(one) for one in range(shape[0])), shape[1:])
        return Place((stored,), shape)

    def _in_layer(self, layer: str, part: str, kind: str) -> str:
        name = f"{self.layer.format(layer)}.{part}"
        return name if part in self.bare else f"{name}.{kind}"

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
        return self._in_layer(found[1], part, kind)

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
        for part in _parts_of_a_layer(spec):
            yield f"model.layers.{layer}.{part}"


def _parts_of_a_layer(spec: ModelSpec) -> Iterator[str]:
    for part in ("q", "k", "v", "o"):
        yield f"self_attn.{part}_proj.weight"
    if spec.qkv_bias:
        for part in ("q", "k", "v"):
            yield f"self_attn.{part}_proj.bias"
    if spec.qk_norm:
        yield "self_attn.q_norm.weight"
        yield "self_attn.k_norm.weight"
    network = "mlp"
    if spec.experts is not None:
        yield f"{ROUTER}.weight"
        network = "mlp.experts"
    for part in ("gate", "up", "down"):
        yield f"{network}.{part}_proj.weight"
    if spec.input_norms:
        yield "input_layernorm.weight"
        yield "post_attention_layernorm.weight"
    if spec.output_norms:
        yield f"{ATTENTION_OUT_NORM}.weight"
        yield f"{FFN_OUT_NORM}.weight"


def tensor_shape(spec: ModelSpec, name: str) -> tuple[int, ...]:
    """Shape of a canonical tensor under `spec`."""
    part = name.removesuffix(".weight").removesuffix(".bias").rsplit(".", 1)[-1]
    rows: tuple[int, ...] = {
        "q_proj": (spec.q_size, spec.hidden),
        "k_proj": (spec.kv_size, spec.hidden),
        "v_proj": (spec.kv_size, spec.hidden),
        "o_proj": (spec.hidden, spec.q_size),
        "gate_proj": (spec.ffn, spec.hidden),
        "up_proj": (spec.ffn, spec.hidden),
        "down_proj": (spec.hidden, spec.ffn),
        "router": (0 if spec.experts is None else spec.experts.count, spec.hidden),
        "embed_tokens": (spec.vocab, spec.hidden),
        "lm_head": (spec.vocab, spec.hidden),
        "q_norm": (spec.q_size if spec.wide_qk_norm else spec.head_dim,),
        "k_norm": (spec.kv_size if spec.wide_qk_norm else spec.head_dim,),
        "out_norm": (spec.hidden,),
        "input_layernorm": (spec.hidden,),
        "post_attention_layernorm": (spec.hidden,),
        "norm": (spec.hidden,),
    }[part]
    if spec.experts is not None and ".experts." in name:
        return (spec.experts.count, *rows)
    return rows[:1] if name.endswith(".bias") else rows


def is_norm(canonical: str) -> bool:
    """Whether a canonical tensor is the weight of a norm."""
    return canonical.removesuffix(".weight").endswith("norm")


def layer_of(canonical: str) -> int | None:
    """The layer that a canonical tensor belongs to; None for those of the whole model."""
    found = _LAYER.fullmatch(canonical)
    return None if found is None else int(found[1])


def check_safetensors(
    path: Path, spec: ModelSpec, names: TensorNames, found: Mapping[str, StoredTensor]
) -> None:
    """The right tensors by stored name, of the right shapes, of numbers that need no scale.
    A head beside a tied embedding is left to the caller. Raises ConfigError."""
    wanted = _stored_shapes(spec, names)
    extra = {name for name in found if name not in wanted and not names.is_computed(name)}
    if spec.tied_embeddings:
        extra.discard(names.stored(HEAD))
    why = f"no part of a {spec.family} model of {spec.layers} layers as config.json describes it"
    refuse_tensors(path, extra, f"{why}; use a checkpoint without")
    for name, shape in wanted.items():
        stored = found.get(name)
        if stored is None:
            hint = "; tie_word_embeddings is false in config.json"
            is_head = name == names.stored(HEAD)
            raise ConfigError(f"{path} has no tensor {name}{hint if is_head else ''}")
        if stored.kind not in _FLOATS:
            raise ConfigError(
                f"{path}: tensor {name} is {stored.kind}, which means nothing without a scale; use "
                "an unquantised checkpoint, and --weights to quantise it"
            )
        _check_shape(path, name, stored.shape, shape)


def _stored_shapes(spec: ModelSpec, names: TensorNames) -> dict[str, tuple[int, ...]]:
    """Of every tensor that a file must have."""
    places = [names.place(spec, canonical) for canonical in tensor_names(spec)]
    return {name: place.shape for place in places for name in place.stored}


def check_gguf(
    path: Path, spec: ModelSpec, names: TensorNames, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """The right tensors by stored name, of the right shapes. Raises ConfigError."""
    wanted = _stored_shapes(spec, names)
    extra = {name for name in shapes if name not in wanted and not names.is_computed(name)}
    why = f"no part of a {spec.family} model of {spec.layers} layers; use a file without"
    refuse_tensors(path, extra, why)
    for stored, expected in wanted.items():
        shape = shapes.get(stored)
        if shape is None:
            raise ConfigError(f"{path} has no tensor {stored}")
        _check_shape(path, stored, shape, expected)


def _check_shape(path: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        shapes = f"{list(shape)}, expected {list(expected)}"
        raise ConfigError(f"{path}: tensor {name} has shape {shapes}")
