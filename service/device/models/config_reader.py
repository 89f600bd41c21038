"""Reads what config.json says in the words that most families share.

Each function takes the keys that it obeys from a `StrictKeys`; an architecture takes those of its
own besides, and whoever opened the file refuses what is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.device.models.rope_reader import read_rope, stretched_context
from service.device.spec import ModelSpec, Rope
from service.model_files.strict_keys import StrictKeys

WINDOW_TOKENS = 4096  # what transformers takes where a file is silent
_FULL, _SLIDING = "full_attention", "sliding_attention"
_WINDOWS_FROM_LAYER = 28


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


Windows = Callable[[StrictKeys, int], tuple[int | None, ...]]


def windows_if_used(config: StrictKeys, layers: int) -> tuple[int | None, ...]:
    """Qwen's: where `use_sliding_window` switches them on, in the layers that `layer_types` names,
    or else in those from `max_window_layers` on."""
    first = config.integer("max_window_layers", _WINDOWS_FROM_LAYER)
    window = window_if_used(config)
    return layer_windows(config, layers, window, lambda layer: layer >= first)


def window_if_used(config: StrictKeys) -> int | None:
    """`sliding_window` in tokens, where `use_sliding_window` switches it on."""
    if config.flag("use_sliding_window"):
        return read_window(config, WINDOW_TOKENS)
    config.take("sliding_window")
    return None


def layer_windows(
    config: StrictKeys, layers: int, window: int | None, is_local: Callable[[int], bool]
) -> tuple[int | None, ...]:
    """The window of each layer: those that `layer_types` names have it, or else those of which
    `is_local` says so. Raises ConfigError."""
    if config.peek("layer_types") is None:
        config.take("layer_types")
        return windows_where(window, [is_local(layer) for layer in range(layers)])
    kinds = config.list_of("layer_types", str)
    unknown = sorted(set(kinds) - {_FULL, _SLIDING})
    if unknown:
        raise config.refused("layer_types", unknown, "unknown attention")
    if len(kinds) != layers:
        raise config.refused("layer_types", kinds, f"{layers} layers need one each")
    if window is None and _SLIDING in kinds:
        raise config.refused("layer_types", kinds, "no window is in effect")
    return windows_where(window, [kind == _SLIDING for kind in kinds])


def windows_where(window: int | None, is_local: Sequence[bool]) -> tuple[int | None, ...]:
    """An entry for each layer; empty where none has a window."""
    if window is None or not any(is_local):
        return ()
    return tuple(window if here else None for here in is_local)


def read_spec(
    config: StrictKeys,
    family: str,
    *,
    keys: ConfigKeys = HF_KEYS,
    head_dim: int | None = None,
    context_tokens: int = 2048,
    norm_eps: float = 1e-6,
    tied_embeddings: bool = False,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    windows: Windows = windows_if_used,
    rope: Callable[[StrictKeys, int, int], Rope] = read_rope,
) -> ModelSpec:
    """The spec without its end tokens. `head_dim`, `context_tokens`, `norm_eps` and
    `tied_embeddings` are the family's where the file is silent, `head_dim` None for hidden / heads.
    `rope` gets the context that the file states and the size of a head. Raises ConfigError."""
    if config.take("attention_bias") and not qkv_bias:
        raise config.refused("attention_bias", True, f"{family} models have no biases here")
    heads, hidden = config.size(keys.heads), config.size(keys.hidden)
    layers = config.size(keys.layers)
    stated_tokens = config.size(keys.context_tokens, context_tokens)
    head_dim = config.size(keys.head_dim, head_dim or hidden // heads)
    if head_dim % 2:
        raise config.refused(keys.head_dim, head_dim, "values of a head are rotated in pairs")
    turns = rope(config, stated_tokens, head_dim)
    return ModelSpec(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=config.size(keys.kv_heads, heads),
        head_dim=head_dim,
        ffn=config.size(keys.ffn),
        vocab=config.size(keys.vocab),
        context_tokens=stretched_context(turns, stated_tokens),
        norm_eps=config.number(keys.norm_eps, norm_eps),
        rope=turns,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        tied_embeddings=config.flag(keys.tied_embeddings, tied_embeddings),
        layer_windows=windows(config, layers),
    )


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
