"""Checkpoints of random weights in each format, written on the spot: for comparing how back ends
multiply them, which needs no real text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.quantised.folders import RECIPES, Parts, Recipe, gptq_parts, write_folder
from benchmarks.quantised.gguf_files import q4_k_m, random_file
from service.config.settings import ModelKind, ModelRef
from service.device.spec import DUMMY_SHAPES
from service.device.weights.dummy import DummyWeights

# `random_file` repeats rows after so many: of a larger vocabulary tokens would be equally likely
_GGUF_VOCAB = 64


@dataclass(frozen=True, slots=True)
class RandomCheckpoint:
    """`write` puts one of a dummy shape, a Llama's, into an empty folder."""

    name: str
    write: Callable[[Path, str], ModelRef]


def desc_act_parts(weight: torch.Tensor) -> Parts:
    """GPTQ's, with inputs in groups at random: other weights, but as random ones."""
    parts = gptq_parts(weight)
    inputs = weight.shape[1]
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
    return {**parts, "g_idx": parts["g_idx"][order]}


def _desc_act() -> Recipe:
    plain = next(one for one in RECIPES if one.config["quant_method"] == "gptq")
    return Recipe(f"{plain.name}, desc_act", {**plain.config, "desc_act": True}, desc_act_parts)


def _folder_of(recipe: Recipe) -> RandomCheckpoint:
    def write(folder: Path, shape: str) -> ModelRef:
        path = write_folder(folder / "model", DummyWeights(shape), recipe)
        return ModelRef(kind=ModelKind.HF_FOLDER, path=str(path), name=recipe.name)

    return RandomCheckpoint(recipe.name, write)


def _gguf(folder: Path, shape: str) -> ModelRef:
    spec = replace(DUMMY_SHAPES[shape], vocab=_GGUF_VOCAB)
    path = random_file(folder / "model.gguf", spec, q4_k_m)
    return ModelRef(kind=ModelKind.GGUF, path=str(path), name=_GGUF_NAME)


_GGUF_NAME = "GGUF Q4_K_M"
RANDOM_CHECKPOINTS = (
    *map(_folder_of, (*RECIPES, _desc_act())),
    RandomCheckpoint(_GGUF_NAME, _gguf),
)
