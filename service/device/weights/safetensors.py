"""Weights from a Hugging Face folder: config.json and one or more safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from service.config.settings import ConfigError
from service.device.models.architecture import Architecture
from service.device.models.config_keys import CONFIG, GENERATION
from service.device.models.config_reader import read_end_tokens
from service.device.models.registry import architecture_of_config
from service.device.models.tensors import (
    BARE_EMBEDDING,
    EMBEDDING,
    HEAD,
    StoredTensor,
    TensorNames,
    check_safetensors,
    is_norm,
    tensor_names,
    without_prefix,
)
from service.device.quantization.kept_kinds import KeptForm
from service.device.quantization.kept_matrix import KeptMatrix
from service.device.spec import ModelSpec
from service.device.weights.quantised.registry import read_scheme
from service.device.weights.quantised.scheme import Module, Scheme, fold
from service.model_files.json_file import read_object
from service.model_files.strict_keys import StrictKeys


class SafetensorsWeights:
    """Answers canonical names from the files of one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._architecture, self._spec, self._scheme = _read(self._folder)
        self._files = {path: _open(path) for path in _weight_files(self._folder)}
        self._where = _places(self._files)
        self._found, self._modules = self._headers()
        self._names = self._spelling()
        self._check()

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def tensor(self, name: str) -> torch.Tensor:
        place = self._names.place(self._spec, name)
        pieces = [self._piece(one, place.axis, place.begin, place.rows) for one in place.stored]
        tensor = pieces[0] if len(pieces) == 1 else torch.stack(pieces)
        if self._architecture.hf_norms_from_one and is_norm(name):
            return tensor.float() + 1.0
        return tensor

    def kept_form(self, name: str) -> KeptForm | None:
        """Implements `KeptSource`; a stack of experts has no form."""
        place = self._names.place(self._spec, name)
        module = self._modules.get(place.stored[0]) if len(place.stored) == 1 else None
        return None if module is None else module.form

    def kept(self, name: str) -> KeptMatrix | None:
        place = self._names.place(self._spec, name)
        if self.kept_form(name) is None:
            return None
        whole = self._module(place.stored[0])
        rows = slice(place.begin, None if place.rows is None else place.begin + place.rows)
        return whole.part(rows, slice(None))

    def _module(self, stored: str) -> KeptMatrix:
        module = self._modules[stored]
        assert self._scheme is not None, "it has modules"

        return self._scheme.read(
            self._folder, module, lambda suffix: self._stored(f"{module.stem}.{suffix}")
        )

    def _piece(self, stored: str, axis: int, begin: int, rows: int | None) -> torch.Tensor:
        """`rows` of a stored tensor along `axis`, or all of it."""
        if stored in self._modules:
            widened = self._module(stored).dequantized()
            return widened if rows is None else widened.narrow(axis, begin, rows)
        return self._stored(stored, axis, begin, rows)

    def _stored(
        self, stored: str, axis: int = 0, begin: int = 0, rows: int | None = None
    ) -> torch.Tensor:
        """As the file has it."""
        path = self._where.get(stored)
        if path is None:
            raise ConfigError(f"{self._folder} has no tensor {stored}")
        file = self._files[path]
        try:
            if rows is None:
                whole: torch.Tensor = file.get_tensor(stored)
                return whole
            cut = (slice(None),) * axis + (slice(begin, begin + rows),)
            part: torch.Tensor = file.get_slice(stored)[cut]
            return part
        except SafetensorError as error:
            raise ConfigError(f"{path}: tensor {stored}: {error}") from error

    def _spelling(self) -> TensorNames:
        """The names that most tensors of the folder have."""

        def found(names: TensorNames) -> int:
            places = (names.place(self._spec, name) for name in tensor_names(self._spec))
            return sum(stored in self._found for place in places for stored in place.stored)

        known = (self._architecture.hf_tensors, *self._architecture.hf_other_tensors)
        if BARE_EMBEDDING in self._where:
            known = tuple(without_prefix(names) for names in known)
        return known[0] if len(known) == 1 else max(known, key=found)

    def _headers(self) -> tuple[dict[str, StoredTensor], dict[str, Module]]:
        """What each file says of its tensors, with quantised modules as the weights that they
        mean, and those by stored name. Raises ConfigError."""
        found: dict[str, StoredTensor] = {}
        for name, path in self._where.items():
            piece = self._files[path].get_slice(name)
            found[name] = StoredTensor(piece.get_dtype(), tuple(piece.get_shape()))
        return (found, {}) if self._scheme is None else fold(self._folder, self._scheme, found)

    def _check(self) -> None:
        """By the headers, which takes no time; a head beside a tied embedding is compared with it.
        Raises ConfigError."""
        found = self._without_empty_biases()
        check_safetensors(self._folder, self._spec, self._names, found)
        stored_head = self._names.stored(HEAD)
        if self._spec.tied_embeddings and stored_head in found:
            head, embedding = self.tensor(HEAD), self.tensor(EMBEDDING)
            if head.dtype != embedding.dtype or not torch.equal(head, embedding):
                raise ConfigError(
                    f"{self._folder}: tensor {stored_head} is not the embedding, although "
                    "tie_word_embeddings is true in config.json; one of the two has to go"
                )

    def _without_empty_biases(self) -> dict[str, StoredTensor]:
        """AutoGPTQ wrote zeros as biases of modules that have none."""
        places = (self._names.place(self._spec, name) for name in tensor_names(self._spec))
        wanted = {stored for place in places for stored in place.stored}
        biases = {f"{module.stem}.bias" for module in self._modules.values()} - wanted
        empty = {bias for bias in biases & self._found.keys() if not bool(self._stored(bias).any())}
        return {name: stored for name, stored in self._found.items() if name not in empty}


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing; fetch the model again") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a whole safetensors file ({error})") from error


def _places(files: Mapping[Path, Any]) -> dict[str, Path]:
    """Which file has a tensor. Raises ConfigError where two have it."""
    found: dict[str, Path] = {}
    for path, file in files.items():
        for name in file.keys():  # noqa: SIM118
            other = found.setdefault(name, path)
            if other is not path:
                raise ConfigError(
                    f"{path}: tensor {name} is in {other.name} too; one of the two files has to go"
                )
    return found


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        shards = read_object(index).get("weight_map")
        if not isinstance(shards, dict):
            raise ConfigError(f"{index} has no weight_map")
        if not all(isinstance(name, str) for name in shards.values()):
            raise ConfigError(f"{index}: weight_map has values that are no names of files")
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


def _read(folder: Path) -> tuple[Architecture, ModelSpec, Scheme | None]:
    """Every key of config.json is obeyed, known to be harmless, or refused. Raises ConfigError."""
    path = folder / "config.json"
    config = StrictKeys(path, read_object(path))
    names = config.list_of("architectures", str) or ["(none)"]
    architecture = architecture_of_config(path, names[0])
    scheme = read_scheme(config)
    spec = architecture.read_config(config, architecture.family)
    spec = replace(spec, eos_token_ids=_end_tokens(folder, config))
    config.finish({**CONFIG, **architecture.ignored_config_keys})
    return architecture, spec, scheme


def _end_tokens(folder: Path, config: StrictKeys) -> tuple[int, ...]:
    """generation_config.json knows more (end-of-turn tokens) than config.json."""
    path = folder / "generation_config.json"
    ends = read_end_tokens(config, ())
    if path.exists():
        generation = StrictKeys(path, read_object(path))
        ends = read_end_tokens(generation, ends)
        generation.finish(GENERATION)
    return ends
