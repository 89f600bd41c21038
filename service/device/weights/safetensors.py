"""Weights from a Hugging Face folder: config.json and one or more safetensors files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from service.config.settings import ConfigError
from service.device.spec import ModelSpec, Rope, RopeScaling
from service.device.weights.config_keys import CONFIG, GENERATION, ROPE
from service.device.weights.inventory import EMBEDDING, HEAD, StoredTensor, check_tensors
from service.model_files.strict_keys import StrictKeys

_FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


# What a key that is not there means, as transformers' classes have it.
_HEAD_DIM = {"qwen3": 128}
_MISTRAL_WINDOW = 4096
_ATTENTION_KINDS = {"full_attention", "sliding_attention"}


class SafetensorsWeights:
    """Answers canonical names from the files of one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._spec = _read_spec(self._folder)
        self._files = {path: _open(path) for path in _weight_files(self._folder)}
        self._where = {name: path for path, file in self._files.items() for name in file.keys()}  # noqa: SIM118
        self._check()

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def tensor(self, name: str) -> torch.Tensor:
        path = self._where.get(name)
        if path is None:
            raise ConfigError(f"{self._folder} has no tensor {name}")
        try:
            tensor: torch.Tensor = self._files[path].get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(f"{path}: tensor {name}: {error}") from error
        return tensor

    def _check(self) -> None:
        """By the headers, which takes no time; a head beside a tied embedding is compared with it.
        Raises ConfigError."""
        found: dict[str, StoredTensor] = {}
        for name, path in self._where.items():
            piece = self._files[path].get_slice(name)
            found[name] = StoredTensor(piece.get_dtype(), tuple(piece.get_shape()))
        check_tensors(self._folder, self._spec, found)
        if self._spec.tied_embeddings and HEAD in found:
            head, embedding = self.tensor(HEAD), self.tensor(EMBEDDING)
            if head.dtype != embedding.dtype or not torch.equal(head, embedding):
                raise ConfigError(
                    f"{self._folder}: tensor {HEAD} is not the embedding, although "
                    "tie_word_embeddings is true in config.json; one of the two has to go"
                )


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing; fetch the model again") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a whole safetensors file ({error})") from error


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise ConfigError(f"{index} has no weight_map")
        return [folder / name for name in sorted(set(shards.values()))]
    single = folder / "model.safetensors"
    if single.exists():
        return [single]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise ConfigError(
            f"{folder} has no safetensors file (weights in other formats are not loaded)"
        )
    return found


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return value


def _read_spec(folder: Path) -> ModelSpec:
    """Every key of config.json is obeyed, known to be harmless, or refused."""
    path = folder / "config.json"
    config = StrictKeys(path, read_json(path))
    architecture = (config.take("architectures") or ["(none)"])[0]
    family = _FAMILIES.get(architecture)
    if family is None:
        supported = ", ".join(_FAMILIES)
        raise ConfigError(f"{path}: architecture {architecture}; supported are {supported}")
    _refuse_quantised(config)
    if config.take("attention_bias") and family != "qwen2":
        raise ConfigError(f"{path}: attention_bias is not supported for {architecture}")
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    spec = ModelSpec(
        family=family,
        layers=config.integer("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", _HEAD_DIM.get(family, hidden // max(1, heads))),
        ffn=config.integer("intermediate_size"),
        vocab=config.integer("vocab_size"),
        context_tokens=config.integer("max_position_embeddings", 2048),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=_read_rope(config),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tied_embeddings=config.flag("tie_word_embeddings"),
        sliding_window_tokens=_sliding_window(config, family),
        eos_token_ids=_eos(folder, config),
    )
    config.finish(CONFIG)
    return spec


def _refuse_quantised(config: StrictKeys) -> None:
    for key in ("quantization_config", "compression_config"):
        stated = config.take(key)
        if stated:
            method = stated.get("quant_method") if isinstance(stated, dict) else None
            raise ConfigError(
                f"{config.path}: {key}: weights quantised by {method or 'an unknown method'} are "
                "not supported; use the unquantised checkpoint, and --weights to quantise it"
            )


def _sliding_window(config: StrictKeys, family: str) -> int | None:
    """The shortest of any layer: whoever chooses the context stays within it, so that all layers
    attend to everything. Which layers have one then makes no difference."""
    kinds = set(config.take("layer_types", []))
    if not kinds <= _ATTENTION_KINDS:
        raise config.refused("layer_types", sorted(kinds - _ATTENTION_KINDS), "unknown attention")
    config.take("max_window_layers")
    is_used = config.flag("use_sliding_window", family == "mistral")
    is_told = config.states("sliding_window")
    window = config.take("sliding_window")
    if family == "mistral":
        window = window if is_told else _MISTRAL_WINDOW
    elif not is_used:
        return None
    if window is None:
        return None
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise config.refused("sliding_window", window, "a number of tokens is expected")
    return window


def _ids(stated: StrictKeys, default: tuple[int, ...]) -> tuple[int, ...]:
    """Raises ConfigError."""
    value = stated.take("eos_token_id")
    if value is None:
        return default
    ids = value if isinstance(value, list) else [value]
    if any(isinstance(token_id, bool) or not isinstance(token_id, int) for token_id in ids):
        raise stated.refused("eos_token_id", value, "a token or a list of tokens is expected")
    return tuple(ids)


def _eos(folder: Path, config: StrictKeys) -> tuple[int, ...]:
    """generation_config.json knows more (end-of-turn tokens) than config.json."""
    path = folder / "generation_config.json"
    ends = _ids(config, ())
    if path.exists():
        generation = StrictKeys(path, read_json(path))
        ends = _ids(generation, ends)
        generation.finish(GENERATION)
    return ends


def _read_rope(config: StrictKeys) -> Rope:
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
