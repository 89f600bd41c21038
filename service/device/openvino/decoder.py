"""The forward pass on the OpenVINO runtime, in the place of `service.device.models.model.Decoder`.

One call computes a mixed batch of decode rows and prefill chunks: the runtime's paged
attention takes block tables as plain inputs, in the order of the flat batch. Logits are
computed for the sampled rows only.

On CPUs without bf16 products weights stay bf16 in memory and are widened where they are
multiplied: half the memory, faster for the few rows of decode steps, slower for long
prefill chunks than float32 weights (`WeightStorage.FLOAT32`). Int8 weights are multiplied by float
activations unless `activation_group` says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from service.config.settings import ConfigError
from service.device.cache.kv_cache import KvFormat
from service.device.inputs import SequenceSpan, StepInputs
from service.device.models.weight_source import WeightSource
from service.device.openvino.cache import OpenVinoKvCache, PageLayout, shared_tensor
from service.device.openvino.graph import (
    MAX_CONTEXT,
    STEP_INPUTS,
    TABLE_INPUTS,
    WeightStorage,
    build_graph,
    cache_inputs,
    unsupported,
)
from service.device.openvino.runtime import load_runtime, multiplies_bf16
from service.device.spec import ModelSpec

PAGE_TOKENS = 32
_TORCH_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_TORCH_TYPES |= {"u8": torch.uint8}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVinoSettings:
    """`rounding` is what weights are rounded to; with bfloat16 the CPU's bf16 products are
    used where it has them. `weight_storage` None keeps weights as they were rounded. `threads` None
    leaves the runtime's choice, one a core; `pinned` ties them to cores. `activation_group`
    above 0 lets CPUs with VNNI round activations to int8 in groups of that many (int8
    weights)."""

    rounding: torch.dtype = torch.bfloat16
    weight_storage: WeightStorage | None = None
    kv_format: KvFormat = KvFormat.PLAIN
    threads: int | None = None
    pinned: bool = False
    activation_group: int = 0


def build_openvino(
    source: WeightSource,
    max_tokens: int,
    settings: OpenVinoSettings,
    progress: Callable[[str], None] = lambda stage: None,
) -> OpenVinoDecoder:
    """Read the weights, build the graph and compile it. `max_tokens` bounds positions.

    Raises ConfigError when OpenVINO is absent, too different, or refuses the model.
    """
    reason = unsupported(source.spec)
    if reason is not None:
        raise ConfigError(f"{reason}; use another executor")
    ov = load_runtime()
    core = ov.Core()
    bf16 = settings.rounding is torch.bfloat16 and multiplies_bf16(core)
    weight_storage = settings.weight_storage
    if weight_storage is None:
        weight_storage = (
            WeightStorage.BFLOAT16 if settings.rounding is torch.bfloat16 else WeightStorage.FLOAT32
        )
    if weight_storage is WeightStorage.BFLOAT16 and settings.rounding is not torch.bfloat16:
        raise ConfigError("weights cannot be held in bfloat16 with --dtype float32")
    compute = "bf16" if bf16 else "f32"
    model = build_graph(source, max_tokens, settings.rounding, weight_storage, progress)
    progress("compiling the graph")
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": compute,
        "KV_CACHE_PRECISION": "u8" if settings.kv_format is KvFormat.INT8 else compute,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": settings.activation_group,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": settings.pinned,
    }
    if settings.threads is not None:
        properties["INFERENCE_NUM_THREADS"] = settings.threads
    try:
        compiled = core.compile_model(model, "CPU", properties)
    except RuntimeError as error:
        reason = [line for line in str(error).splitlines() if line.strip()][-1]
        raise ConfigError(
            f"OpenVINO cannot compile this model ({reason}); use another executor"
        ) from error
    layout = _layout(compiled, source.spec, settings.kv_format)
    return OpenVinoDecoder(
        compiled, source.spec, layout, _label(settings.rounding, weight_storage, bf16)
    )


class OpenVinoDecoder:
    """A compiled model and its one request. Holds no state of any sequence."""

    device = torch.device("cpu")
    adapters = None

    def __init__(self, compiled: Any, spec: ModelSpec, layout: PageLayout, label: str) -> None:
        self.spec = spec
        self.layout = layout
        self.label = label
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._bound: OpenVinoKvCache | None = None
        self._held: object = None

    def make_cache(self, pages: int) -> OpenVinoKvCache:
        """Zeros; `layout.page_bytes` is what a page costs."""
        return OpenVinoKvCache(self.layout, pages)

    def forward(self, inputs: StepInputs, cache: OpenVinoKvCache) -> torch.Tensor:
        """Compute a step: writes the cache, gives float32 logits [samples, vocab]."""
        self._bind(cache)
        spans = sorted((*inputs.decodes, *inputs.prefills), key=lambda span: span.begin)
        longest = max(span.context_tokens + span.query_tokens for span in spans)
        step = {
            **dict(zip(STEP_INPUTS, _flat(inputs), strict=True)),
            **dict(zip(TABLE_INPUTS, _tables(spans), strict=True)),
            MAX_CONTEXT: torch.tensor(longest, dtype=torch.int32),
        }
        for name, values in step.items():
            self._request.set_tensor(name, shared_tensor(values))
        logits = torch.empty((len(inputs.sampled), self.spec.vocab))
        self._request.set_output_tensor(shared_tensor(logits))
        self._held = (step, logits)  # the request points into their memory
        self._request.infer()
        return logits

    def _bind(self, cache: OpenVinoKvCache) -> None:
        """The request keeps its cache from call to call: set only when it is another."""
        if cache is self._bound:
            return
        assert cache.layout == self.layout, (cache.layout, self.layout)
        for name, tensor in cache.tensors.items():
            self._request.set_tensor(name, tensor)
        self._bound = cache


def _flat(inputs: StepInputs) -> tuple[torch.Tensor, ...]:
    return tuple(
        values.to(torch.int32) for values in (inputs.token_ids, inputs.positions, inputs.sampled)
    )


def _tables(spans: list[SequenceSpan]) -> tuple[torch.Tensor, ...]:
    """Past lengths, where each row's queries begin, all pages, where each row's pages begin."""
    begins, page_begins = [0], [0]
    pages: list[int] = []
    for span in spans:
        assert span.begin == begins[-1], (span.begin, begins[-1])
        begins.append(span.begin + span.query_tokens)
        pages.extend(span.blocks)
        page_begins.append(len(pages))
    lists = ([span.context_tokens for span in spans], begins, pages, page_begins)
    return tuple(torch.tensor(numbers, dtype=torch.int32) for numbers in lists)


def _layout(compiled: Any, spec: ModelSpec, kv_format: KvFormat) -> PageLayout:
    """What the plugin chose for the cache inputs, which the graph left open."""
    pages: list[tuple[int, ...]] = []
    for name in cache_inputs(0):
        port = compiled.input(name)
        _, *page = port.partial_shape
        pages.append(tuple(size.get_length() for size in page))
        dtype = _TORCH_TYPES[port.element_type.get_type_name()]
    if kv_format is KvFormat.PLAIN and pages[0] != (spec.kv_heads, PAGE_TOKENS, spec.head_dim):
        raise ConfigError(
            f"this OpenVINO wants cache pages of {list(pages[0])}, not of {PAGE_TOKENS} tokens; "
            "use another executor"
        )
    return PageLayout(spec.layers, PAGE_TOKENS, kv_format, dtype, pages[0], pages[1])


def _label(rounding: torch.dtype, weight_storage: WeightStorage, bf16: bool) -> str:
    """For people and for facts: how numbers are stored and multiplied."""
    name = str(rounding).removeprefix("torch.")
    compute = "bfloat16" if bf16 else "float32"
    stored = f"held as {weight_storage.value}, " if weight_storage.value != name else ""
    return f"{name}, {stored}computed in {compute}"
