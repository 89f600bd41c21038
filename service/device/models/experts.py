"""A mixture of experts: each token goes through a few feed-forward networks of many.

The rows of all tokens are put in the order of their experts, so that each expert that is used is
one product over its rows; what the experts give is put back, and summed for each token in the order
in which the router chose them. So no two runs differ. The host reads once a layer how many rows
each expert has: on a GPU that is a wait, and such steps are not captured in a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from service.device.models.ops import gated_by
from service.device.models.tensors import ROUTER, tensor_shape
from service.device.models.weight_source import WeightSource, checked
from service.device.quantization.linear import FLOATS, MatrixFormat, Partition, Product
from service.device.quantization.precision import Precision
from service.device.spec import Experts


@dataclass(frozen=True, slots=True)
class Expert:
    """One feed-forward network: gate and up are one matrix."""

    gate_up: Product
    down: Product


class RoutedExperts:
    """Implements `Product`: the router and the experts of one layer."""

    def __init__(
        self,
        sizes: Experts,
        router: Product,
        experts: Sequence[Expert],
        gated: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        assert len(experts) == sizes.count, (len(experts), sizes.count)
        self._sizes = sizes
        self._router = router
        self._experts = experts
        self._gated = gated

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        likings = torch.softmax(self._router(x), dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(likings, self._sizes.used, dim=-1)
        if self._sizes.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        pairs = chosen.flatten()
        order = torch.argsort(pairs, stable=True)
        counts = torch.bincount(pairs, minlength=self._sizes.count)
        mixed = torch.empty((len(pairs), x.shape[-1]), dtype=x.dtype, device=x.device)
        mixed[order] = self._by_expert(x[order // self._sizes.used], counts.tolist())
        weighted = mixed.view(len(x), self._sizes.used, -1) * weights[..., None].to(x.dtype)
        return weighted.sum(dim=1)

    def _by_expert(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Rows in the order of their experts, each through its own."""
        parts, begin = [], 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                part = rows[begin : begin + count]
                parts.append(expert.down(self._gated(expert.gate_up(part))))
                begin += count
        return torch.cat(parts)


def load_experts(
    source: WeightSource,
    index: int,
    precision: Precision,
    matrices: MatrixFormat,
    device: torch.device,
    partition: Partition,
) -> Product:
    """Router and experts of a layer; the router is never quantised. Raises ConfigError."""
    spec = source.spec
    assert spec.experts is not None, "a dense model"

    def get(part: str) -> torch.Tensor:
        name = f"model.layers.{index}.{part}.weight"
        return precision.convert(checked(source.tensor(name), name, tensor_shape(spec, name)))

    gate, up, down = (get(f"mlp.experts.{part}_proj") for part in ("gate", "up", "down"))
    experts = [
        Expert(
            matrices.linear(torch.cat([gate[one], up[one]]).to(device)),
            matrices.linear(down[one].to(device, copy=True)),  # not a view of all of them
        )
        for one in range(spec.experts.count)
    ]
    router = FLOATS.linear(get(ROUTER).to(device))
    return partition.row_parallel(RoutedExperts(spec.experts, router, experts, gated_by(spec.gate)))
