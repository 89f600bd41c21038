"""Which attention computes, and what lies between the matrix products with it."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import torch

from service.config.settings import ConfigError, EngineConfig
from service.device.attention.base import AttentionBackend, GraphAttention
from service.device.attention.flash_paged import FlashPagedAttention
from service.device.attention.flash_providers import find_provider
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.memory import choose_kv_format
from service.device.models.ops import LayerOps, PlainOps
from service.device.spec import Feature, ModelSpec

TORCH_PAGE_TOKENS, TRITON_PAGE_TOKENS = 16, 64
_WIDEST_HEAD = 256
_PLAIN_OPS_ONLY = frozenset({Feature.PARTIAL_ROPE, Feature.WIDE_QK_NORM, Feature.GELU_GATE})


@dataclass(frozen=True, slots=True)
class Chosen:
    """`fault` says why a faster one is not used, None where there is none. `graph_attention` is
    the same attention where its decode steps can be captured in a CUDA graph, else None."""

    attention: AttentionBackend
    ops: LayerOps
    fault: str | None = None
    graph_attention: GraphAttention | None = None


def choose_attention(config: EngineConfig, spec: ModelSpec, device: torch.device) -> Chosen:
    """What was asked for, or the fastest that works. Raises ConfigError."""
    wanted = config.attention
    if wanted == "torch" or (wanted == "auto" and device.type != "cuda"):
        return _torch(spec, device)
    faults: list[str] = []
    if wanted != "triton":
        flash, fault = _flash_attention(config, spec, device)
        if flash is not None:
            return Chosen(flash, best_ops(spec, device), graph_attention=flash)
        faults.append(f"not flash: {fault}")
    if wanted == "flash":
        raise ConfigError(f"--attention flash: {fault}; use --attention auto")
    missing = triton_fault(spec, device)
    if missing is None:
        return _triton(spec, device, "; ".join(faults) or None)
    if wanted == "triton":
        raise ConfigError(f"--attention triton: {missing}; use --attention torch")
    return _torch(spec, device, "; ".join([*faults, f"not triton: {missing}"]))


def _flash_attention(
    config: EngineConfig, spec: ModelSpec, device: torch.device
) -> tuple[FlashPagedAttention | None, str]:
    """With why there is none, or none for this."""
    if device.type != "cuda":
        return None, "its kernels need a GPU"
    if spec.head_dim % 8 or spec.head_dim > _WIDEST_HEAD:
        return None, f"heads of {spec.head_dim} are no multiple of 8 or wider than {_WIDEST_HEAD}"
    provider, fault = find_provider()
    if provider is None:
        return None, fault
    attention = FlashPagedAttention(provider, device)
    abilities = attention.capabilities
    if getattr(torch, config.dtype) not in abilities.dtypes:
        return None, f"{abilities.name} does not compute in {config.dtype}"
    if choose_kv_format(config) not in abilities.kv_formats:
        return None, f"{abilities.name} cannot read --kv-dtype {config.kv_dtype}"
    return attention, fault


def triton_fault(spec: ModelSpec, device: torch.device) -> str | None:
    """Why our Triton kernels cannot compute this model there; None when they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "its kernels need a GPU"
    if spec.head_dim % 2 or spec.head_dim > _WIDEST_HEAD:
        return f"heads of {spec.head_dim} are odd or wider than {_WIDEST_HEAD}"
    return None


def _torch(spec: ModelSpec, device: torch.device, fault: str | None = None) -> Chosen:
    return Chosen(TorchPagedAttention(TORCH_PAGE_TOKENS, device), PlainOps(spec), fault)


def _triton(spec: ModelSpec, device: torch.device, fault: str | None) -> Chosen:
    from service.device.attention.triton_paged import TritonPagedAttention

    attention = TritonPagedAttention(spec, TRITON_PAGE_TOKENS, device)
    return Chosen(attention, best_ops(spec, device), fault, graph_attention=attention)


def best_ops(spec: ModelSpec, device: torch.device) -> LayerOps:
    """Ours, where Triton is there and they compute what this model needs."""
    if triton_fault(spec, device) is not None or spec.features & _PLAIN_OPS_ONLY:
        return PlainOps(spec)
    from service.device.triton.ops import FusedOps

    return FusedOps(spec)
