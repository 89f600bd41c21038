"""Reads an adapter in PEFT's format: adapter_config.json and adapter_model.safetensors.

Every tensor is consumed or refused by name, and so is a module that the configuration targets and
the file lacks. Nothing pickled is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from service.config.settings import ConfigError
from service.config.sizes import format_bytes
from service.device.lora.adapter_config import AdapterConfig, read_adapter_config
from service.device.lora.weights import (
    AdapterWeights,
    LowRank,
    Module,
    module_inputs,
    module_parts,
)
from service.device.spec import ModelSpec
from service.model_files.json_file import read_object
from service.model_files.strict_keys import refuse_tensors

MOST_RANK = 256
MOST_BYTES = 2 << 30
_MOST_CONFIG_BYTES = 1 << 20
_CONFIG, _WEIGHTS, _PICKLED = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
_FLOATS = ("F64", "F32", "F16", "BF16")
_TENSOR = re.compile(r"base_model\.model\.(model\.layers\.(\d+)\.(.+))\.lora_([AB])\.weight")

# PEFT's names of modules within a layer, and which parts of which fused matrix they are.
_SEPARATE = {
    "self_attn.q_proj": (Module.QKV, (0,)),
    "self_attn.k_proj": (Module.QKV, (1,)),
    "self_attn.v_proj": (Module.QKV, (2,)),
    "self_attn.o_proj": (Module.OUT, (0,)),
    "mlp.gate_proj": (Module.GATE_UP, (0,)),
    "mlp.up_proj": (Module.GATE_UP, (1,)),
    "mlp.down_proj": (Module.DOWN, (0,)),
}
_FUSED = {
    "self_attn.qkv_proj": (Module.QKV, (0, 1, 2)),
    "mlp.gate_up_proj": (Module.GATE_UP, (0, 1)),
}
_MODULES = _SEPARATE | _FUSED
_ATTENTION = (Module.QKV, Module.OUT)  # what adapters may change where there are experts


def read_adapter(
    path: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    most_rank: int = MOST_RANK,
    most_bytes: int = MOST_BYTES,
) -> AdapterWeights:
    """The adapter in folder `path` for a base model of `spec`, its numbers rounded to `dtype`
    (bfloat16 or float32). May be called by any thread and touches no device. Raises ConfigError
    with one line that says what is refused and what to do."""
    config = read_adapter_config(path / _CONFIG, _read_json(path / _CONFIG), most_rank)
    file = _open(path, most_bytes)
    found = _modules_of(path / _WEIGHTS, file, spec)
    _check_targets(config, spec, found)
    layers: list[Mapping[Module, LowRank]] = []
    reader = _Reader(path / _WEIGHTS, file, config, spec, dtype)
    for layer in range(spec.layers):
        names = [name for name in _MODULES if (layer, name) in found]
        layers.append(
            {
                module: reader.low_rank(layer, module, names)
                for module in Module
                if any(_MODULES[name][0] is module for name in names)
            }
        )
    targeted = {name.rsplit(".", 1)[-1] for _, name in found}
    return AdapterWeights(dtype, tuple(layers), tuple(sorted(targeted)))


class _Reader:
    """Makes the fused low-rank matrices of one file."""

    def __init__(
        self, path: Path, file: Any, config: AdapterConfig, spec: ModelSpec, dtype: torch.dtype
    ) -> None:
        self._path, self._file, self._config = path, file, config
        self._spec, self._dtype = spec, dtype

    def low_rank(self, layer: int, module: Module, names: list[str]) -> LowRank:
        """Of those of the layer's modules `names` that belong to `module`. Raises ConfigError."""
        sizes = module_parts(self._spec, module)
        parts: list[tuple[torch.Tensor, torch.Tensor, float] | None] = [None] * len(sizes)
        for name in names:
            if _MODULES[name][0] is not module:
                continue
            places = _MODULES[name][1]
            down, up, scale = self._module(layer, name)
            pieces = torch.split(up, [sizes[place] for place in places])
            for place, piece in zip(places, pieces, strict=True):
                parts[place] = down, piece, scale
        rank = max(len(part[0]) for part in parts if part is not None)
        down = torch.zeros((len(sizes), rank, module_inputs(self._spec, module)))
        up = torch.zeros((sum(sizes), rank))
        scales = torch.zeros((len(sizes), rank))
        outs = torch.split(up, list(sizes))
        for place, (part, outputs) in enumerate(zip(parts, outs, strict=True)):
            if part is not None:
                own = len(part[0])
                down[place, :own] = part[0]
                outputs[:, :own] = part[1]
                scales[place, :own] = part[2]
        return LowRank(down.flatten(0, 1).to(self._dtype), up.to(self._dtype), scales.flatten())

    def _module(self, layer: int, name: str) -> tuple[torch.Tensor, torch.Tensor, float]:
        """A [rank, in], B [out, rank], both as in the file, and their scale."""
        whole = f"model.layers.{layer}.{name}"
        module, places = _MODULES[name]
        outputs = sum(module_parts(self._spec, module)[place] for place in places)
        rank = self._config.rank_of(whole)
        down = self._tensor(f"{whole}.lora_A", (rank, module_inputs(self._spec, module)))
        up = self._tensor(f"{whole}.lora_B", (outputs, rank))
        return down, up, self._config.scale_of(whole)

    def _tensor(self, stem: str, shape: tuple[int, ...]) -> torch.Tensor:
        name = f"base_model.model.{stem}.weight"
        piece = self._file.get_slice(name)
        if piece.get_dtype() not in _FLOATS:
            raise ConfigError(
                f"{self._path}: tensor {name} is {piece.get_dtype()}; save the adapter in float32 "
                "or bfloat16"
            )
        if tuple(piece.get_shape()) != shape:
            raise ConfigError(
                f"{self._path}: tensor {name} has shape {list(piece.get_shape())}, expected "
                f"{list(shape)}; it is of another base model, or of another rank than "
                f"{_CONFIG} says"
            )
        try:
            tensor: torch.Tensor = self._file.get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(f"{self._path}: tensor {name}: {error}") from error
        if not bool(tensor.to(self._dtype).isfinite().all()):
            raise ConfigError(f"{self._path}: tensor {name} has numbers that are not finite")
        return tensor.float()


def _modules_of(path: Path, file: Any, spec: ModelSpec) -> set[tuple[int, str]]:
    """Layer and name of each module with tensors; both of A and B are there. Raises ConfigError."""
    sides: dict[tuple[int, str], set[str]] = {}
    strange: list[str] = []
    for name in file.keys():  # noqa: SIM118
        found = _TENSOR.fullmatch(name)
        if found is None or not _has(spec, found[3]) or int(found[2]) >= spec.layers:
            strange.append(name)
        else:
            sides.setdefault((int(found[2]), found[3]), set()).add(found[4])
    known = ", ".join(sorted(name.rsplit(".", 1)[-1] for name in _SEPARATE if _has(spec, name)))
    refuse_tensors(
        path, strange, f"adapters here have lora_A and lora_B of {known} in {spec.layers} layers"
    )
    for (layer, name), have in sides.items():
        if have != {"A", "B"}:
            missing = "B" if "A" in have else "A"
            raise ConfigError(
                f"{path} has no tensor base_model.model.model.layers.{layer}.{name}.lora_{missing}"
                ".weight; save the adapter again"
            )
    if not sides:
        raise ConfigError(f"{path} has no tensors; save the adapter again")
    return set(sides)


def _check_targets(config: AdapterConfig, spec: ModelSpec, found: set[tuple[int, str]]) -> None:
    """What PEFT gives an adapter has one, and nothing else has. Raises ConfigError."""
    is_fused = any(name in _FUSED for _, name in found)
    for layer, name in _all_modules(spec, is_fused):
        whole = f"model.layers.{layer}.{name}"
        targeted, has = config.is_targeted(whole), (layer, name) in found
        if targeted is None or targeted == has:
            continue
        what = "targets" if targeted else "does not target"
        but = "has no tensors of it" if targeted else "has tensors of it"
        raise ConfigError(f"{config.path} {what} {whole}, but {_WEIGHTS} {but}; save it again")


def _all_modules(spec: ModelSpec, is_fused: bool) -> Iterator[tuple[int, str]]:
    """As a family names them that has fused matrices in its files, or separate ones."""
    fused = {_FUSED[name][0] for name in _FUSED} if is_fused else set()
    names = [name for name, (module, _) in _SEPARATE.items() if module not in fused]
    for layer in range(spec.layers):
        for name in (*names, *(_FUSED if is_fused else ())):
            if _has(spec, name):
                yield layer, name


def _has(spec: ModelSpec, name: str) -> bool:
    """Whether a module of that name may have an adapter."""
    found = _MODULES.get(name)
    return found is not None and (spec.experts is None or found[0] in _ATTENTION)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path} is missing; give the folder that PEFT's save_pretrained wrote")
    if path.stat().st_size > _MOST_CONFIG_BYTES:
        raise ConfigError(f"{path} is larger than {format_bytes(_MOST_CONFIG_BYTES)}")
    return read_object(path)


def _open(folder: Path, most_bytes: int) -> Any:
    path = folder / _WEIGHTS
    if not path.is_file():
        if (folder / _PICKLED).exists():
            raise ConfigError(
                f"{folder / _PICKLED} is pickled and is never opened; load it with PEFT and save "
                "it with safe_serialization=True"
            )
        raise ConfigError(f"{path} is missing; give the folder that PEFT's save_pretrained wrote")
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise ConfigError(
                f"{path} has {size} bytes, at most {format_bytes(most_bytes)} are read; "
                "save it in bfloat16 or with a lower rank"
            )
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a whole safetensors file ({error})") from error
