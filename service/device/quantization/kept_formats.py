"""Which forms of weights each back end multiplies as they are stored, and by what: one table.

A back end keeps the kinds that it lists, and asks for floats of all others, which are then rounded
to `--dtype` (`--weights float` asks for that everywhere). The documentation's table is written from
this one (`docs.generate.weights`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from service.device.quantization.kept_kinds import KeptKind


class WeightsBackend(StrEnum):
    """Who multiplies; the value is a column of the documentation."""

    NATIVE = "native (C++)"
    TORCH_CPU = "torch on a CPU"
    TORCH_CUDA = "torch on a GPU"
    OPENVINO = "OpenVINO"

    @classmethod
    def of_torch(cls, device_type: str) -> WeightsBackend:
        return cls.TORCH_CUDA if device_type == "cuda" else cls.TORCH_CPU


_INTEGERS = "kept: {} times rows of 14-bit integers, sums in float32"
_TILES = "kept: dequantised tile by tile at each product"
_WIDENED = "widened when it is loaded"
_TRITON = "kept: a Triton kernel of ours up to 64 tokens, then dequantised tile by tile"

KERNELS: dict[WeightsBackend, dict[KeptKind, str]] = {
    WeightsBackend.NATIVE: {
        KeptKind.INT4: _INTEGERS.format("4-bit integers, zero points and scales of a group"),
        KeptKind.FP8: "kept: fp8 times rows of float32, exact products",
        KeptKind.Q4_K: _INTEGERS.format("its blocks of 256"),
        KeptKind.Q6_K: _INTEGERS.format("its blocks of 256"),
        KeptKind.Q8_0: _INTEGERS.format("its blocks of 32"),
    },
    WeightsBackend.TORCH_CPU: {KeptKind.INT4: _TILES, KeptKind.FP8: _TILES},
    WeightsBackend.TORCH_CUDA: {KeptKind.INT4: _TRITON, KeptKind.FP8: _TRITON},
    WeightsBackend.OPENVINO: {},
}


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of checkpoints: its `kind` in memory, None where it is always widened; what of it is
    read; the tests of what its numbers mean and of what they cost."""

    name: str
    kind: KeptKind | None
    read: str
    meaning_test: str
    quality_test: str

    def path(self, backend: WeightsBackend) -> str:
        """The kernel path there, for people."""
        return _WIDENED if self.kind is None else KERNELS[backend].get(self.kind, _WIDENED)


_QUALITY = "`python -m benchmarks.quantised`"
_SAFETENSORS = "`tests/models/test_quantised_checkpoints.py`"
_GGUF = "`tests/models/test_gguf_blocks.py`"
FILE_FORMATS = (
    FileFormat(
        "GPTQ",
        KeptKind.INT4,
        "4 bits, symmetric or not, groups of any multiple of 32 inputs or -1, `desc_act`, "
        "`checkpoint_format` gptq and gptq_v2",
        _SAFETENSORS,
        _QUALITY,
    ),
    FileFormat(
        "AWQ",
        KeptKind.INT4,
        "4 bits, `version` gemm, with zero points, groups as GPTQ",
        _SAFETENSORS,
        _QUALITY,
    ),
    FileFormat(
        "compressed-tensors, pack-quantized",
        KeptKind.INT4,
        "4 bits, strategies group and channel, symmetric or not, `actorder`",
        _SAFETENSORS,
        _QUALITY,
    ),
    FileFormat(
        "FP8",
        KeptKind.FP8,
        "e4m3, one scale a tensor or a block (`weight_block_size`), activation scales of either "
        "scheme read and checked, activations not rounded",
        _SAFETENSORS,
        _QUALITY,
    ),
    FileFormat(
        "compressed-tensors, float-quantized",
        KeptKind.FP8,
        "e4m3, strategies tensor, channel and block; activations as with FP8",
        _SAFETENSORS,
        _QUALITY,
    ),
    FileFormat("GGUF Q4_K", KeptKind.Q4_K, "also mixed with others (Q4_K_M)", _GGUF, _QUALITY),
    FileFormat("GGUF Q6_K", KeptKind.Q6_K, "as above", _GGUF, _QUALITY),
    FileFormat("GGUF Q8_0", KeptKind.Q8_0, "as above", _GGUF, _QUALITY),
    FileFormat(
        "GGUF, other types",
        None,
        "what the `gguf` package reads",
        "`tests/models/test_model_files.py`",
        "`python -m benchmarks.quality` (Q4_1)",
    ),
)
