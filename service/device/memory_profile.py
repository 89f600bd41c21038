"""How much memory of a GPU is left for the KV cache once the weights are loaded: measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from service.device.cache.kv_cache import Pages
from service.device.inputs import build_inputs
from service.device.sampling.draw_on_device import draw_on_device, draws_of
from service.device.step_decoder import StepDecoder
from service.engine.kv.blocks import blocks_for
from service.engine.plan import Plan, PrefillChunk, SamplingParams

_SHARE = 0.92
_GRAPHS_BYTES = 1 << 30
_GIB = 1 << 30
_NUCLEUS = SamplingParams(temperature=1.0, top_p=0.9)

# runs something, and gives the most bytes that the device held meanwhile beyond those of before
PeakOf = Callable[[Callable[[], object]], int]


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes of one device. `used_bytes` are allocated already, mostly weights; `step_bytes` is the
    peak of the largest step beside them. `share` of the total is used at all (vLLM's
    gpu_memory_utilization)."""

    total_bytes: int
    used_bytes: int
    step_bytes: int
    graphs_bytes: int = _GRAPHS_BYTES
    share: float = _SHARE

    @property
    def cache_bytes(self) -> int:
        wanted = int(self.total_bytes * self.share)
        return max(0, wanted - self.used_bytes - self.step_bytes - self.graphs_bytes)

    def __str__(self) -> str:
        return (
            f"{self.share:.2f} x {_gib(self.total_bytes)} - {_gib(self.used_bytes)} in use with "
            f"the weights - {_gib(self.step_bytes)} for the largest step - "
            f"{_gib(self.graphs_bytes)} for captured decodes = {_gib(self.cache_bytes)} for the "
            "KV cache"
        )


def measure_budget(
    decoder: StepDecoder[Any],
    make_pages: Callable[[int], Pages],
    tokens: int,
    rows: int,
    device: torch.device,
) -> MemoryBudget:
    """Of a CUDA device on which the weights lie. A step has at most `tokens` tokens of at most
    `rows` sequences."""
    torch.cuda.empty_cache()  # what loading left is no memory in use
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    step_bytes = step_bytes_of(decoder, make_pages, tokens, rows, device, cuda_peak(device))
    return MemoryBudget(total_bytes, total_bytes - free_bytes, step_bytes)


def step_bytes_of(
    decoder: StepDecoder[Any],
    make_pages: Callable[[int], Pages],
    tokens: int,
    rows: int,
    device: torch.device,
    peak_of: PeakOf,
) -> int:
    """The most that computing the largest step takes beside weights and pages: logits of every
    sequence, and the draw that needs them all in order, are part of it."""
    page_tokens = make_pages(1).page_tokens
    plan = largest_plan(tokens, rows, page_tokens)
    pages = make_pages(sum(len(chunk.blocks) for chunk in plan.prefills))
    inputs = build_inputs(plan, page_tokens, device)
    count = len(plan.prefills)
    draws = draws_of([_NUCLEUS] * count, [0.5] * count, [False] * count)
    numbers = draws.numbers.to(device)
    return peak_of(lambda: draw_on_device(decoder.forward(inputs, pages), numbers, draws.most_k))


def largest_plan(tokens: int, rows: int, page_tokens: int) -> Plan:
    """As many sequences as there may be, with all the tokens that a step may have; each wants its
    logits."""
    rows = min(rows, tokens)
    chunks, first = [], 0
    for row in range(rows):
        count = tokens // rows + (row < tokens % rows)
        blocks = list(range(first, first + blocks_for(count, page_tokens)))
        first += len(blocks)
        chunks.append(PrefillChunk(row, row, 0, [0] * count, blocks, 0, True, 0))
    return Plan(0, (), tuple(chunks), (), (), (), (), tokens)


def cuda_peak(device: torch.device) -> PeakOf:
    def peak_of(run: Callable[[], object]) -> int:
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        found = torch.cuda.max_memory_allocated(device) - before
        torch.cuda.empty_cache()
        return found

    return peak_of


def _gib(count_bytes: int) -> str:
    return f"{count_bytes / _GIB:.2f} GiB"
