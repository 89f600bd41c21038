"""Weights from a Hugging Face folder: config.json and one or more safetensors files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from service.config import ConfigError
from service.device.spec import ModelSpec, Rope, RopeScaling

_FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


class SafetensorsWeights:
    """Answers canonical names from the files of one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._spec = _read_spec(self._folder)
        self._files = {path: _open(path) for path in _weight_files(self._folder)}
        self._where = {name: path for path, file in self._files.items() for name in file.keys()}  # noqa: SIM118

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
    path = folder / "config.json"
    config = read_json(path)
    architecture = (config.get("architectures") or ["(none)"])[0]
    family = _FAMILIES.get(architecture)
    if family is None:
        supported = ", ".join(_FAMILIES)
        raise ConfigError(f"{path}: architecture {architecture}; supported are {supported}")

    if family != "qwen2" and config.get("attention_bias"):
        raise ConfigError(f"{path}: attention_bias is not supported for {architecture}")

    def need(key: str) -> int:
        if not isinstance(config.get(key), int):
            raise ConfigError(f"{path} does not state {key}")
        return int(config[key])

    heads, hidden = need("num_attention_heads"), need("hidden_size")
    return ModelSpec(
        family=family,
        layers=need("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        ffn=need("intermediate_size"),
        vocab=need("vocab_size"),
        context_tokens=int(config.get("max_position_embeddings") or 2048),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_read_rope(path, config),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        sliding_window_tokens=_sliding_window(config, family),
        eos_token_ids=_eos(folder, config),
    )


def _sliding_window(config: dict[str, Any], family: str) -> int | None:
    if family != "mistral" and not config.get("use_sliding_window"):
        return None
    window = config.get("sliding_window")
    return None if window is None else int(window)


def _eos(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json knows more (end-of-turn tokens) than config.json."""
    path = folder / "generation_config.json"
    stated = read_json(path).get("eos_token_id") if path.exists() else None
    if stated is None:
        stated = config.get("eos_token_id")
    if stated is None:
        return ()
    return tuple(stated) if isinstance(stated, list) else (int(stated),)


def _read_rope(path: Path, config: dict[str, Any]) -> Rope:
    """Both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    match kind:
        case "default":
            return Rope(theta=theta)
        case "linear":
            factor = float(scaling["factor"])
            return Rope(theta=theta, scaling=RopeScaling.LINEAR, factor=factor)
        case "llama3":
            return Rope(
                theta=theta,
                scaling=RopeScaling.LLAMA3,
                factor=float(scaling["factor"]),
                low_freq_factor=float(scaling["low_freq_factor"]),
                high_freq_factor=float(scaling["high_freq_factor"]),
                original_context_tokens=int(scaling["original_max_position_embeddings"]),
            )
        case _:
            raise ConfigError(f"{path}: rope scaling {kind!r} is not supported")
