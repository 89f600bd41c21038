"""Defaults depend on the hardware: on a GPU they are those of vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.config.hardware import CPU, Hardware, find_hardware, first_gpu, torch_has_cuda
from service.config.resolve import Source, resolve
from tests.support.models.fake_nvml import loaded

GIB = 1 << 30


def sizes(hardware: Hardware) -> tuple[int, int, Source]:
    found = resolve({}, {}, lambda device: hardware)
    seqs = found.settings["max_num_seqs"]
    return seqs.value, found["max_batched_tokens"], seqs.source


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        (CPU, (64, 512, Source.DEFAULT)),
        (Hardware("NVIDIA L4", 24 * GIB), (256, 2048, Source.HARDWARE)),
        (Hardware("NVIDIA A100-SXM4-80GB", 80 * GIB), (256, 2048, Source.HARDWARE)),
        (Hardware("NVIDIA H100 80GB HBM3", 80 * GIB), (256, 8192, Source.HARDWARE)),
    ],
)
def test_defaults_of_a_machine(hardware: Hardware, expected: tuple[int, int, Source]) -> None:
    assert sizes(hardware) == expected


def test_the_gpu_is_named_as_source_where_its_default_is_used() -> None:
    found = resolve({"max_num_seqs": 5}, {}, lambda device: Hardware("NVIDIA L4", 24 * GIB))
    assert str(found.settings["max_batched_tokens"]) == "hardware NVIDIA L4"
    assert str(found.settings["max_num_seqs"]) == "flag --max-num-seqs"


def test_the_hardware_is_detected_for_the_device_and_only_if_a_default_needs_it() -> None:
    asked: list[str] = []

    def detect(device: str) -> Hardware:
        asked.append(device)
        return CPU

    resolve({"max_num_seqs": 5, "max_batched_tokens": 50}, {}, detect)
    assert asked == []
    resolve({}, {"PHASESCOPE_DEVICE": "cuda"}, detect)
    assert asked == ["cuda"]


def test_a_torch_without_cuda_computes_on_a_cpu() -> None:
    """As the engine finds when it asks torch itself."""
    import torch

    assert torch_has_cuda() == (torch.version.cuda is not None)
    if not torch.cuda.is_available():
        assert find_hardware("auto") == CPU
    assert find_hardware("cpu") == CPU


@pytest.mark.parametrize(
    ("variant", "visible", "expected"),
    [
        ("HOPPER", None, Hardware("Fake H200", 1000)),
        ("HOPPER", "1,0", Hardware("Fake H200", 1000)),
        ("HOPPER", "2", None),
        ("HOPPER", "GPU-last", Hardware("Fake H200", 1000)),
        ("HOPPER", "GPU-other", None),
        ("HOPPER", "", None),
        ("HOPPER", "-1", None),
        ("MIG", None, Hardware("Fake A100", 1000)),
        ("FAILING", None, None),
    ],
)
def test_defaults_are_those_of_the_first_visible_gpu(
    variant: str,
    visible: str | None,
    expected: Hardware | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By NVML, of those that CUDA_VISIBLE_DEVICES leaves; NVML is closed again."""
    with loaded(variant, tmp_path, monkeypatch) as nvml:
        assert first_gpu(visible) == expected
        assert nvml.get("inits") == 0


def test_a_requested_gpu_sets_defaults_also_where_nvml_shows_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine says whether torch finds it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert sizes(find_hardware("cuda")) == (256, 2048, Source.HARDWARE)
