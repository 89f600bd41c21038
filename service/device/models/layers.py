"""The weights of one decoder layer, fused at load, and rotary embedding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from service.device.lora.torch_adapters import LayerProducts
from service.device.lora.weights import Module
from service.device.models.experts import load_experts
from service.device.models.matrices import MatrixReader
from service.device.models.ops import LayerOps
from service.device.models.tensors import ATTENTION_OUT_NORM, FFN_OUT_NORM, tensor_shape
from service.device.models.weight_source import WeightSource, checked
from service.device.quantization.linear import WHOLE, Linear, MatrixFormat, Partition, Product
from service.device.quantization.precision import Precision


@dataclass(frozen=True, slots=True)
class Gated:
    """A feed-forward network with a gate: gate and up are one matrix."""

    gate_up: Product
    down: Product

    def __call__(self, x: torch.Tensor, ops: LayerOps, product: LayerProducts) -> torch.Tensor:
        gate_up = product(Module.GATE_UP, self.gate_up, x)
        return product(Module.DOWN, self.down, ops.gated(gate_up))


@dataclass(frozen=True, slots=True)
class Routed:
    """A mixture of experts (`experts`), which no adapter changes."""

    product: Product

    def __call__(self, x: torch.Tensor, ops: LayerOps, product: LayerProducts) -> torch.Tensor:
        return self.product(x)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Query, key and value in one matrix: fewer, larger products. A norm is None where the model
    has none; `out_norm` and `ffn_out_norm` are of what is added to the residual."""

    input_norm: torch.Tensor | None
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Product
    out_norm: torch.Tensor | None
    ffn_norm: torch.Tensor | None
    feed_forward: Gated | Routed
    ffn_out_norm: torch.Tensor | None

    @property
    def head_norms(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Of queries and of keys, where the model has them."""
        if self.q_norm is None or self.k_norm is None:
            return None
        return self.q_norm, self.k_norm


def load_norm(source: WeightSource, name: str, precision: Precision) -> torch.Tensor:
    """The weight of a norm, rounded unless the model wants it exact. Raises ConfigError."""
    weight = checked(source.tensor(name), name, tensor_shape(source.spec, name))
    return weight.float() if source.spec.exact_norms else precision.convert(weight)


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

    def get(part: str) -> torch.Tensor:
        name = f"{prefix}.{part}"
        return precision.convert(checked(source.tensor(name), name, tensor_shape(spec, name)))

    def norm(part: str, is_there: bool) -> torch.Tensor | None:
        if not is_there:
            return None
        return load_norm(source, f"{prefix}.{part}.weight", precision).to(device)

    reader = MatrixReader(source, precision, matrices, device)

    def linear(parts: list[str], bias: torch.Tensor | None = None) -> Linear:
        return reader.linear([f"{prefix}.{part}_proj.weight" for part in parts], bias)

    bias = None
    if spec.qkv_bias:
        bias = torch.cat([get(f"self_attn.{p}_proj.bias") for p in "qkv"]).to(device)
    feed_forward: Gated | Routed
    if spec.experts is not None:
        experts = load_experts(source, index, precision, matrices, device, partition)
        feed_forward = Routed(experts)
    else:
        feed_forward = Gated(
            linear(["mlp.gate", "mlp.up"]), partition.row_parallel(linear(["mlp.down"]))
        )
    return LayerWeights(
        input_norm=norm("input_layernorm", spec.input_norms),
        qkv=linear([f"self_attn.{p}" for p in "qkv"], bias),
        q_norm=norm("self_attn.q_norm", spec.qk_norm),
        k_norm=norm("self_attn.k_norm", spec.qk_norm),
        out=partition.row_parallel(linear(["self_attn.o"])),
        out_norm=norm(ATTENTION_OUT_NORM, spec.output_norms),
        ffn_norm=norm("post_attention_layernorm", spec.input_norms),
        feed_forward=feed_forward,
        ffn_out_norm=norm(FFN_OUT_NORM, spec.output_norms),
    )
