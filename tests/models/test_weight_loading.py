"""How weights come into the native decoder: few of them in memory at once, none for nothing, and
another executor where the library cannot be had."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device import backends
from service.device.loader import load_executor
from service.device.models.tensors import tensor_names
from service.device.native import decoder as native_decoder
from service.device.native.decoder import NativeDecoder
from service.device.native.library import Library, MatrixName, NumberKind, load_library
from service.device.weights.dummy import DummyWeights
from service.device.weights.gguf import GgufWeights
from service.model_files.gguf_file import GgufFile
from telemetry.facts.clock import MonotonicClock
from tests.models.test_gguf_blocks import MIXES, WIDE, write_model
from tests.support.models.kept_logits import native_logits, torch_logits

TINY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="tiny")
MOST_AHEAD = 2
A_WHILE_S = 0.5


class CountedWeights(DummyWeights):
    """Counts the matrices of the library that were read: queries, keys and values are one."""

    def __init__(self) -> None:
        super().__init__("tiny")
        self.matrices = 0
        self.too_many = threading.Event()

    def tensor(self, name: str) -> torch.Tensor:
        if "norm" not in name and "k_proj" not in name and "v_proj" not in name:
            self.matrices += 1
            if self.matrices > 1 + MOST_AHEAD:
                self.too_many.set()
        return super().tensor(name)


def load(weights: DummyWeights) -> NativeDecoder:
    return NativeDecoder(
        weights, 256, NumberKind.FLOAT32, NumberKind.FLOAT32, torch.float32, threads=1
    )


def with_library(monkeypatch: pytest.MonkeyPatch, kind: type[Library]) -> None:
    """The decoder's library is a `kind`."""

    def load_as(config: Any, progress: Any) -> Library:
        library = load_library(config, progress)
        library.__class__ = kind
        return library

    monkeypatch.setattr(native_decoder, "load_library", load_as)


def test_while_a_matrix_is_packed_at_most_two_more_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is in memory as floats, and a large model's would not fit."""
    weights = CountedWeights()
    seen: list[bool] = []

    class Held(Library):
        def set_matrix(
            self,
            layer: int,
            name: MatrixName,
            weight: torch.Tensor,
            bias: torch.Tensor | None = None,
        ) -> None:
            if not seen:
                seen.append(weights.too_many.wait(A_WHILE_S))
            super().set_matrix(layer, name, weight, bias)

    with_library(monkeypatch, Held)
    load(weights)
    assert seen == [False]
    assert weights.matrices == 1 + 5 * weights.spec.layers


def test_the_first_matrix_that_cannot_be_packed_ends_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for the rest of a large model to be read."""
    weights = CountedWeights()

    class Full(Library):
        def set_matrix(
            self,
            layer: int,
            name: MatrixName,
            weight: torch.Tensor,
            bias: torch.Tensor | None = None,
        ) -> None:
            raise MemoryError("native decoder: out of memory")

    with_library(monkeypatch, Full)
    with pytest.raises(MemoryError, match="out of memory"):
        load(weights)
    assert weights.matrices <= 1 + MOST_AHEAD


# --- what is read ahead ---


@pytest.fixture
def floats(monkeypatch: pytest.MonkeyPatch) -> dict[str, weakref.ref[NDArray[np.float32]]]:
    """Every tensor that was made into floats, by its stored name."""
    found: dict[str, weakref.ref[NDArray[np.float32]]] = {}
    whole = GgufFile.load

    def noted(file: GgufFile, name: str, order: Any = None) -> NDArray[np.float32]:
        made = whole(file, name, order)
        found[name] = weakref.ref(made)
        return made

    monkeypatch.setattr(GgufFile, "load", noted)
    return found


def readers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("phasescope-weights")]


def test_a_matrix_that_a_back_end_keeps_is_never_dequantised(
    tmp_path: Path, floats: dict[str, weakref.ref[NDArray[np.float32]]]
) -> None:
    source = GgufWeights(str(write_model(tmp_path / "model.gguf", MIXES["Q4_K_M"])))
    native_logits(source, 3)
    assert {name for name in floats if "norm" not in name} == set()
    assert len(floats) == sum("norm" in name for name in tensor_names(WIDE))


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q4_K_M, keys in F16"])
@pytest.mark.parametrize("logits_of", [native_logits, lambda s, n: torch_logits(s, "auto", n)])
def test_nothing_read_ahead_is_left_after_the_last_layer(
    mix: str,
    logits_of: Any,
    tmp_path: Path,
    floats: dict[str, weakref.ref[NDArray[np.float32]]],
) -> None:
    """Though the source lives as long as the engine."""
    source = GgufWeights(str(write_model(tmp_path / "model.gguf", MIXES[mix])))
    logits_of(source, 3)
    gc.collect()

    assert floats
    assert [name for name, made in floats.items() if made() is not None] == []
    assert readers() == []


def test_the_next_layer_is_read_while_one_is_converted(
    tmp_path: Path, floats: dict[str, weakref.ref[NDArray[np.float32]]]
) -> None:
    source = GgufWeights(str(write_model(tmp_path / "model.gguf", MIXES["Q4_K_M"])))
    source.begin_reading(())
    source.tensor("model.layers.0.input_layernorm.weight")
    assert len(readers()) == 1
    source.end_reading()
    assert readers() == []
    assert source.tensor("model.layers.1.input_layernorm.weight").shape == (WIDE.hidden,)


# --- a library that cannot be had ---


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"XDG_CACHE_HOME": "{file}"}, "Not a directory"),
        ({"XDG_CACHE_HOME": "", "HOME": "~"}, "home directory"),
        ({"XDG_CACHE_HOME": "{folder}", "CXX": "{compiler}"}, "file too short"),
    ],
    ids=["a cache that cannot be written", "no home", "a file that cannot be loaded"],
)
def test_without_the_library_auto_serves_with_another_executor_and_says_why(
    environment: dict[str, str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And native, which was asked for by name, is refused in one line."""
    (tmp_path / "file").write_text("no folder")
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    compiler.chmod(0o755)
    places = {"file": tmp_path / "file", "folder": tmp_path / "cache", "compiler": compiler}
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(**places))
    monkeypatch.setattr(backends, "cpu_multiplies_bf16", lambda: False)

    loaded = load_executor(EngineConfig(model=TINY), MonotonicClock(), lambda stage: None)
    assert not loaded.backend.name.startswith("native")
    assert why in loaded.backend.name
    with pytest.raises(ConfigError, match=f"--executor native: .*{why}") as caught:
        load_executor(
            EngineConfig(model=TINY, executor="native"), MonotonicClock(), lambda stage: None
        )
    assert "\n" not in str(caught.value)
