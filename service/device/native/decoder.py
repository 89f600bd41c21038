"""The forward pass in C++, with the face of `service.device.model.Decoder`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from service.device.inputs import StepInputs
from service.device.layers import RopeTable
from service.device.native.cache import NativeKvCache
from service.device.native.library import (
    BatchStruct,
    DecoderConfig,
    Library,
    MatrixName,
    NormName,
    NumberKind,
    load_library,
)
from service.device.spec import ModelSpec
from service.device.weights.source import WeightSource, checked

_MODEL = -1  # in the place of a layer's number


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
    ) -> None:
        """Compile or load the library and hand it all weights, rounded to `rounding` first.

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
            norm_eps=spec.norm_eps,
        )
        self.library = load_library(config, progress)
        self._attached: NativeKvCache | None = None
        _Loader(source, self.library, rounding).load(max_tokens, self.threads, progress)

    def forward(self, inputs: StepInputs, cache: NativeKvCache) -> torch.Tensor:
        """Compute a step: writes the cache, gives float32 logits [samples, vocab]."""
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
        logits = torch.empty((len(inputs.sampled), self.spec.vocab))
        batch = BatchStruct(
            tokens=len(inputs.token_ids),
            spans=len(spans) // 4,
            samples=len(inputs.sampled),
            cache_pages=cache.pages,
            token_ids=inputs.token_ids.data_ptr(),
            positions=inputs.positions.data_ptr(),
            cells=inputs.cells.data_ptr(),
            sampled=inputs.sampled.data_ptr(),
            span=span_memory.data_ptr(),
            pages=page_memory.data_ptr(),
            logits=logits.data_ptr(),
        )
        self.library.forward(batch)
        return logits


class _Loader:
    """Reads, checks, rounds and hands over; layers side by side, since packing is plain work."""

    def __init__(self, source: WeightSource, library: Library, rounding: torch.dtype) -> None:
        self._source = source
        self._spec = source.spec
        self._library = library
        self._rounding = rounding

    def load(self, max_tokens: int, threads: int, progress: Callable[[str], None]) -> None:
        spec, library = self._spec, self._library
        embedding = self._get("model.embed_tokens.weight", spec.vocab, spec.hidden)
        with ThreadPoolExecutor(threads) as pool:
            whole = [pool.submit(library.set_matrix, _MODEL, MatrixName.EMBEDDING, embedding)]
            for index in range(spec.layers):
                if index % max(1, spec.layers // 4) == 0:
                    progress(f"loading weights, layer {index} of {spec.layers}")
                whole.append(pool.submit(self._layer, index))
            if not spec.tied_embeddings:
                head = self._get("lm_head.weight", spec.vocab, spec.hidden)
                whole.append(pool.submit(library.set_matrix, _MODEL, MatrixName.HEAD, head))
            for one in whole:
                one.result()
        library.set_norm(_MODEL, NormName.FINAL, self._get("model.norm.weight", spec.hidden))
        rope = RopeTable(spec, max_tokens, torch.float32, torch.device("cpu"))
        cos, sin = rope.at(torch.arange(max_tokens))
        library.set_rope(cos.squeeze(1), sin.squeeze(1))

    def _layer(self, index: int) -> None:
        spec, library = self._spec, self._library
        prefix = f"model.layers.{index}"

        def get(part: str, *shape: int) -> torch.Tensor:
            return self._get(f"{prefix}.{part}", *shape)

        projections = (("q", spec.q_size), ("k", spec.kv_size), ("v", spec.kv_size))
        qkv = torch.cat([get(f"self_attn.{p}_proj.weight", n, spec.hidden) for p, n in projections])
        bias = None
        if spec.qkv_bias:
            bias = torch.cat([get(f"self_attn.{p}_proj.bias", n) for p, n in projections])
        library.set_matrix(index, MatrixName.QKV, qkv, bias)
        for name, part, shape in (
            (MatrixName.OUT, "self_attn.o_proj", (spec.hidden, spec.q_size)),
            (MatrixName.GATE, "mlp.gate_proj", (spec.ffn, spec.hidden)),
            (MatrixName.UP, "mlp.up_proj", (spec.ffn, spec.hidden)),
            (MatrixName.DOWN, "mlp.down_proj", (spec.hidden, spec.ffn)),
        ):
            library.set_matrix(index, name, get(f"{part}.weight", *shape))
        library.set_norm(index, NormName.INPUT, get("input_layernorm.weight", spec.hidden))
        library.set_norm(index, NormName.FFN, get("post_attention_layernorm.weight", spec.hidden))
        if spec.qk_norm:
            library.set_norm(index, NormName.QUERY, get("self_attn.q_norm.weight", spec.head_dim))
            library.set_norm(index, NormName.KEY, get("self_attn.k_norm.weight", spec.head_dim))

    def _get(self, name: str, *shape: int) -> torch.Tensor:
        tensor = checked(self._source.tensor(name), name, shape)
        return tensor.to(self._rounding).float().contiguous()


def native_spec_fault(spec: ModelSpec) -> str | None:
    """Why the native decoder cannot compute this model; None when it can."""
    if spec.heads % spec.kv_heads != 0:
        return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
    if spec.head_dim % 2 != 0:
        return f"a head of {spec.head_dim} has no pairs to turn"
    return None
