"""One lean decoder for the Llama family, over a flat batch of tokens.

Flags in the ModelSpec cover what differs between Llama, Mistral, Qwen2, Qwen3 and SmolLM.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from service.device.attention.base import AttentionBackend
from service.device.inputs import StepInputs
from service.device.kv_cache import KvCache
from service.device.layers import LayerWeights, RopeTable, load_layer, rotate
from service.device.linear import FLOATS, MatrixFormat, Table
from service.device.precision import Precision
from service.device.weights.source import WeightSource, checked


class Decoder:
    """Weights and the forward pass. Holds no state of any sequence."""

    def __init__(
        self,
        source: WeightSource,
        attention: AttentionBackend,
        max_tokens: int,
        precision: Precision,
        device: torch.device,
        progress: Callable[[str], None] = lambda stage: None,
        matrices: MatrixFormat = FLOATS,
    ) -> None:
        """Load all weights. `max_tokens` bounds positions. Raises ConfigError."""
        spec = source.spec
        self.spec = spec
        self.device = device
        self._attention = attention
        self._rope = RopeTable(spec, max_tokens, precision.compute, device)

        def get(name: str, *shape: int) -> torch.Tensor:
            return precision.convert(checked(source.tensor(name), name, shape)).to(device)

        self._layers: list[LayerWeights] = []
        for index in range(spec.layers):
            if index % max(1, spec.layers // 4) == 0:
                progress(f"loading weights, layer {index} of {spec.layers}")
            self._layers.append(load_layer(source, index, precision, matrices, device))
        self._norm = get("model.norm.weight", spec.hidden)
        embedding = get("model.embed_tokens.weight", spec.vocab, spec.hidden)
        if spec.tied_embeddings:
            self._head = matrices.linear(embedding)
            self._embedding: Table = self._head
        else:
            self._head = matrices.linear(get("lm_head.weight", spec.vocab, spec.hidden))
            self._embedding = matrices.table(embedding)

    @torch.inference_mode()
    def forward(self, inputs: StepInputs, cache: KvCache) -> torch.Tensor:
        """Compute a step: writes the cache, gives float32 logits [samples, vocab]."""
        prepared = self._attention.prepare(inputs)
        cos, sin = self._rope.at(inputs.positions)
        hidden = self._embedding.rows(inputs.token_ids)
        for index, layer in enumerate(self._layers):
            normed = self._rms_norm(hidden, layer.input_norm)
            query = self._project(index, layer, normed, cos, sin, cache, inputs.cells)
            mixed = self._attention.run(query, index, cache, prepared)
            hidden = hidden + layer.out(mixed.flatten(1))
            hidden = hidden + self._feed_forward(layer, self._rms_norm(hidden, layer.ffn_norm))
        wanted = self._rms_norm(hidden[inputs.sampled], self._norm)
        return self._head(wanted).float()

    def _project(
        self,
        index: int,
        layer: LayerWeights,
        normed: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: KvCache,
        cells: torch.Tensor,
    ) -> torch.Tensor:
        """Queries of the layer; keys and values go to the cache."""
        spec = self.spec
        qkv = layer.qkv(normed)
        parts = qkv.view(len(normed), -1, spec.head_dim)
        if layer.q_norm is None or layer.k_norm is None:
            turned = rotate(parts[:, : spec.heads + spec.kv_heads], cos, sin)
            query, key = turned[:, : spec.heads], turned[:, spec.heads :]
        else:
            query = self._rms_norm(parts[:, : spec.heads], layer.q_norm)
            key = parts[:, spec.heads : spec.heads + spec.kv_heads]
            query = rotate(query, cos, sin)
            key = rotate(self._rms_norm(key, layer.k_norm), cos, sin)
        cache.write(index, key, parts[:, spec.heads + spec.kv_heads :], cells)
        return query

    def _feed_forward(self, layer: LayerWeights, normed: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(normed).chunk(2, dim=-1)
        return layer.down(functional.silu(gate) * up)

    def _rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, (hidden.shape[-1],), weight, self.spec.norm_eps)
