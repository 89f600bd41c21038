"""GPTQ in 4 bits, as AutoGPTQ and GPTQModel write it (Frantar et al., GPTQ, 2022).

    qweight  int32 [in / 8, out]       eight inputs a word, the first in the lowest bits
    qzeros   int32 [groups, out / 8]   eight outputs a word; `gptq` stores the zero point less one,
                                       `gptq_v2` as it is
    scales   float [groups, out]
    g_idx    int32 [in]                the group of each input; other than in order with desc_act

A stored zero point of 15 is 16 in `gptq`, as in the kernels of exllama.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from service.config.settings import ConfigError
from service.device.quantization.kept_matrix import Int4Matrix
from service.device.weights.quantised.nibbles import PER_WORD, paired, unpacked
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

_HOW = IgnoredKey("it is about how the weights were found")
_RUN = IgnoredKey("it chooses a kernel of another program")
_IGNORED = {
    **dict.fromkeys(
        (
            "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "mse",
            "model_name_or_path", "model_file_base_name", "meta", "dataset", "tokenizer",
            "batch_size", "module_name_preceding_first_block", "block_name_to_quantize",
            "cache_block_outputs", "model_seqlen", "pad_token_id", "modules_in_block_to_quantize",
            "act_group_aware", "lm_head", "version",
        ),
        _HOW,
    ),
    **dict.fromkeys(
        (
            "use_exllama", "exllama_config", "disable_exllama", "max_input_length", "backend",
            "use_cuda_fp16", "hyb_act",
        ),
        _RUN,
    ),
    "is_marlin_format": IgnoredKey("weights in Marlin's order are not read", only=(False,)),
    "pack_dtype": IgnoredKey("words of other sizes are not read", only=("int32",)),
    "dynamic": IgnoredKey("settings of single modules are not read", only=({},)),
    "adapter": IgnoredKey("an adapter within the checkpoint is not read", only=({},)),
}  # fmt: skip
_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}


@dataclass(frozen=True, slots=True)
class Gptq:
    """Implements `Scheme`. `zero_offset` is what is added to a stored zero point."""

    group_size: int
    desc_act: bool
    zero_offset: int

    mark = "qweight"
    suffixes = frozenset({"qweight", "qzeros", "scales", "g_idx"})

    def module(self, path: Path, stem: str, parts: Found) -> Module:
        words, outputs = matrix_shape(path, stem, parts, "qweight", {"I32"})
        inputs = words * PER_WORD
        groups = groups_of(path, stem, inputs, self.group_size)
        expect(path, stem, parts, "qzeros", {"I32"}, (groups, -(-outputs // PER_WORD)))
        expect(path, stem, parts, "scales", FLOATS, (groups, outputs))
        if "g_idx" in parts or self.desc_act:
            expect(path, stem, parts, "g_idx", {"I32"}, (inputs,))
        form = int4_form(parts, "scales", inputs // groups, self.desc_act)
        return Module(stem, parts, (outputs, inputs), form)

    def read(self, path: Path, module: Module, get: GetTensor) -> Int4Matrix:
        outputs, _ = module.shape
        scales = scales_of(path, f"{module.stem}.scales", get("scales"))
        zeros = unpacked(get("qzeros"), 1)[:, :outputs] + self.zero_offset
        codes = unpacked(get("qweight"), 0)
        order = None
        if "g_idx" in module.parts:
            order = input_order(path, f"{module.stem}.g_idx", get("g_idx"), module.form.group)
        if order is not None:
            codes = codes[order.long()]
        return Int4Matrix(
            paired(codes.t().contiguous()), scales.t().contiguous(), zeros.t().contiguous(), order
        )

    def is_left_out(self, stem: str) -> bool:
        return False


def input_order(path: Path, name: str, g_idx: torch.Tensor, group: int) -> torch.Tensor | None:
    """int32 [in]: inputs sorted by their group, None where they are. Raises ConfigError where the
    groups have not all the same size."""
    order = g_idx.argsort(stable=True)
    if not torch.equal(g_idx[order], (torch.arange(len(g_idx)) // group).to(g_idx.dtype)):
        raise ConfigError(f"{path}: tensor {name} has no groups of {group} inputs each")
    is_sorted = torch.equal(order, torch.arange(len(order)))
    return None if is_sorted else order.int()


def read_gptq(stated: StrictKeys) -> Gptq:
    """From `quantization_config`. Raises ConfigError."""
    bits = stated.integer("bits")
    if bits != 4:
        raise stated.refused("bits", bits, "GPTQ weights of 4 bits are read")
    stated.flag("sym", True)  # the zero points are stored either way
    layout = stated.text("checkpoint_format") or "gptq"
    if layout not in _ZERO_OFFSETS:
        known = " and ".join(_ZERO_OFFSETS)
        raise stated.refused("checkpoint_format", layout, f"{known} are read")
    scheme = Gptq(read_group_size(stated), stated.flag("desc_act"), _ZERO_OFFSETS[layout])
    stated.finish(_IGNORED)
    return scheme


def read_group_size(stated: StrictKeys, default: int | None = None) -> int:
    """A number of inputs, or -1 for all. Raises ConfigError."""
    size = stated.integer("group_size", default)
    if size != -1 and (size < 1 or size % PER_WORD):
        raise stated.refused("group_size", size, f"a multiple of {PER_WORD} or -1 is expected")
    return size
