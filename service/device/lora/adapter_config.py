"""Reads adapter_config.json: every key is obeyed, known not to matter, or refused by name.

Names are those that PEFT gives to modules, `model.layers.0.self_attn.q_proj`. Regular expressions
of a file are never run, since some take for ever: `target_modules` as an expression is left to the
tensors, which say what it chose, and patterns of ranks and alphas must be plain names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.model_files.strict_keys import IgnoredKey, StrictKeys

_PLAIN_NAME = re.compile(r"\^?[\w.]+")
_LAYER_INDEX = re.compile(r"model\.layers\.(\d+)\.")
_ALL_LINEAR = "all-linear"
_MOST_FLOAT32 = 3.4028234663852886e38

_DESCRIBES = IgnoredKey("it describes the file, not the adapter")
_TRAINING = IgnoredKey("it is of training")
_NOT_READ = IgnoredKey("it belongs to another key, which decides")


def _off(what: str) -> IgnoredKey:
    return IgnoredKey(f"{what} cannot be computed here", only=(False, 0, "", [], {}))


_IGNORED: dict[str, IgnoredKey] = {
    **dict.fromkeys(
        ("auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "peft_version"),
        _DESCRIBES,
    ),
    **dict.fromkeys(("lora_dropout", "runtime_config", "eva_config", "velora_config"), _TRAINING),
    **dict.fromkeys(
        ("megatron_core", "corda_config", "lora_ga_config", "qalora_group_size"), _NOT_READ
    ),
    "ensure_weight_tying": IgnoredKey("no embedding is part of an adapter here"),
    "peft_type": IgnoredKey("adapters here are LoRA", only=("LORA",)),
    "task_type": IgnoredKey("models here generate text", only=("CAUSAL_LM",)),
    "bias": IgnoredKey("biases cannot be part of an adapter here", only=("none",)),
    "init_lora_weights": IgnoredKey(
        "PEFT changes the base model's weights for it; let PEFT convert the adapter to plain LoRA "
        "when it saves (path_initial_model_for_weight_conversion)",
        only=(True, False, "gaussian", "eva", "orthogonal"),
    ),
    "fan_in_fan_out": _off("a weight that is stored the other way round"),
    "use_dora": _off("DoRA, whose magnitudes need the merged weight,"),
    "lora_bias": _off("a bias of lora_B"),
    "modules_to_save": _off("a module that is replaced whole"),
    "trainable_token_indices": _off("an embedding of the adapter's own"),
    "target_parameters": _off("LoRA of a parameter that is no linear layer's weight"),
    "layer_replication": _off("a stack of repeated layers"),
    "loftq_config": _off("a base model that LoftQ has changed"),
    "megatron_config": _off("a Megatron layer"),
    "use_qalora": _off("QA-LoRA"),
    "alora_invocation_tokens": _off("an adapter that begins at a token (aLoRA)"),
    "arrow_config": _off("a choice among adapters by token (Arrow)"),
    "use_bdlora": _off("a block-diagonal LoRA"),
    "kasa_config": _off("KaSA, which changes the base model,"),
    "monteclora_config": _off("weights that are sampled"),
}


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What adapter_config.json says. `targets` is None for a regular expression."""

    path: Path
    rank: int
    alpha: float
    by_root: bool  # rank-stabilised: alpha / sqrt(rank)
    targets: tuple[str, ...] | None
    excluded: tuple[str, ...]
    layers: frozenset[int] | None
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def is_targeted(self, name: str) -> bool | None:
        """Whether PEFT gives the module an adapter; None where only the tensors can say."""
        if _ends_with_any(name, self.excluded):
            return False
        if self.targets is None:
            return None
        if self.targets != (_ALL_LINEAR,) and not _ends_with_any(name, self.targets):
            return False
        if self.layers is None:
            return True
        found = _LAYER_INDEX.match(name)
        return found is not None and int(found[1]) in self.layers

    def rank_of(self, name: str) -> int:
        return self.ranks.get(_pattern_of(name, self.ranks), self.rank)

    def scale_of(self, name: str) -> float:
        """By which the module's low-rank product is multiplied."""
        alpha = self.alphas.get(_pattern_of(name, self.alphas), self.alpha)
        rank = self.rank_of(name)
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def read_adapter_config(path: Path, values: Mapping[str, Any], most_rank: int) -> AdapterConfig:
    """Raises ConfigError."""
    keys = StrictKeys(path, values)
    if keys.peek("peft_type") is None:
        raise keys.refused("peft_type", None, "this is no adapter of PEFT's")
    keys.take("layers_pattern")  # layers are called `layers` in every family here
    config = AdapterConfig(
        path=path,
        rank=_rank(keys, "r", keys.integer("r"), most_rank),
        alpha=_alpha(keys),
        by_root=keys.flag("use_rslora"),
        targets=_targets(keys),
        excluded=_names(keys, "exclude_modules"),
        layers=_layers(keys),
        ranks={
            name: _rank(keys, "rank_pattern", value, most_rank)
            for name, value in _pattern(keys, "rank_pattern").items()
        },
        alphas=_pattern(keys, "alpha_pattern"),
    )
    keys.finish(_IGNORED)
    return config


def _alpha(keys: StrictKeys) -> float:
    _require_finite(keys, "lora_alpha", keys.peek("lora_alpha"))
    return keys.number("lora_alpha")


def _require_finite(keys: StrictKeys, key: str, value: object) -> None:
    """Where it is a number: one of float32, in which scales are kept. JSON as Python reads it has
    NaN and Infinity, and one of them would be in every logit."""
    if isinstance(value, int | float) and not abs(value) <= _MOST_FLOAT32:
        raise keys.refused(key, value, "a number that float32 can hold is expected")


def _rank(keys: StrictKeys, key: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
        raise keys.refused(key, value, f"a rank from 1 to {most} is expected")
    return value


def _targets(keys: StrictKeys) -> tuple[str, ...] | None:
    """Names; None for an expression."""
    value = keys.peek("target_modules")
    if value is None:
        raise keys.refused("target_modules", None, "names of modules are expected")
    if isinstance(value, str):
        keys.take("target_modules")
        return (value,) if value == _ALL_LINEAR else None
    return _names(keys, "target_modules")


def _names(keys: StrictKeys, key: str) -> tuple[str, ...]:
    value = keys.take(key, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise keys.refused(key, value, "a list of names is expected")
    return tuple(sorted(value))


def _layers(keys: StrictKeys) -> frozenset[int] | None:
    value = keys.take("layers_to_transform")
    if value is None:
        return None
    layers = value if isinstance(value, list) else [value]
    if any(isinstance(one, bool) or not isinstance(one, int) for one in layers):
        raise keys.refused("layers_to_transform", value, "numbers of layers are expected")
    return frozenset(layers)


def _pattern(keys: StrictKeys, key: str) -> dict[str, Any]:
    """Names, or ends of names, with a number each."""
    value = keys.take(key, {})
    if not isinstance(value, dict):
        raise keys.refused(key, value, "an object of numbers by name is expected")
    for name, number in value.items():
        if _PLAIN_NAME.fullmatch(name) is None:
            raise keys.refused(key, name, "an expression is not run here; name each module")
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise keys.refused(f"{key}.{name}", number, "a number is expected")
        _require_finite(keys, f"{key}.{name}", number)
    return value


def _pattern_of(name: str, patterns: Mapping[str, Any]) -> str:
    """The first that fits, as in PEFT; the name itself where none does."""
    for pattern in patterns:
        whole = pattern.removeprefix("^")
        if name == whole or (whole == pattern and name.endswith(f".{pattern}")):
            return pattern
    return name


def _ends_with_any(name: str, ends: tuple[str, ...]) -> bool:
    return any(name == end or name.endswith(f".{end}") for end in ends)
