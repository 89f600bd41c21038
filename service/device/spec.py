"""What a model is: the shape and flags that the decoder is built from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from telemetry.facts.engine_start import ModelShape


class RopeScaling(StrEnum):
    """How rotary frequencies are stretched beyond the trained context."""

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"


class Feature(StrEnum):
    """What a model may need beyond the plain decoder (RMS norm, rotary positions, grouped-query
    attention, SiLU-gated feed-forward); the value is how messages call it.

    Each back end lists those that it computes and refuses a model that needs another: a new
    feature is refused everywhere until a back end states that it has it.
    """

    QKV_BIAS = "biases of queries, keys and values"
    QK_NORM = "norms of queries and keys"
    TIED_EMBEDDINGS = "a head tied to the embedding"
    LINEAR_ROPE = "linear rope scaling"
    LLAMA3_ROPE = "Llama 3's rope scaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding. The last four are used by LINEAR (factor) and LLAMA3."""

    theta: float = 10_000.0
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer: sizes, and flags for what differs between families.

    `family` is a label. A `sliding_window_tokens` bounds the context, so no back end needs to
    know it.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context_tokens: int
    norm_eps: float
    rope: Rope
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    sliding_window_tokens: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    vocab_parts: int = 1  # the head is one of so many, the embedding is whole

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def head_rows(self) -> int:
        return self.vocab // self.vocab_parts

    @property
    def features(self) -> frozenset[Feature]:
        """What a back end must be able to compute."""
        needed = {
            Feature.QKV_BIAS: self.qkv_bias,
            Feature.QK_NORM: self.qk_norm,
            Feature.TIED_EMBEDDINGS: self.tied_embeddings,
            Feature.LINEAR_ROPE: self.rope.scaling is RopeScaling.LINEAR,
            Feature.LLAMA3_ROPE: self.rope.scaling is RopeScaling.LLAMA3,
        }
        return frozenset(feature for feature, is_needed in needed.items() if is_needed)

    def missing(self, supported: frozenset[Feature]) -> str | None:
        """The features that are needed and not `supported`, for a message; None when all are."""
        missing = self.features - supported
        return " and ".join(sorted(missing)) or None

    def shape(self, weight_bytes: float, cell_bytes: int) -> ModelShape:
        """What a step's floor follows from, with these sizes of a weight and of a token's keys
        and values in all layers."""
        return ModelShape(
            layers=self.layers,
            hidden=self.hidden,
            q_size=self.q_size,
            kv_size=self.kv_size,
            ffn=self.ffn,
            vocab=self.head_rows,
            weight_bytes=weight_bytes,
            cell_bytes=cell_bytes,
        )


DUMMY_SHAPES: dict[str, ModelSpec] = {
    "tiny": ModelSpec(
        family="llama",
        layers=2,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        ffn=128,
        vocab=512,
        context_tokens=2048,
        norm_eps=1e-5,
        rope=Rope(),
        tied_embeddings=True,
    ),
    "smollm2-135m": ModelSpec(
        family="llama",
        layers=30,
        hidden=576,
        heads=9,
        kv_heads=3,
        head_dim=64,
        ffn=1536,
        vocab=49_152,
        context_tokens=8192,
        norm_eps=1e-5,
        rope=Rope(theta=100_000.0),
        tied_embeddings=True,
    ),
    "llama-1b": ModelSpec(
        family="llama",
        layers=16,
        hidden=2048,
        heads=32,
        kv_heads=8,
        head_dim=64,
        ffn=8192,
        vocab=128_256,
        context_tokens=131_072,
        norm_eps=1e-5,
        rope=Rope(theta=500_000.0, scaling=RopeScaling.LLAMA3, factor=32.0),
        tied_embeddings=True,
    ),
    "llama-8b": ModelSpec(
        family="llama",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn=14_336,
        vocab=128_256,
        context_tokens=131_072,
        norm_eps=1e-5,
        rope=Rope(theta=500_000.0, scaling=RopeScaling.LLAMA3, factor=8.0),
    ),
    "qwen3-0.6b": ModelSpec(
        family="qwen3",
        layers=28,
        hidden=1024,
        heads=16,
        kv_heads=8,
        head_dim=128,
        ffn=3072,
        vocab=151_936,
        context_tokens=40_960,
        norm_eps=1e-6,
        rope=Rope(theta=1_000_000.0),
        qk_norm=True,
        tied_embeddings=True,
    ),
}
