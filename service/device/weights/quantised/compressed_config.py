"""The configuration of compressed-tensors (LLM Compressor): one group of settings for all linear
modules, W4A16 or fp8, and a list of those that were left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.device.weights.quantised.awq import read_names
from service.device.weights.quantised.fp8 import Fp8, read_block
from service.device.weights.quantised.gptq import read_group_size
from service.device.weights.quantised.name_pattern import NamePattern, name_pattern
from service.device.weights.quantised.packed import PackedInt4
from service.device.weights.quantised.scheme import Scheme
from service.model_files.strict_keys import IgnoredKey, StrictKeys

_HOW = IgnoredKey("it is about how the weights were found")
_OFF: tuple[Any, ...] = (None, {}, [], "dense")
_TOP = {
    "version": _HOW,
    "global_compression_ratio": _HOW,
    "quantization_status": IgnoredKey("only whole checkpoints are read", only=("compressed",)),
    "kv_cache_scheme": IgnoredKey("the KV cache is rounded by --kv-dtype only", only=({},)),
    "sparsity_config": IgnoredKey("sparse weights are not read", only=_OFF),
    "transform_config": IgnoredKey("transforms of weights are not read", only=_OFF),
}
_GROUP = {
    "output_activations": IgnoredKey("outputs are not rounded", only=({},)),
}
_SCHEME = {
    "observer": _HOW,
    "observer_kwargs": _HOW,
    "zp_dtype": _HOW,
    "scale_dtype": _HOW,
    "dynamic": IgnoredKey("weights have scales of their own", only=(False,)),
}
_FORMATS = {"pack-quantized": ("int", 4), "float-quantized": ("float", 8)}
_PATTERN = "re:"


def read_compressed(stated: StrictKeys) -> Scheme:
    """From `quantization_config` of quant_method compressed-tensors. Raises ConfigError."""
    kind = stated.text("format") or ""
    if kind not in _FORMATS:
        known = " and ".join(_FORMATS)
        raise stated.refused("format", kind, f"{known} are read")
    left_out = _left_out(stated)
    groups = stated.part("config_groups")
    names = groups.names
    if len(names) != 1:
        raise stated.refused("config_groups", list(names), "one group of settings is read")
    group = groups.part(names[0])
    targets = read_names(group, "targets")
    if targets != ("Linear",):
        raise group.refused("targets", list(targets), "settings of all Linear modules are read")
    own = group.take("format", kind)
    if own != kind:
        raise group.refused("format", own, f"{kind} was stated for the whole")
    weights, inputs = group.part("weights"), group.take("input_activations")
    _expect_numbers(weights, *_FORMATS[kind])
    scheme = (
        _packed(weights, inputs, left_out)
        if kind == "pack-quantized"
        else _floats(weights, inputs, left_out)
    )
    weights.finish(_SCHEME)
    group.finish(_GROUP)
    groups.finish({})
    stated.finish(_TOP)
    return scheme


def _packed(weights: StrictKeys, inputs: Any, left_out: Callable[[str], bool]) -> PackedInt4:
    if inputs:
        raise weights.refused("num_bits", 4, "4-bit weights are read without input_activations")
    strategy = weights.take("strategy", "group")
    if strategy not in ("group", "channel"):
        raise weights.refused("strategy", strategy, "group and channel are read")
    order = weights.take("actorder")
    if order not in (None, False, True, "static", "weight", "dynamic", "group"):
        raise weights.refused("actorder", order, "it is unknown")
    size = read_group_size(weights, -1)
    if strategy == "group" and size == -1:
        raise weights.refused("group_size", size, "groups have a number of inputs")
    weights.take("block_structure")
    return PackedInt4(size, weights.flag("symmetric", True), left_out)


def _floats(weights: StrictKeys, inputs: Any, left_out: Callable[[str], bool]) -> Fp8:
    strategy = weights.take("strategy", "tensor")
    if strategy not in ("tensor", "channel", "block"):
        raise weights.refused("strategy", strategy, "tensor, channel and block are read")
    if not weights.flag("symmetric", True):
        raise weights.refused("symmetric", False, "fp8 has no zero points")
    block = read_block(weights, "block_structure")
    if (strategy == "block") != (block is not None):
        raise weights.refused("block_structure", block, f"the strategy is {strategy}")
    for key in ("group_size", "actorder"):
        value = weights.take(key)
        if value not in (None, -1, False):
            raise weights.refused(key, value, "fp8 weights have no groups of inputs")
    return Fp8(
        mark="weight_scale",
        block=block,
        has_input_scales=isinstance(inputs, dict) and not inputs.get("dynamic", False),
        left_out=left_out,
    )


def _expect_numbers(weights: StrictKeys, kind: str, bits: int) -> None:
    found = (weights.take("type", "int"), weights.integer("num_bits"))
    if found != (kind, bits):
        raise weights.refused("num_bits", found[1], f"{kind} of {bits} bits belongs to this format")


def _left_out(stated: StrictKeys) -> Callable[[str], bool]:
    """Modules by name, or by a pattern after `re:`, as in compressed-tensors. Raises
    ConfigError."""
    names = read_names(stated, "ignore")
    patterns: list[NamePattern] = []
    for name in names:
        if not name.startswith(_PATTERN):
            continue
        pattern = name_pattern(name.removeprefix(_PATTERN))
        if pattern is None:
            raise stated.refused(
                "ignore", name, "expressions are names with .* between; name the modules instead"
            )
        patterns.append(pattern)

    def is_left_out(stem: str) -> bool:
        return stem in names or any(pattern.fits(stem) for pattern in patterns)

    return is_left_out
