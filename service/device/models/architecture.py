"""What a family of models has to state to be loaded: its names, its tensors, its configuration.

One file of this folder states it for one family, and `registry` has a row for each. All families
are computed by the same layers (`model`, `layers`, `ops`); what differs is flags of `ModelSpec`,
and a back end that does not know a flag refuses the model (`service.device.spec.Feature`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from service.device.models.config_reader import read_spec
from service.device.models.gguf_reader import GgufConfig, read_gguf_spec
from service.device.models.tensors import GGUF_NAMES, HF_NAMES, TensorNames
from service.device.spec import ModelSpec
from service.model_files.strict_keys import IgnoredKey, StrictKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One family.

    `hf_name` is the entry of `architectures` in config.json, `gguf_name` is `general.architecture`
    of a GGUF file. `read_config` and `read_gguf` take every key that the family obeys and make the
    spec; of the other keys those that are known not to matter (`config_keys`, `gguf_keys`, and
    the two tables here) are passed over, and the rest is refused by name.
    `hf_other_tensors` are other spellings of its safetensors: the one that fits a folder best is
    taken. `hf_norms_from_one` says that safetensors have the distance of a norm's weight from one.
    `gguf_interleaves_rope` says that llama.cpp stores the rows of its query and key projections
    with rotary pairs side by side instead of head_dim / 2 apart.
    """

    family: str
    hf_name: str
    gguf_name: str
    read_config: Callable[[StrictKeys, str], ModelSpec] = read_spec
    read_gguf: Callable[[GgufConfig, str], ModelSpec] = read_gguf_spec
    hf_tensors: TensorNames = HF_NAMES
    gguf_tensors: TensorNames = GGUF_NAMES
    hf_other_tensors: tuple[TensorNames, ...] = ()
    hf_norms_from_one: bool = False
    gguf_interleaves_rope: bool = False
    ignored_config_keys: Mapping[str, IgnoredKey] = field(default_factory=dict)
    ignored_gguf_keys: Mapping[str, IgnoredKey] = field(default_factory=dict)
