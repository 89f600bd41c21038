"""Which attention is taken, and that a choice which cannot work says what to do."""

from __future__ import annotations

import importlib.util
import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import msgspec
import pytest
import torch

from service.config.settings import ConfigError, EngineConfig, ModelKind, ModelRef
from service.device import attention_choice
from service.device.attention.flash_providers import FlashAttention2
from service.device.attention_choice import choose_attention
from service.device.loader import load_executor
from service.device.spec import DUMMY_SHAPES
from telemetry.facts.clock import MonotonicClock
from tests.support.models.parity import Engine

DUMMY = ModelRef(kind=ModelKind.DUMMY, path="tiny", name="dummy:tiny")
TINY = DUMMY_SHAPES["tiny"]
CPU, GPU = torch.device("cpu"), torch.device("cuda")
PROMPTS = [[20, 21, 22, 23, 24], list(range(40, 90))]
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def config(attention: str = "auto") -> EngineConfig:
    return EngineConfig(
        model=DUMMY, executor="torch", attention=attention, dtype="float32", max_seqs=4
    )


def test_a_cpu_gets_torch_unless_asked_otherwise() -> None:
    assert choose_attention(config(), TINY, CPU).attention.capabilities.name == "torch"


def test_an_unavailable_attention_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without Triton is served by torch, and says so; asked for by name it is an error."""
    monkeypatch.setattr(attention_choice.importlib.util, "find_spec", lambda name: None)
    chosen = choose_attention(config(), TINY, GPU)

    assert chosen.attention.capabilities.name == "torch"
    assert chosen.fault is not None
    assert chosen.fault.startswith("not flash: ")
    assert chosen.fault.endswith("; not triton: Triton is not installed")
    with pytest.raises(ConfigError, match="not installed; use --attention torch"):
        choose_attention(config("triton"), TINY, GPU)


def test_the_attention_flag_is_refused_by_executors_other_than_torch() -> None:
    elsewhere = msgspec.structs.replace(config("torch"), executor="auto")
    with pytest.raises(ConfigError, match="add --executor torch"):
        load_executor(elsewhere, MonotonicClock(), lambda stage: None)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "flash-attn-2 does not compute in float32; use --attention auto"),
        ({"dtype": "bfloat16", "kv_dtype": "int8"}, "flash-attn-2 cannot read --kv-dtype int8"),
    ],
)
def test_flash_attention_is_refused_for_what_it_cannot_do(
    change: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*args: object) -> torch.Tensor:
        raise AssertionError("no kernel is called here")

    found = (FlashAttention2(nothing, nothing), "")
    monkeypatch.setattr(attention_choice, "find_provider", lambda: found)
    plain = msgspec.structs.replace(config("flash"), dtype="bfloat16")
    assert choose_attention(plain, TINY, GPU).attention.capabilities.name == "flash-attn-2"
    asked = msgspec.structs.replace(config("flash"), **change)
    with pytest.raises(ConfigError, match=why):
        choose_attention(asked, TINY, GPU)


def test_flash_attention_that_is_not_there_is_refused_with_the_reason() -> None:
    asked = msgspec.structs.replace(config("flash"), dtype="bfloat16")
    with pytest.raises(ConfigError, match="flash-attn-2: No module named"):
        choose_attention(asked, TINY, GPU)


@needs_triton
def test_without_a_gpu_our_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="its kernels need a GPU; use --attention torch"):
        choose_attention(config("triton"), TINY, CPU)


@needs_triton
def test_an_engine_with_our_kernels_writes_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is put together for a server, on a CPU that stands in."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    ours = load_executor(config("triton"), MonotonicClock(), lambda stage: None)
    theirs = load_executor(config("torch"), MonotonicClock(), lambda stage: None)

    assert ours.backend.name == "triton-cpu"
    assert ours.executor.blocks_total > 0
    assert (ours.pipeline_depth, theirs.pipeline_depth) == (2, 1), "only a device overlaps"
    texts = [Engine(one, max_seqs=4).greedy(PROMPTS, 8) for one in (ours, theirs)]
    assert texts[0] == texts[1]
