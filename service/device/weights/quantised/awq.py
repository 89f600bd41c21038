"""AWQ in 4 bits, as AutoAWQ writes its `gemm` version (Lin et al., AWQ, 2023).

qweight  int32 [in, out / 8]       eight outputs a word, in the order of `AWQ_ORDER`
qzeros   int32 [groups, out / 8]   zero points, packed the same way
scales   float [groups, out]
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from service.device.quantization.kept_matrix import Int4Matrix
from service.device.weights.quantised.gptq import read_group_size
from service.device.weights.quantised.nibbles import AWQ_ORDER, PER_WORD, paired, unpacked
from service.device.weights.quantised.scheme import (
    FLOATS,
    Found,
    GetTensor,
    Module,
    expect,
    groups_of,
    int4_form,
    matrix_shape,
    scales_of,
)
from service.model_files.strict_keys import IgnoredKey, StrictKeys

_RUN = IgnoredKey("it chooses a kernel of another program")
_IGNORED = {
    **dict.fromkeys(
        ("do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config", "backend"), _RUN
    ),
}


@dataclass(frozen=True, slots=True)
class Awq:
    """Implements `Scheme`. A module whose name has one of `left_out` in it is as it was."""

    group_size: int
    left_out: tuple[str, ...] = ()

    mark = "qweight"
    suffixes = frozenset({"qweight", "qzeros", "scales"})

    def module(self, path: Path, stem: str, parts: Found) -> Module:
        inputs, words = matrix_shape(path, stem, parts, "qweight", {"I32"})
        outputs = words * PER_WORD
        groups = groups_of(path, stem, inputs, self.group_size)
        expect(path, stem, parts, "qzeros", {"I32"}, (groups, words))
        expect(path, stem, parts, "scales", FLOATS, (groups, outputs))
        form = int4_form(parts, "scales", inputs // groups)
        return Module(stem, parts, (outputs, inputs), form)

    def read(self, path: Path, module: Module, get: GetTensor) -> Int4Matrix:
        scales = scales_of(path, f"{module.stem}.scales", get("scales"))
        codes, zeros = (unpacked(get(part), 1, AWQ_ORDER) for part in ("qweight", "qzeros"))
        return Int4Matrix(
            paired(codes.t().contiguous()), scales.t().contiguous(), zeros.t().contiguous()
        )

    def is_left_out(self, stem: str) -> bool:
        return any(name in stem for name in self.left_out)


def read_awq(stated: StrictKeys) -> Awq:
    """From `quantization_config`. Raises ConfigError."""
    bits = stated.integer("bits")
    if bits != 4:
        raise stated.refused("bits", bits, "AWQ weights of 4 bits are read")
    layout = stated.take("version", "gemm")
    if str(layout).lower() != "gemm":
        raise stated.refused("version", layout, "AWQ's gemm layout is read")
    if not stated.flag("zero_point", True):
        raise stated.refused("zero_point", False, "AWQ weights with zero points are read")
    scheme = Awq(read_group_size(stated), read_names(stated, "modules_to_not_convert"))
    stated.finish(_IGNORED)
    return scheme


def read_names(stated: StrictKeys, key: str) -> tuple[str, ...]:
    """A list of texts, empty where there is none. Raises ConfigError."""
    names = stated.take(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise stated.refused(key, names, "a list of names is expected")
    return tuple(names)
