"""The forward pass in C++, with the interface of `service.device.models.model.Decoder`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore

import torch

from service.device.inputs import StepInputs
from service.device.models.layers import load_norm
from service.device.models.tensors import ATTENTION_OUT_NORM, FFN_OUT_NORM
from service.device.models.weight_source import WeightSource, checked, reading
from service.device.native.adapters import NativeAdapters, packed_segments
from service.device.native.cache import NativeKvCache
from service.device.native.kept_weights import MatrixPart, common_order, pack_parts
from service.device.native.library import (
    BatchStruct,
    DecoderConfig,
    Library,
    MatrixName,
    NormName,
    NumberKind,
    load_library,
)
from service.device.quantization.kept_formats import KERNELS, WeightsBackend
from service.device.quantization.kept_matrix import kept_matrix
from service.device.quantization.precision import Precision, rounded
from service.device.rope import rope_table
from service.device.spec import Feature, Gate, ModelSpec

_MODEL = -1  # instead of a layer's number
_MOST_READ = 2
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
    }
)


def unsupported(spec: ModelSpec) -> str | None:
    """Why the C++ decoder cannot compute this model; None when it can."""
    missing = spec.missing(FEATURES)
    if missing is not None:
        return f"the C++ decoder does not compute {missing}"
    if spec.heads % spec.kv_heads != 0:
        return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
    return None


class NativeDecoder:
    """Weights in the library's layout and one call a step. Holds no state of any sequence."""

    def __init__(
        self,
        source: WeightSource,
        max_tokens: int,
        weights: NumberKind,
        cache: NumberKind,
        rounding: torch.dtype,
        threads: int | None,
        progress: Callable[[str], None] = lambda stage: None,
        keeps: bool = False,
    ) -> None:
        """Compile or load the library and copy all weights into it, rounded to `rounding` first.
        With `keeps` those that the source has in a narrow form stay in it.

        Raises NoNativeLibrary, ConfigError.
        """
        spec = source.spec
        self.spec = spec
        self.device = torch.device("cpu")
        self.threads = threads or len(os.sched_getaffinity(0))
        config = DecoderConfig(
            layers=spec.layers,
            hidden=spec.hidden,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            ffn=spec.ffn,
            vocab=spec.vocab,
            threads=self.threads,
            weights_kind=weights,
            cache_kind=cache,
            rotary_dim=spec.rotary_dims,
            gelu_gate=spec.gate is Gate.GELU,
            wide_norms=spec.wide_qk_norm,
            norm_eps=spec.norm_eps,
            attention_scale=spec.scale,
            embedding_scale=rounded(spec.embedding_multiplier, rounding),
            residual_scale=spec.residual_multiplier,
            logit_scale=spec.logit_multiplier,
            logit_cap=spec.logit_softcap or 0.0,
        )
        self.library = load_library(config, progress)
        self.adapters = NativeAdapters(self.library)
        self._attached: NativeKvCache | None = None
        _Loader(source, self.library, weights, rounding, keeps).load(max_tokens, progress)

    def forward(self, inputs: StepInputs, cache: NativeKvCache) -> torch.Tensor:
        """Compute a step: writes the KV cache and returns float32 logits [samples, vocab]."""
        logits = torch.empty((len(inputs.sampled), self.spec.vocab))
        self._compute(inputs, cache, inputs.sampled, logits=logits)
        return logits

    def states(self, inputs: StepInputs, cache: NativeKvCache, rows: torch.Tensor) -> torch.Tensor:
        """The same up to the head: float32 final states [rows, hidden] of flat rows."""
        states = torch.empty((len(rows), self.spec.hidden))
        self._compute(inputs, cache, rows, states=states)
        return states

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """float32 logits [rows, vocab] of final states."""
        logits = torch.empty((len(states), self.spec.vocab))
        if len(states):
            self.library.head(states.contiguous(), logits)
        return logits

    def _compute(
        self,
        inputs: StepInputs,
        cache: NativeKvCache,
        rows: torch.Tensor,
        logits: torch.Tensor | None = None,
        states: torch.Tensor | None = None,
    ) -> None:
        """One step; of `rows` either logits or final states are written."""
        if self._attached is not cache:
            cache.attach(self.library)
            self._attached = cache
        spans: list[int] = []
        pages: list[int] = []
        for span in (*inputs.decodes, *inputs.prefills):
            spans += (span.begin, span.query_tokens, span.context_tokens, len(pages))
            pages += span.blocks
        span_memory = torch.tensor(spans, dtype=torch.int32)
        page_memory = torch.tensor(pages, dtype=torch.int64)
        segments = packed_segments(inputs.segments)
        batch = BatchStruct(
            tokens=len(inputs.token_ids),
            spans=len(spans) // 4,
            samples=len(rows),
            cache_pages=cache.pages,
            token_ids=inputs.token_ids.data_ptr(),
            positions=inputs.positions.data_ptr(),
            slot_mapping=inputs.slot_mapping.data_ptr(),
            sampled=rows.data_ptr(),
            span=span_memory.data_ptr(),
            pages=page_memory.data_ptr(),
            logits=None if logits is None else logits.data_ptr(),
            states=None if states is None else states.data_ptr(),
            segment=segments.data_ptr(),
            segments=len(segments),
        )
        self.library.forward(batch)


class _Loader:
    """Reads, checks, rounds and packs weights. A thread packs one matrix while the next is read:
    no more than `_MOST_READ` wait or are packed, since each is in memory as floats."""

    def __init__(
        self,
        source: WeightSource,
        library: Library,
        plain: NumberKind,
        rounding: torch.dtype,
        keeps: bool,
    ) -> None:
        self._source = source
        self._spec = source.spec
        self._library = library
        self._plain = plain
        self._rounding = rounding
        self._kinds = KERNELS[WeightsBackend.NATIVE] if keeps else {}
        self._packer = ThreadPoolExecutor(1, "phasescope-pack")
        self._room = Semaphore(_MOST_READ)
        self._failure: Exception | None = None

    def load(self, max_tokens: int, progress: Callable[[str], None]) -> None:
        spec = self._spec
        with self._packer, reading(self._source, self._kinds):
            self._matrix(_MODEL, MatrixName.EMBEDDING, "model.embed_tokens", spec.vocab)
            for index in range(spec.layers):
                if index % max(1, spec.layers // 4) == 0:
                    progress(f"loading weights, layer {index} of {spec.layers}")
                self._layer(index)
            if not spec.tied_embeddings:
                self._matrix(_MODEL, MatrixName.HEAD, "lm_head", spec.vocab)
        self._raise_failure()
        self._norm(_MODEL, NormName.FINAL, "model.norm")
        for which, rope in enumerate((spec.rope, spec.local_rope)):
            if rope is not None:
                self._library.set_rope(which, *rope_table(rope, spec.head_dim, max_tokens))
        for layer in range(spec.layers):
            self._library.set_layer(layer, spec.window(layer), spec.is_local(layer))

    def _layer(self, index: int) -> None:
        spec = self._spec
        prefix = f"model.layers.{index}"
        projections = [
            (f"{prefix}.self_attn.{p}_proj", size)
            for p, size in (("q", spec.q_size), ("k", spec.kv_size), ("v", spec.kv_size))
        ]
        self._fused(index, MatrixName.QKV, projections, spec.hidden, biased=spec.qkv_bias)
        self._matrix(index, MatrixName.OUT, f"{prefix}.self_attn.o_proj", spec.hidden, spec.q_size)
        gate = self._matrix(index, MatrixName.GATE, f"{prefix}.mlp.gate_proj", spec.ffn)
        up = self._matrix(index, MatrixName.UP, f"{prefix}.mlp.up_proj", spec.ffn)
        common_order([*gate, *up])
        self._matrix(index, MatrixName.DOWN, f"{prefix}.mlp.down_proj", spec.hidden, spec.ffn)
        if spec.input_norms:
            self._norm(index, NormName.INPUT, f"{prefix}.input_layernorm")
            self._norm(index, NormName.FFN, f"{prefix}.post_attention_layernorm")
        if spec.output_norms:
            self._norm(index, NormName.OUT, f"{prefix}.{ATTENTION_OUT_NORM}")
            self._norm(index, NormName.FFN_OUT, f"{prefix}.{FFN_OUT_NORM}")
        if spec.qk_norm:
            self._norm(index, NormName.QUERY, f"{prefix}.self_attn.q_norm")
            self._norm(index, NormName.KEY, f"{prefix}.self_attn.k_norm")

    def _matrix(
        self, layer: int, name: MatrixName, stem: str, outputs: int, inputs: int | None = None
    ) -> list[MatrixPart]:
        return self._fused(layer, name, [(stem, outputs)], inputs or self._spec.hidden)

    def _fused(
        self,
        layer: int,
        name: MatrixName,
        projections: list[tuple[str, int]],
        inputs: int,
        biased: bool = False,
    ) -> list[MatrixPart]:
        """One matrix of the outputs of several, each kept where it can be. Raises what an earlier
        one could not be packed for."""
        self._room.acquire()
        self._raise_failure()
        parts = [self._part(stem, outputs, inputs, biased) for stem, outputs in projections]
        self._packer.submit(self._pack, layer, name, parts)
        return parts

    def _pack(self, layer: int, name: MatrixName, parts: list[MatrixPart]) -> None:
        try:
            if self._failure is None:
                pack_parts(self._library, layer, name, parts, self._plain)
        except Exception as error:  # the thread that reads raises it
            self._failure = error
        finally:
            self._room.release()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _part(self, stem: str, outputs: int, inputs: int, biased: bool) -> MatrixPart:
        name = f"{stem}.weight"
        kept = kept_matrix(self._source, name, (outputs, inputs), self._kinds)
        weight = self._get(name, outputs, inputs) if kept is None else kept
        return MatrixPart(name, weight, self._get(f"{stem}.bias", outputs) if biased else None)

    def _norm(self, layer: int, name: NormName, stem: str) -> None:
        precision = Precision(self._rounding, torch.float32)
        weight = load_norm(self._source, f"{stem}.weight", precision)
        self._library.set_norm(layer, name, weight.contiguous())

    def _get(self, name: str, *shape: int) -> torch.Tensor:
        tensor = checked(self._source.tensor(name), name, shape)
        return tensor.to(self._rounding).float().contiguous()
