"""Reads what config.json says in the words that most families share.

Each function takes the keys that it obeys from a `StrictKeys`; an architecture takes those of its
own besides, and whoever opened the file refuses what is left over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.config.settings import ConfigError
from service.device.models.config_keys import ROPE
from service.device.spec import ModelSpec, Rope, RopeScaling
from service.model_files.strict_keys import StrictKeys

_ATTENTION_KINDS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKeys:
    """What a family calls its sizes."""

    layers: str = "num_hidden_layers"
    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    kv_heads: str = "num_key_value_heads"
    head_dim: str = "head_dim"
    ffn: str = "intermediate_size"
    vocab: str = "vocab_size"
    context_tokens: str = "max_position_embeddings"
    norm_eps: str = "rms_norm_eps"
    tied_embeddings: str = "tie_word_embeddings"


HF_KEYS = ConfigKeys()


def sliding_window_if_used(config: StrictKeys) -> int | None:
    """In tokens, where `use_sliding_window` switches it on."""
    if config.flag("use_sliding_window"):
        return read_window(config, None)
    config.take("sliding_window")
    return None


def read_spec(
    config: StrictKeys,
    family: str,
    *,
    keys: ConfigKeys = HF_KEYS,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    sliding_window: Callable[[StrictKeys], int | None] = sliding_window_if_used,
) -> ModelSpec:
    """The spec without its end tokens. `head_dim` is the family's where the file is silent, None
    for hidden / heads. Raises ConfigError."""
    if config.take("attention_bias") and not qkv_bias:
        raise config.refused("attention_bias", True, f"{family} models have no biases here")
    heads, hidden = config.integer(keys.heads), config.integer(keys.hidden)
    return ModelSpec(
        family=family,
        layers=config.integer(keys.layers),
        hidden=hidden,
        heads=heads,
        kv_heads=config.integer(keys.kv_heads, heads),
        head_dim=config.integer(keys.head_dim, head_dim or hidden // max(1, heads)),
        ffn=config.integer(keys.ffn),
        vocab=config.integer(keys.vocab),
        context_tokens=config.integer(keys.context_tokens, 2048),
        norm_eps=config.number(keys.norm_eps, 1e-6),
        rope=read_rope(config),
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        tied_embeddings=config.flag(keys.tied_embeddings),
        sliding_window_tokens=_shortest_window(config, sliding_window),
    )


def _shortest_window(
    config: StrictKeys, sliding_window: Callable[[StrictKeys], int | None]
) -> int | None:
    """The context is kept within the window, so that all layers attend to everything: which
    layers have a window then makes no difference."""
    kinds = set(config.take("layer_types", []))
    if not kinds <= _ATTENTION_KINDS:
        raise config.refused("layer_types", sorted(kinds - _ATTENTION_KINDS), "unknown attention")
    config.take("max_window_layers")
    return sliding_window(config)


def read_window(config: StrictKeys, default: int | None) -> int | None:
    """`sliding_window` in tokens: `default` where the key is absent, None where it is null."""
    is_stated = config.states("sliding_window")
    window = config.take("sliding_window")
    if not is_stated:
        return default
    if window is None:
        return None
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise config.refused("sliding_window", window, "a number of tokens is expected")
    return window


def read_end_tokens(stated: StrictKeys, default: tuple[int, ...]) -> tuple[int, ...]:
    """`eos_token_id` of config.json or generation_config.json. Raises ConfigError."""
    value = stated.take("eos_token_id")
    if value is None:
        return default
    ids = value if isinstance(value, list) else [value]
    if any(isinstance(token_id, bool) or not isinstance(token_id, int) for token_id in ids):
        raise stated.refused("eos_token_id", value, "a token or a list of tokens is expected")
    return tuple(ids)


def read_rope(config: StrictKeys) -> Rope:
    """Both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`."""
    old, new = config.part("rope_scaling"), config.part("rope_parameters")
    scaling = new if not new.is_empty else old
    if scaling is new and not old.is_empty:
        raise config.refused("rope_scaling", "beside rope_parameters", "state one of the two")
    theta = config.number("rope_theta", 10_000.0)
    theta = scaling.number("rope_theta", theta)
    kinds = (scaling.take("rope_type"), scaling.take("type"))
    kind = kinds[0] or kinds[1] or "default"
    match kind:
        case "default":
            rope = Rope(theta=theta)
        case "linear":
            factor = scaling.number("factor")
            rope = Rope(theta=theta, scaling=RopeScaling.LINEAR, factor=factor)
        case "llama3":
            rope = Rope(
                theta=theta,
                scaling=RopeScaling.LLAMA3,
                factor=scaling.number("factor"),
                low_freq_factor=scaling.number("low_freq_factor"),
                high_freq_factor=scaling.number("high_freq_factor"),
                original_context_tokens=scaling.integer("original_max_position_embeddings"),
            )
        case _:
            raise ConfigError(f"{config.path}: rope scaling {kind!r} is not supported")
    scaling.finish(ROPE)
    return rope
