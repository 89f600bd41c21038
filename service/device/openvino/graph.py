"""A decoder of the Llama family as an OpenVINO graph, from our own weights.

The graph is built operator by operator in the forms that the CPU plugin fuses: RMS norm,
rotary embedding (of [tokens, heads, 1, head_dim], halves apart), weights as a compressed
constant with a conversion behind it. Attention is the plugin's paged operator, which takes
the block tables as inputs of the graph and writes the step's keys and values itself.

The paged operator is not part of OpenVINO's stable operator sets. It has 28 inputs in the
versions known here; those beside ours switch off what we do not use (cache rotation,
sparse attention, sinks, eviction scores, token types, biases).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from service.config.settings import ConfigError
from service.device.models.weight_source import WeightSource, checked, reading
from service.device.openvino.runtime import load_runtime
from service.device.quantization.kept_formats import KERNELS, WeightsBackend
from service.device.quantization.rows import quantize_rows
from service.device.rope import rope_table
from service.device.spec import Feature, ModelSpec

_DYNAMIC = -1
# the inputs of every step, in this order before the cache; all int32
STEP_INPUTS = ("input_ids", "position_ids", "sampled")
TABLE_INPUTS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
MAX_CONTEXT = "max_context_len"


FEATURES = frozenset(
    {
        Feature.QKV_BIAS,
        Feature.QK_NORM,
        Feature.TIED_EMBEDDINGS,
        Feature.LINEAR_ROPE,
        Feature.LLAMA3_ROPE,
        Feature.YARN_ROPE,
        Feature.SLIDING_WINDOW,
    }
)


def unsupported(spec: ModelSpec) -> str | None:
    """Why the graph cannot compute this model; None when it can."""
    missing = spec.missing(FEATURES)
    return None if missing is None else f"the OpenVINO graph does not compute {missing}"


class WeightStorage(StrEnum):
    """How matrices are stored in memory."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"  # widened when it is multiplied, on CPUs without bf16 products
    INT8 = "int8"  # one scale an output, as `quantize_rows` makes them


def build_graph(
    source: WeightSource,
    max_tokens: int,
    rounding: torch.dtype,
    storage: WeightStorage,
    progress: Callable[[str], None] = lambda stage: None,
) -> Any:
    """An `openvino.Model` whose only output are float32 logits [samples, vocab].

    `rounding` is the dtype that all weights are rounded to first, `max_tokens` bounds
    positions. Raises ConfigError.
    """
    builder = _Builder(source, max_tokens, rounding, storage)
    with reading(source, KERNELS[WeightsBackend.OPENVINO]):
        return builder.build(progress)


def cache_inputs(layer: int) -> tuple[str, str]:
    """Names of a layer's two cache inputs."""
    return f"key_cache.{layer}", f"value_cache.{layer}"


class _Builder:
    """Holds what all layers share while the graph grows."""

    def __init__(
        self, source: WeightSource, max_tokens: int, rounding: torch.dtype, storage: WeightStorage
    ) -> None:
        self._ov = load_runtime()
        self._op = self._ov.opset13
        self._source = source
        self._spec = source.spec
        self._rounding = rounding
        self._storage = storage
        self._parameters: list[Any] = []
        self._ids, self._positions, self._sampled = (self._vector(name) for name in STEP_INPUTS)
        self._tables = [self._vector(name) for name in TABLE_INPUTS]
        self._longest = self._parameter(MAX_CONTEXT, [], self._ov.Type.i32)
        self._zero = self._op.constant(np.int32(0))
        self._cos, self._sin = self._rope_rows(max_tokens)

    def build(self, progress: Callable[[str], None]) -> Any:
        op, spec = self._op, self._spec
        embedding = self._matrix(self._weight("model.embed_tokens.weight", spec.vocab, spec.hidden))
        hidden = op.gather(embedding, self._ids, self._zero)
        for index in range(spec.layers):
            if index % max(1, spec.layers // 4) == 0:
                progress(f"building the graph, layer {index} of {spec.layers}")
            prefix = f"model.layers.{index}"
            hidden = op.add(hidden, self._attention(prefix, index, hidden))
            hidden = op.add(hidden, self._feed_forward(prefix, hidden))
        wanted = op.gather(hidden, self._sampled, self._zero)
        normed = self._rms_norm(wanted, "model.norm.weight", spec.hidden)
        head = embedding
        if not spec.tied_embeddings:
            head = self._matrix(self._weight("lm_head.weight", spec.vocab, spec.hidden))
        logits = op.result(op.matmul(normed, head, False, True))
        return self._ov.Model([logits], self._parameters, f"{spec.family} decoder")

    def _attention(self, prefix: str, index: int, hidden: Any) -> Any:
        op, spec = self._op, self._spec
        normed = self._rms_norm(hidden, f"{prefix}.input_layernorm.weight", spec.hidden)
        sizes = (spec.q_size, spec.kv_size, spec.kv_size)
        names = [f"{prefix}.self_attn.{part}_proj" for part in "qkv"]
        weights = [
            self._weight(f"{name}.weight", size, spec.hidden)
            for name, size in zip(names, sizes, strict=True)
        ]
        qkv = op.matmul(normed, self._matrix(torch.cat(weights)), False, True)
        if spec.qkv_bias:
            biases = [self._weight(f"{n}.bias", size) for n, size in zip(names, sizes, strict=True)]
            qkv = op.add(qkv, self._floats(torch.cat(biases)[None]))
        query, key, value = self._split(qkv, sizes)
        query = self._placed(query, spec.heads, f"{prefix}.self_attn.q_norm.weight")
        key = self._placed(key, spec.kv_heads, f"{prefix}.self_attn.k_norm.weight")
        mixed = self._paged_attention(index, query, key, value)
        out = self._weight(f"{prefix}.self_attn.o_proj.weight", spec.hidden, spec.q_size)
        return op.matmul(mixed, self._matrix(out), False, True)

    def _placed(self, flat: Any, heads: int, norm: str) -> Any:
        """Queries or keys [tokens, heads * head_dim], normed if the family does, and turned."""
        op, spec = self._op, self._spec
        parts = op.reshape(flat, self._shape(0, heads, 1, spec.head_dim), True)
        if spec.qk_norm:
            parts = self._rms_norm(parts, norm, spec.head_dim)
        first, second = self._split(parts, (spec.head_dim // 2,) * 2, axis=3)
        minus = op.constant(np.full((1, 1, 1, 1), -1.0, np.float32))
        crossed = op.concat([op.multiply(second, minus), first], -1)
        turned = op.add(op.multiply(parts, self._cos), op.multiply(crossed, self._sin))
        return op.reshape(turned, self._shape(0, heads * spec.head_dim), True)

    def _paged_attention(self, index: int, query: Any, key: Any, value: Any) -> Any:
        op, ov, spec = self._op, self._ov, self._spec
        cache = [
            self._parameter(name, [_DYNAMIC] * 4, ov.Type.dynamic) for name in cache_inputs(index)
        ]
        scale = op.constant(np.float32(spec.head_dim**-0.5))
        window = op.constant(np.int32(spec.window(index) or 0))  # 0 is none
        no_slopes = _empty(op, np.float32)
        arguments = [query, key, value, *cache, *self._tables, scale, window, no_slopes]
        arguments += [self._longest, *self._switched_off()]
        try:
            node = ov.op._PagedAttentionExtension([_output(item) for item in arguments])
        except (AttributeError, RuntimeError) as error:
            raise ConfigError(
                f"OpenVINO {ov.__version__} has another paged attention than the versions known "
                "here; install openvino 2026.4, or choose another executor"
            ) from error
        sizes = {"k_head_size": spec.head_dim, "num_k_heads": spec.kv_heads}
        sizes |= {"v_head_size": spec.head_dim, "num_v_heads": spec.kv_heads}
        notes = node.get_rt_info()
        for name, size in sizes.items():
            notes[name] = size
        return node.output(0)

    def _switched_off(self) -> list[Any]:
        """Inputs 13 to 27: empty tensors and zeros, each of the type that is asked for."""
        op, zero = self._op, self._zero
        ints, floats = _empty(op, np.int32), _empty(op, np.float32)
        rotation = [ints, _empty(op, np.int32, rank=2), _empty(op, np.float32, rank=2)]
        sparse = [floats, zero, zero]
        sinks = floats
        eviction = [zero, ints, ints, ints]
        token_types, bias, bias_begins = ints, _empty(op, np.uint8), ints
        return [ints, *rotation, *sparse, sinks, *eviction, token_types, bias, bias_begins]

    def _feed_forward(self, prefix: str, hidden: Any) -> Any:
        op, spec = self._op, self._spec
        normed = self._rms_norm(hidden, f"{prefix}.post_attention_layernorm.weight", spec.hidden)
        gate, up = (
            op.matmul(
                normed,
                self._matrix(
                    self._weight(f"{prefix}.mlp.{part}_proj.weight", spec.ffn, spec.hidden)
                ),
                False,
                True,
            )
            for part in ("gate", "up")
        )
        down = self._weight(f"{prefix}.mlp.down_proj.weight", spec.hidden, spec.ffn)
        gated = op.multiply(op.swish(gate), up)
        return op.matmul(gated, self._matrix(down), False, True)

    def _rms_norm(self, values: Any, name: str, width: int) -> Any:
        op = self._op
        squares = op.power(values, op.constant(np.float32(2.0)))
        mean = op.reduce_mean(squares, self._shape(-1), True)
        root = op.sqrt(op.add(mean, op.constant(np.float32(self._spec.norm_eps))))
        normed = op.multiply(values, op.divide(op.constant(np.float32(1.0)), root))
        return op.multiply(self._floats(self._weight(name, width)), normed)

    def _rope_rows(self, max_tokens: int) -> tuple[Any, Any]:
        """Cosines and sines of the step's positions, [tokens, 1, 1, head_dim]."""
        tables = rope_table(self._spec.rope, self._spec.head_dim, max_tokens)
        cos, sin = (self._floats(table.repeat(1, 2)[:, None, None]) for table in tables)
        rows = [self._op.gather(table, self._positions, self._zero) for table in (cos, sin)]
        return rows[0], rows[1]

    def _matrix(self, weight: torch.Tensor) -> Any:
        """[out, in] as the graph's own constant, widened to float32 where it is read."""
        op, ov = self._op, self._ov
        if self._storage is WeightStorage.INT8:
            quantized, scales = quantize_rows(weight)
            wide = op.convert(op.constant(quantized.numpy()), "f32")
            return op.multiply(wide, op.constant(scales.numpy()))
        if self._storage is WeightStorage.FLOAT32:
            return self._floats(weight)
        held = ov.Tensor(ov.Type.bf16, ov.Shape(list(weight.shape)))
        held.data.view(np.int16)[:] = weight.bfloat16().contiguous().view(torch.int16).numpy()
        return _kept_narrow(ov, ov.op.Constant(held))

    def _weight(self, name: str, *shape: int) -> torch.Tensor:
        return checked(self._source.tensor(name), name, shape).to(self._rounding)

    def _floats(self, values: torch.Tensor) -> Any:
        return self._op.constant(values.float().contiguous().numpy())

    def _shape(self, *sizes: int) -> Any:
        return self._op.constant(np.array(sizes, np.int64))

    def _split(self, values: Any, sizes: tuple[int, ...], axis: int = 1) -> list[Any]:
        node = self._op.variadic_split(
            values, self._op.constant(np.int64(axis)), self._shape(*sizes)
        )
        return [node.output(index) for index in range(len(sizes))]

    def _vector(self, name: str) -> Any:
        return self._parameter(name, [_DYNAMIC], self._ov.Type.i32)

    def _parameter(self, name: str, shape: list[int], dtype: Any) -> Any:
        node = self._op.parameter(self._ov.PartialShape(shape), dtype)
        node.set_friendly_name(name)
        node.output(0).set_names({name})
        self._parameters.append(node)
        return node


def _kept_narrow(ov: Any, constant: Any) -> Any:
    """A conversion to float32 that the plugin does not apply at compile time.

    It takes a mark that Python cannot make, but that the pass which compresses a model's
    floats leaves behind: so the conversion of a small model is taken over.
    """
    from openvino._offline_transformations import compress_model_transformation

    op = ov.opset13
    given = op.parameter(ov.PartialShape([1, 4]), ov.Type.f32)
    product = op.matmul(given, op.constant(np.ones((4, 4), np.float32)), False, True)
    donor = ov.Model([op.result(product)], [given], "donor")
    compress_model_transformation(donor)
    (conversion,) = [node for node in donor.get_ops() if node.get_type_name() == "Convert"]
    product.input(1).replace_source_output(op.constant(np.ones((4, 4), np.float32)).output(0))
    conversion.input(0).replace_source_output(constant.output(0))
    ov.Model([op.result(conversion)], [], "taken over").validate_nodes_and_infer_types()
    return conversion


def _empty(op: Any, dtype: Any, rank: int = 1) -> Any:
    return op.constant(np.zeros((0,) * rank, dtype))


def _output(item: Any) -> Any:
    return item.output(0) if hasattr(item, "outputs") else item
