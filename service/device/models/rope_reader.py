"""Reads what config.json says of rotary embeddings."""

from __future__ import annotations

import math

from service.config.settings import ConfigError
from service.device.models.config_keys import ROPE
from service.device.rope import longrope_magnitude, yarn_magnitude
from service.device.spec import Rope, RopeScaling
from service.model_files.strict_keys import StrictKeys

_THETA = 10_000.0
_SHARE = "partial_rotary_factor"
_ORIGINAL = "original_max_position_embeddings"


def read_rope(
    config: StrictKeys,
    context_tokens: int,
    head_dim: int,
    *,
    original_tokens: int | None = None,
    in_part: bool = False,
) -> Rope:
    """Both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`.

    `context_tokens` is the context that the file states. LongRoPE is obeyed with `original_tokens`,
    the context of before, and a `partial_rotary_factor` with `in_part`. Raises ConfigError.
    """
    old, new = config.part("rope_scaling"), config.part("rope_parameters")
    scaling = new if not new.is_empty else old
    if scaling is new and not old.is_empty:
        raise config.refused("rope_scaling", "beside rope_parameters", "state one of the two")
    theta = config.positive("rope_theta", _THETA)
    dims = _rotated_dims(config, scaling, head_dim) if in_part else None
    return rope_of(scaling, theta, context_tokens, original_tokens, dims)


def _rotated_dims(config: StrictKeys, scaling: StrictKeys, head_dim: int) -> int:
    """Values of a head that `partial_rotary_factor` says. Raises ConfigError."""
    stated = scaling if scaling.states(_SHARE) else config
    share = scaling.number(_SHARE, config.number(_SHARE, 1.0))
    dims = int(head_dim * share) if 0 < share <= 1 else 0
    if dims == 0 or dims % 2:
        raise stated.refused(
            _SHARE, share, f"a share of a head's {head_dim} values that are pairs is expected"
        )
    return dims


def rope_of(
    scaling: StrictKeys,
    theta: float,
    context_tokens: int,
    original_tokens: int | None = None,
    dims: int | None = None,
) -> Rope:
    """What one object says; every key of it is obeyed or refused. Raises ConfigError."""
    theta = scaling.positive("rope_theta", theta)
    kinds = (scaling.take("rope_type"), scaling.take("type"))
    kind = kinds[0] or kinds[1] or "default"
    match kind:
        case "default":
            rope = Rope(theta=theta, dims=dims)
        case "linear":
            factor = scaling.positive("factor")
            rope = Rope(theta=theta, dims=dims, scaling=RopeScaling.LINEAR, factor=factor)
        case "llama3":
            rope = _llama3(scaling, theta, dims)
        case "yarn":
            rope = _yarn(scaling, theta, context_tokens, dims)
        case "longrope" | "su" if original_tokens is not None and dims is not None:
            rope = _longrope(scaling, theta, context_tokens, original_tokens, dims)
        case _:
            raise ConfigError(f"{scaling.path}: rope scaling {kind!r} is not supported")
    scaling.finish(ROPE)
    return rope


def stretched_context(rope: Rope, context_tokens: int) -> int:
    """In tokens: files with YaRN often state the context of before."""
    if rope.scaling is not RopeScaling.YARN:
        return context_tokens
    return max(context_tokens, int(rope.original_context_tokens * rope.factor))


def _llama3(scaling: StrictKeys, theta: float, dims: int | None) -> Rope:
    low, high = scaling.positive("low_freq_factor"), scaling.positive("high_freq_factor")
    if high <= low:
        raise scaling.refused("high_freq_factor", high, f"low_freq_factor is {low}")
    return Rope(
        theta=theta,
        dims=dims,
        scaling=RopeScaling.LLAMA3,
        factor=scaling.positive("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context_tokens=scaling.size(_ORIGINAL),
    )


def _yarn(scaling: StrictKeys, theta: float, context_tokens: int, dims: int | None) -> Rope:
    if theta <= 1:
        raise scaling.refused("rope_theta", theta, "YaRN has a base above 1")
    original = scaling.size(_ORIGINAL, context_tokens)
    factor = scaling.positive("factor", context_tokens / original)
    # DeepSeek's two weights stand for a quotient of two magnitudes
    weight, weight_of_all = (scaling.number(key, 0.0) for key in ("mscale", "mscale_all_dim"))
    if min(weight, weight_of_all) < 0:
        raise scaling.refused("mscale", weight, "a number from 0 on is expected")
    magnitude = yarn_magnitude(factor)
    if weight and weight_of_all:
        magnitude = yarn_magnitude(factor, weight) / yarn_magnitude(factor, weight_of_all)
    return Rope(
        theta=theta,
        dims=dims,
        scaling=RopeScaling.YARN,
        factor=factor,
        original_context_tokens=original,
        magnitude=scaling.number("attention_factor", magnitude),
        beta_fast=scaling.positive("beta_fast", Rope().beta_fast),
        beta_slow=scaling.positive("beta_slow", Rope().beta_slow),
        whole_dims=scaling.flag("truncate", True),
    )


def _longrope(
    scaling: StrictKeys,
    theta: float,
    context_tokens: int,
    original: int,
    dims: int,
) -> Rope:
    scaling.take(_ORIGINAL)  # the key beside the scaling decides
    factor = scaling.positive("factor", context_tokens / original)
    return Rope(
        theta=theta,
        dims=dims,
        scaling=RopeScaling.LONGROPE,
        original_context_tokens=original,
        magnitude=scaling.number("attention_factor", longrope_magnitude(factor, original)),
        short_divisors=_divisors(scaling, "short_factor", dims // 2),
        long_divisors=_divisors(scaling, "long_factor", dims // 2),
    )


def _divisors(scaling: StrictKeys, key: str, count: int) -> tuple[float, ...]:
    values = scaling.list_of(key, int, float)
    if not all(0 < one < math.inf for one in values):
        raise scaling.refused(key, values, "divisors are above 0")
    if len(values) != count:
        raise scaling.refused(key, values, f"{count} pairs of a head are rotated")
    return tuple(float(one) for one in values)
