"""The decoder in torch, for all families: one forward pass over a flat batch of tokens.

Flags of `ModelSpec` say what differs between families. A family that needs something else adds a
flag there with its `Feature`, and computes it here or in `layers` and `ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from service.config.settings import ConfigError
from service.device.attention.base import AttentionBackend
from service.device.cache.kv_cache import KvCache
from service.device.inputs import StepInputs
from service.device.lora.torch_adapters import (
    DecoderAdapters,
    LayerProducts,
    StepAdapters,
    TorchAdapters,
)
from service.device.lora.weights import Module
from service.device.models.layers import LayerWeights, load_layer, load_norm
from service.device.models.matrices import MatrixReader, kept_kinds
from service.device.models.ops import LayerOps, PlainOps
from service.device.models.tensors import HEAD
from service.device.models.weight_source import WeightSource, checked, reading
from service.device.quantization.linear import FLOATS, WHOLE, MatrixFormat, Partition, Table
from service.device.quantization.precision import Precision, rounded
from service.device.rope import RopeTable
from service.device.spec import Feature, ModelSpec

FEATURES = frozenset(
    {
        Feature.QKV_BIAS,
        Feature.QK_NORM,
        Feature.TIED_EMBEDDINGS,
        Feature.LINEAR_ROPE,
        Feature.LLAMA3_ROPE,
        Feature.YARN_ROPE,
        Feature.LONG_ROPE,
        Feature.PARTIAL_ROPE,
        Feature.LOCAL_ROPE,
        Feature.SLIDING_WINDOW,
        Feature.WIDE_QK_NORM,
        Feature.OUTPUT_NORMS,
        Feature.NO_INPUT_NORMS,
        Feature.GELU_GATE,
        Feature.ATTENTION_SCALE,
        Feature.MULTIPLIERS,
        Feature.LOGIT_SOFTCAP,
        Feature.EXPERTS,
    }
)


def unsupported(spec: ModelSpec) -> str | None:
    """Why torch's decoder cannot compute this model; None when it can."""
    missing = spec.missing(FEATURES)
    return None if missing is None else f"torch's decoder does not compute {missing}"


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
        ops: LayerOps | None = None,
        partition: Partition = WHOLE,
        adapters: DecoderAdapters | None = None,
    ) -> None:
        """Load all weights. `max_tokens` bounds positions. Raises ConfigError."""
        spec = source.spec
        reason = unsupported(spec)
        if reason is not None:
            raise ConfigError(reason)
        self.spec = spec
        self.device = device
        self.adapters = adapters or TorchAdapters(spec, precision.compute, device)
        self._attention = attention
        self._ops = ops or PlainOps(spec)
        self._ropes = [RopeTable(spec, max_tokens, precision.compute, device)]
        if spec.local_rope is not None:
            self._ropes.append(
                RopeTable(spec, max_tokens, precision.compute, device, spec.local_rope)
            )
        self._reach = [spec.reach(layer) for layer in range(spec.layers)]
        # rounded as weights are: Gemma's own code does so
        self._embedding_multiplier = rounded(spec.embedding_multiplier, precision.weights)

        def get(name: str, *shape: int) -> torch.Tensor:
            return precision.convert(checked(source.tensor(name), name, shape)).to(device)

        self._layers: list[LayerWeights] = []
        with reading(source, kept_kinds(matrices)):
            for index in range(spec.layers):
                if index % max(1, spec.layers // 4) == 0:
                    progress(f"loading weights, layer {index} of {spec.layers}")
                layer = load_layer(source, index, precision, matrices, device, partition)
                self._layers.append(layer)
        self._norm = load_norm(source, "model.norm.weight", precision).to(device)
        embedding = get("model.embed_tokens.weight", spec.vocab, spec.hidden)
        if spec.tied_embeddings:
            head = matrices.linear(embedding)
            self._embedding: Table = head
        else:
            reader = MatrixReader(source, precision, matrices, device)
            head = reader.linear([HEAD])
            self._embedding = matrices.table(embedding)
        self._head = partition.column_parallel(head)

    @torch.inference_mode()
    def forward(self, inputs: StepInputs, cache: KvCache) -> torch.Tensor:
        """Compute a step: writes the cache, gives float32 logits [samples, vocab]."""
        return self.head(self.states(inputs, cache, inputs.sampled))

    @torch.inference_mode()
    def states(self, inputs: StepInputs, cache: KvCache, rows: torch.Tensor) -> torch.Tensor:
        """The same up to the head: the final, normalised states [rows, hidden] of flat rows."""
        prepared = self._attention.prepare(inputs)
        return self._states(
            inputs.token_ids, inputs.positions, inputs.slot_mapping, rows, prepared, cache,
            adapters=self.adapters.of_step(inputs.segments),
        )  # fmt: skip

    @torch.inference_mode()
    def head(self, states: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """float32 logits [rows, vocab] of final states, in `out` if that is given."""
        logits = self._head(states)
        if self.spec.logit_multiplier != 1.0:
            logits = logits.float() * self.spec.logit_multiplier
        cap = self.spec.logit_softcap
        if cap is not None:
            logits = torch.tanh(logits.float() / cap) * cap
        return logits.float() if out is None else out.copy_(logits)

    @torch.inference_mode()
    def compute(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        sampled: torch.Tensor | None,
        prepared: Any,
        cache: KvCache,
        mark: Callable[[], None] = lambda: None,
        adapters: StepAdapters | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A step from tensors alone, with what the attention wants `prepared`; logits of all
        rows where `sampled` is None, in `out` if that is given. `mark` is called before and after
        each attention."""
        states = self._states(
            token_ids, positions, slot_mapping, sampled, prepared, cache, mark, adapters
        )
        return self.head(states, out)

    def _states(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        rows: torch.Tensor | None,
        prepared: Any,
        cache: KvCache,
        mark: Callable[[], None] = lambda: None,
        adapters: StepAdapters | None = None,
    ) -> torch.Tensor:
        """Final states of `rows`, or of all."""
        attention, ops = self._attention, self._ops
        angles = [rope.at(positions) for rope in self._ropes]
        hidden = self._embedding.rows(token_ids)
        if self._embedding_multiplier != 1.0:
            hidden = hidden * self._embedding_multiplier
        delta: torch.Tensor | None = None
        for index, layer in enumerate(self._layers):
            product = LayerProducts(adapters, index)
            normed = self._entering(hidden, delta, layer.input_norm)
            qkv = product(Module.QKV, layer.qkv, normed).view(len(normed), -1, self.spec.head_dim)
            turns = angles[self.spec.is_local(index)]
            query = ops.rope_and_write_kv(index, qkv, turns, layer.head_norms, cache, slot_mapping)
            mark()
            mixed = attention.run(query, index, cache, prepared, self._reach[index])
            mark()
            mixed = product(Module.OUT, layer.out, mixed.flatten(1))
            delta = self._leaving(mixed, layer.out_norm)
            normed = self._entering(hidden, delta, layer.ffn_norm)
            delta = self._leaving(layer.feed_forward(normed, ops, product), layer.ffn_out_norm)
        if rows is not None:
            hidden, delta = hidden[rows], None if delta is None else delta[rows]
        return ops.norm(hidden, delta, self._norm)

    def _entering(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, norm: torch.Tensor | None
    ) -> torch.Tensor:
        """What attention or feed-forward gets, once `delta` has been added to `hidden`."""
        if norm is not None:
            return self._ops.norm(hidden, delta, norm)
        if delta is not None:
            hidden += delta
        return hidden

    def _leaving(self, branch: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        """What is added to the residual."""
        if norm is not None:
            branch = self._ops.norm(branch, None, norm)
        if self.spec.residual_multiplier != 1.0:
            branch = branch * self.spec.residual_multiplier
        return branch
