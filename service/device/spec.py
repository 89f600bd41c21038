"""What a model is: the shape and flags that the decoder is built from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from telemetry.facts.engine_start import ModelShape


class RopeScaling(StrEnum):
    """How rotary frequencies are stretched beyond the trained context."""

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"


class Gate(StrEnum):
    """What the gate of the feed-forward network goes through; GELU is its tanh form."""

    SILU = "silu"
    GELU = "gelu"


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
    YARN_ROPE = "YaRN"
    LONG_ROPE = "LongRoPE"
    PARTIAL_ROPE = "heads that are rotated in part"
    LOCAL_ROPE = "a rope of its own for layers with a window"
    SLIDING_WINDOW = "sliding windows"
    WIDE_QK_NORM = "norms over all heads of queries and of keys"
    OUTPUT_NORMS = "norms behind attention and feed-forward"
    NO_INPUT_NORMS = "layers without norms before attention and feed-forward"
    GELU_GATE = "a GELU gate"
    ATTENTION_SCALE = "a scale of its own for attention"
    MULTIPLIERS = "multipliers of embeddings, residuals or logits"
    LOGIT_SOFTCAP = "a soft cap on logits"
    EXPERTS = "a mixture of experts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding of the first `dims` values of a head, None for all.

    `factor` is used by LINEAR, LLAMA3 and YARN; `original_context_tokens` by LLAMA3, YARN and
    LONGROPE. Cosines and sines are multiplied by `magnitude` (YaRN's attention factor). LONGROPE
    divides each frequency by its entry of `short_divisors`, or of `long_divisors` where the context
    that is served is longer than the original one.
    """

    theta: float = 10_000.0
    dims: int | None = None
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 8192
    magnitude: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole_dims: bool = True  # YaRN's blend begins and ends at whole pairs
    short_divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Feed-forward networks of which each token goes through `used` of `count`, those that the
    router likes most, weighted by its softmax; `normalised` over those that are used."""

    count: int
    used: int
    normalised: bool


@dataclass(frozen=True, slots=True)
class Reach:
    """What may differ between layers. A query times a key is multiplied by `scale`, None for
    1 / sqrt(head_dim); a query sees the last `window` tokens, its own included, None for all."""

    scale: float | None = None
    window: int | None = None


EVERYTHING = Reach()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer: sizes, and flags for what differs between families.

    `family` is a label. `layer_windows` has an entry for each layer, or is empty where no layer has
    a window: a token sees itself and the `window - 1` tokens before it, with None all of them.
    Layers with a window are rotated by `local_rope` where there is one. With `experts`, `ffn` is
    the width of one expert.

        hidden = embedding * embedding_multiplier
        hidden += residual_multiplier * norm(attention(norm(hidden)))      norms where the flags say
        hidden += residual_multiplier * norm(feed_forward(norm(hidden)))
        logits = softcap(head(norm(hidden)) * logit_multiplier)
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
    layer_windows: tuple[int | None, ...] = ()
    local_rope: Rope | None = None
    wide_qk_norm: bool = False  # over all heads together instead of each
    input_norms: bool = True
    output_norms: bool = False
    exact_norms: bool = False  # weights of norms are kept in float32
    gate: Gate = Gate.SILU
    attention_scale: float | None = None  # None is 1 / sqrt(head_dim)
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None
    experts: Experts | None = None
    eos_token_ids: tuple[int, ...] = ()
    vocab_parts: int = 1  # the head is one of so many, the embedding is whole

    def __post_init__(self) -> None:
        windows = self.layer_windows
        assert len(windows) in {0, self.layers}, (len(windows), self.layers)
        assert windows or self.local_rope is None, "a local rope is for layers with a window"
        turned = self.rotary_dims
        assert 0 < turned <= self.head_dim and turned % 2 == 0, (turned, self.head_dim)  # noqa: PT018

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
    def rotary_dims(self) -> int:
        """Values of a head that are rotated."""
        return self.head_dim if self.rope.dims is None else self.rope.dims

    @property
    def scale(self) -> float:
        """What the product of a query and a key is multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def window(self, layer: int) -> int | None:
        """None too where the context never leaves the window."""
        window = self.layer_windows[layer] if self.layer_windows else None
        return None if window is None or window >= self.context_tokens else window

    def reach(self, layer: int) -> Reach:
        """For the attention of a layer."""
        return Reach(self.attention_scale, self.window(layer))

    def is_local(self, layer: int) -> bool:
        """Whether the layer is rotated by `local_rope`."""
        return self.local_rope is not None and self.layer_windows[layer] is not None

    @property
    def features(self) -> frozenset[Feature]:
        """What a back end must be able to compute."""
        needed = {
            Feature.QKV_BIAS: self.qkv_bias,
            Feature.QK_NORM: self.qk_norm,
            Feature.TIED_EMBEDDINGS: self.tied_embeddings,
            Feature.LINEAR_ROPE: self.rope.scaling is RopeScaling.LINEAR,
            Feature.LLAMA3_ROPE: self.rope.scaling is RopeScaling.LLAMA3,
            Feature.YARN_ROPE: self.rope.scaling is RopeScaling.YARN,
            Feature.LONG_ROPE: self.rope.scaling is RopeScaling.LONGROPE,
            Feature.PARTIAL_ROPE: self.rotary_dims != self.head_dim,
            Feature.LOCAL_ROPE: self.local_rope is not None,
            Feature.SLIDING_WINDOW: any(self.window(layer) for layer in range(self.layers)),
            Feature.WIDE_QK_NORM: self.wide_qk_norm,
            Feature.OUTPUT_NORMS: self.output_norms,
            Feature.NO_INPUT_NORMS: not self.input_norms,
            Feature.GELU_GATE: self.gate is Gate.GELU,
            Feature.ATTENTION_SCALE: self.attention_scale is not None,
            Feature.MULTIPLIERS: any(
                one != 1.0
                for one in (
                    self.embedding_multiplier,
                    self.residual_multiplier,
                    self.logit_multiplier,
                )
            ),
            Feature.LOGIT_SOFTCAP: self.logit_softcap is not None,
            Feature.EXPERTS: self.experts is not None,
        }
        return frozenset(feature for feature, is_needed in needed.items() if is_needed)

    def missing(self, supported: frozenset[Feature]) -> str | None:
        """The features that are needed and not `supported`, for a message; None when all are."""
        missing = self.features - supported
        return " and ".join(sorted(missing)) or None

    def shape(self, weight_bytes: float, cell_bytes: int) -> ModelShape:
        """What a step's floor follows from, with these sizes of a weight and of a token's keys
        and values in all layers."""
        experts = self.experts or Experts(count=0, used=1, normalised=False)
        windows = Counter(self.window(layer) for layer in range(self.layers))
        return ModelShape(
            layers=self.layers,
            hidden=self.hidden,
            q_size=self.q_size,
            kv_size=self.kv_size,
            ffn=experts.used * self.ffn,
            vocab=self.head_rows,
            weight_bytes=weight_bytes,
            cell_bytes=cell_bytes,
            experts=experts.count,
            idle_ffn=max(0, experts.count - experts.used) * self.ffn,
            windows=tuple((one, count) for one, count in windows.items() if one is not None),
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
    "small": ModelSpec(
        family="llama",
        layers=6,
        hidden=256,
        heads=4,
        kv_heads=2,
        head_dim=64,
        ffn=768,
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
