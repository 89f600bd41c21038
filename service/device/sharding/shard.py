"""One tensor-parallel rank's part of a model.

The cut is Megatron-LM's: whole heads and equal slices of the feed-forward network, so that a layer
needs two all-reduces and nothing else is exchanged.

    q, k, v, gate, up, lm_head    rows, and their biases    a rank has some of the outputs
    o_proj, down_proj             columns                   a rank has a part of each sum
    embedding, norms, router      whole

Of a mixture each rank has a slice of every expert. Norms over all heads are refused.

A head that is tied to the embedding becomes one of its own: a slice of the embedding.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from service.config.settings import ConfigError
from service.device.models.tensors import tensor_shape
from service.device.models.weight_source import ReadsAhead, WeightSource, checked
from service.device.quantization.kept_kinds import KeptForm, KeptKind
from service.device.quantization.kept_matrix import KeptMatrix, kept_form, kept_matrix
from service.device.spec import Feature, ModelSpec
from telemetry.facts.engine_start import ModelShape

_BY_ROWS = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head"})
_BY_COLUMNS = frozenset({"o_proj", "down_proj"})
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class TensorParallelRank:
    """Number `index` of `count`."""

    index: int
    count: int


def part_of(spec: ModelSpec, count: int) -> ModelSpec:
    """What each of `count` ranks has. Raises ConfigError where there are no equal parts."""
    if spec.wide_qk_norm:
        raise ConfigError(
            f"--tensor-parallel {count}: {Feature.WIDE_QK_NORM} need all heads on one rank"
        )
    sizes = {
        "attention heads": spec.heads,
        "key/value heads": spec.kv_heads,
        "feed-forward columns": spec.ffn,
        "tokens of vocabulary": spec.vocab,
    }
    for what, size in sizes.items():
        if size % count:
            common = math.gcd(*sizes.values())
            possible = [str(n) for n in range(1, common + 1) if common % n == 0]
            raise ConfigError(
                f"--tensor-parallel {count}: the model's {size} {what} cannot be shared out "
                f"equally; this model allows {', '.join(possible)}"
            )
    return replace(
        spec,
        heads=spec.heads // count,
        kv_heads=spec.kv_heads // count,
        ffn=spec.ffn // count,
        tied_embeddings=False,
        vocab_parts=count,
    )


def floor_shape(
    spec: ModelSpec, count: int, device: torch.device, weight_bytes: float, cell_bytes: int
) -> ModelShape:
    """What a step's floor follows from where `count` ranks share `spec`, on what its peaks are of:
    a GPU has one rank's part, a CPU computes them all. `cell_bytes` are one rank's."""
    if device.type == "cuda":
        return part_of(spec, count).shape(weight_bytes, cell_bytes)
    return spec.shape(weight_bytes, count * cell_bytes)


class ShardedWeights:
    """Implements `WeightSource`: one rank's part of another source. Each rank reads what it
    needs and keeps its part, so tensors of files that are decoded are decoded by every rank."""

    def __init__(self, whole: WeightSource, rank: TensorParallelRank) -> None:
        """Raises ConfigError."""
        self._whole = whole
        self._rank = rank
        self._spec = part_of(whole.spec, rank.count)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def tensor(self, name: str) -> torch.Tensor:
        spec = self._whole.spec
        stored = self._stored(name)
        whole = checked(self._whole.tensor(stored), stored, tensor_shape(spec, stored))
        layer_part = name.rsplit(".", 2)[-2]
        if layer_part in _BY_ROWS:  # the last but one of a matrix, or of one for each expert
            return self._slice(whole, max(0, whole.dim() - 2))
        if layer_part in _BY_COLUMNS:
            return self._slice(whole, whole.dim() - 1)
        return whole

    def kept_form(self, name: str) -> KeptForm | None:
        """Implements `KeptSource`."""
        return kept_form(self._whole, self._stored(name))

    def kept(self, name: str) -> KeptMatrix | None:
        """Raises ConfigError where ranks would have parts of a group of inputs."""
        stored, form = self._stored(name), self.kept_form(name)
        if form is None:
            return None
        outputs, inputs = tensor_shape(self._whole.spec, stored)
        whole = kept_matrix(self._whole, stored, (outputs, inputs), {form.kind})
        assert whole is not None, name
        rows, columns = slice(0, outputs), slice(0, inputs)
        layer_part = name.rsplit(".", 2)[-2]
        if layer_part in _BY_ROWS:
            rows = self._share(outputs)
        elif layer_part in _BY_COLUMNS:
            columns = self._share(inputs)
        part = whole.part(rows, columns)
        if part is None:
            why = "an order of its own (desc_act)" if form.is_ordered else f"groups of {form.group}"
            raise ConfigError(
                f"--tensor-parallel {self._rank.count}: the {inputs} inputs of {name} have {why}, "
                f"which {self._rank.count} ranks cannot share; add --weights float, which widens it"
            )
        return part

    def begin_reading(self, keeps: Collection[KeptKind]) -> None:
        """Implements `ReadsAhead`."""
        if isinstance(self._whole, ReadsAhead):
            self._whole.begin_reading(keeps)

    def end_reading(self) -> None:
        if isinstance(self._whole, ReadsAhead):
            self._whole.end_reading()

    def _stored(self, name: str) -> str:
        """A tied head is the embedding."""
        return _EMBEDDING if name == _HEAD and self._whole.spec.tied_embeddings else name

    def _share(self, size: int) -> slice:
        """This rank's of so many."""
        part = size // self._rank.count
        return slice(self._rank.index * part, (self._rank.index + 1) * part)

    def _slice(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        """A copy: a view would keep the whole in memory."""
        share = self._share(whole.shape[dim])
        part = whole.narrow(dim, share.start, share.stop - share.start)
        return part.clone(memory_format=torch.contiguous_format)
