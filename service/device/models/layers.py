"""The weights of one decoder layer, fused at load, and rotary embedding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from service.device.models.matrices import MatrixReader
from service.device.models.weight_source import WeightSource, checked
from service.device.quantization.linear import WHOLE, Linear, MatrixFormat, Partition, Product
from service.device.quantization.precision import Precision


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Query, key and value in one matrix, gate and up in one: fewer, larger products."""

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Product
    ffn_norm: torch.Tensor
    gate_up: Linear
    down: Product

    @property
    def head_norms(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Of queries and of keys, where the model has them."""
        if self.q_norm is None or self.k_norm is None:
            return None
        return self.q_norm, self.k_norm


def load_layer(
    source: WeightSource,
    index: int,
    precision: Precision,
    matrices: MatrixFormat,
    device: torch.device,
    partition: Partition = WHOLE,
) -> LayerWeights:
    """Read, check, fuse and convert one layer. Raises ConfigError."""
    spec = source.spec
    prefix = f"model.layers.{index}"

    def get(part: str, *shape: int) -> torch.Tensor:
        name = f"{prefix}.{part}"
        return precision.convert(checked(source.tensor(name), name, shape))

    def fuse(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(parts).to(device)

    reader = MatrixReader(source, precision, matrices, device)

    def linear(parts: list[str], bias: torch.Tensor | None = None) -> Linear:
        return reader.linear([f"{prefix}.{part}_proj.weight" for part in parts], bias)

    projections = (("q", spec.q_size), ("k", spec.kv_size), ("v", spec.kv_size))
    bias = None
    if spec.qkv_bias:
        bias = fuse([get(f"self_attn.{p}_proj.bias", size) for p, size in projections])
    return LayerWeights(
        input_norm=get("input_layernorm.weight", spec.hidden).to(device),
        qkv=linear([f"self_attn.{p}" for p, _ in projections], bias),
        q_norm=get("self_attn.q_norm.weight", spec.head_dim).to(device) if spec.qk_norm else None,
        k_norm=get("self_attn.k_norm.weight", spec.head_dim).to(device) if spec.qk_norm else None,
        out=partition.row_parallel(linear(["self_attn.o"])),
        ffn_norm=get("post_attention_layernorm.weight", spec.hidden).to(device),
        gate_up=linear(["mlp.gate", "mlp.up"]),
        down=partition.row_parallel(linear(["mlp.down"])),
    )
