"""Reads what config.json says of rotary embeddings."""

from __future__ import annotations

from service.config.settings import ConfigError
from service.device.models.config_keys import ROPE
from service.device.rope import longrope_magnitude, yarn_magnitude
from service.device.spec import Rope, RopeScaling
from service.model_files.strict_keys import StrictKeys

_THETA = 10_000.0


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
    theta = config.number("rope_theta", _THETA)
    dims = None
    if in_part:
        share = config.number("partial_rotary_factor", 1.0)
        share = scaling.number("partial_rotary_factor", share)
        dims = int(head_dim * share)
    return rope_of(scaling, theta, context_tokens, original_tokens, dims)


def rope_of(
    scaling: StrictKeys,
    theta: float,
    context_tokens: int,
    original_tokens: int | None = None,
    dims: int | None = None,
) -> Rope:
    """What one object says; every key of it is obeyed or refused. Raises ConfigError."""
    theta = scaling.number("rope_theta", theta)
    kinds = (scaling.take("rope_type"), scaling.take("type"))
    kind = kinds[0] or kinds[1] or "default"
    match kind:
        case "default":
            rope = Rope(theta=theta, dims=dims)
        case "linear":
            factor = scaling.number("factor")
            rope = Rope(theta=theta, dims=dims, scaling=RopeScaling.LINEAR, factor=factor)
        case "llama3":
            rope = Rope(
                theta=theta,
                dims=dims,
                scaling=RopeScaling.LLAMA3,
                factor=scaling.number("factor"),
                low_freq_factor=scaling.number("low_freq_factor"),
                high_freq_factor=scaling.number("high_freq_factor"),
                original_context_tokens=scaling.integer("original_max_position_embeddings"),
            )
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


def _yarn(scaling: StrictKeys, theta: float, context_tokens: int, dims: int | None) -> Rope:
    original = scaling.integer("original_max_position_embeddings", context_tokens)
    factor = scaling.number("factor", context_tokens / original)
    # DeepSeek's two weights stand for a quotient of two magnitudes
    weight = scaling.number("mscale", 0.0)
    weight_of_all = scaling.number("mscale_all_dim", 0.0)
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
        beta_fast=scaling.number("beta_fast", Rope().beta_fast),
        beta_slow=scaling.number("beta_slow", Rope().beta_slow),
        whole_dims=scaling.flag("truncate", True),
    )


def _longrope(
    scaling: StrictKeys,
    theta: float,
    context_tokens: int,
    original: int,
    dims: int,
) -> Rope:
    scaling.take("original_max_position_embeddings")  # the key beside the scaling decides
    factor = scaling.number("factor", context_tokens / original)
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
    values = scaling.take(key)
    if not isinstance(values, list) or not all(
        isinstance(one, int | float) and not isinstance(one, bool) and one > 0 for one in values
    ):
        raise scaling.refused(key, values, "a list of divisors is expected")
    if len(values) != count:
        raise scaling.refused(key, values, f"{count} pairs of a head are rotated")
    return tuple(float(one) for one in values)
