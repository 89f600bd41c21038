"""Decode steps as captured graphs: one for each batch size.

Within a graph nothing depends on the host but `inputs`, int32 [2, bucket]: each row's slot and the
position of its next token. The device itself keeps the block table and the last token of each slot
(`DeviceSlots`). Rows that pad the batch have the padding slot, see no key, and write to a page that
no sequence has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from service.device.cuda.buckets import bucket_of, buckets_for
from service.device.cuda.device_times import PhaseMarks
from service.device.cuda.runtime import Graph, Runtime
from service.device.cuda.slots import DeviceSlots


class Forward(Protocol):
    """What is captured."""

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
        mark: Callable[[], None],
        places: torch.Tensor | None,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Float32 logits [rows, vocab] in `out`. `places` int32 [rows] are those of each row's LoRA
        adapter; without them no row has one."""
        ...


MARK_EVERY = 64
_Key = tuple[int, bool, bool]


@dataclass(slots=True)
class GraphOutput:
    """`logits` float32 [bucket, vocab]; `tokens` int64 [bucket] are the likeliest. All graphs write
    to the same logits. `phases` is None where the graph has no marks."""

    logits: torch.Tensor
    tokens: torch.Tensor
    phases: PhaseMarks | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph with its memory."""

    bucket: int
    graph: Graph
    inputs: torch.Tensor
    output: GraphOutput


class DecodeGraphs:
    """Captured on first use, or all of them by `capture_all`. A key is (bucket, marked, adapted):
    one step in `mark_every` runs a graph with marks within, so that the others need none, and a
    step of base models only runs one without the products of LoRA adapters."""

    def __init__(
        self,
        runtime: Runtime,
        slots: DeviceSlots,
        forward: Forward,
        page_tokens: int,
        max_rows: int,
        vocab: int,
        mark_every: int = MARK_EVERY,
    ) -> None:
        self._runtime, self._slots, self._forward = runtime, slots, forward
        self._page_tokens = page_tokens
        self.buckets = buckets_for(max_rows)
        self._captured: dict[_Key, Captured] = {}
        # of all graphs: each one's own would be gigabytes
        self._logits = torch.empty(
            (self.buckets[-1], vocab), dtype=torch.float32, device=runtime.device
        )
        self._mark_every = mark_every
        self._runs = 0

    def capture_all(
        self, progress: Callable[[str], None] = lambda what: None, adapters: bool = False
    ) -> None:
        """The largest first: the smaller ones then fit into its memory. Those with `adapters` too,
        if any will be placed."""
        for bucket in reversed(self.buckets):
            progress(f"capturing decodes of {bucket} rows")
            for adapted in (False, True)[: 1 + adapters]:
                for marked in (False, True):
                    self._get((bucket, marked, adapted))

    def run(self, slots: list[int], positions: list[int], adapted: bool = False) -> GraphOutput:
        """Decode one token for each row, which goes on from the likeliest unless told otherwise.
        `adapted` rows may have LoRA adapters. What comes out is valid until the next run, for
        whoever reads it in the order of the device's work."""
        self._runs += 1
        marked = self._runs % self._mark_every == 0
        found = self._get((bucket_of(len(slots), self.buckets), marked, adapted))
        idle = found.bucket - len(slots)
        host = self._runtime.host_tensor((2, found.bucket), torch.int32)
        host[0] = torch.tensor([*slots, *[self._slots.padding] * idle], dtype=torch.int32)
        host[1] = torch.tensor([*positions, *[0] * idle], dtype=torch.int32)
        found.inputs.copy_(host, non_blocking=True)
        found.graph.replay()
        return found.output

    def _get(self, key: _Key) -> Captured:
        if key not in self._captured:
            self._captured[key] = self._capture(*key)
        return self._captured[key]

    def _capture(self, bucket: int, marked: bool, adapted: bool) -> Captured:
        known = self._slots
        device = self._runtime.device
        inputs = torch.zeros((2, bucket), dtype=torch.int32, device=device)
        inputs[0] = known.padding
        phases = PhaseMarks(self._runtime) if marked else None
        mark = phases.mark if phases is not None else _nothing
        output = GraphOutput(torch.empty(0), torch.empty(0), phases)

        def run() -> None:
            if phases is not None:
                phases.begin()
            slots, positions = inputs[0].long(), inputs[1].long()
            table = known.table[slots]
            pages = table.gather(1, (positions // self._page_tokens)[:, None])[:, 0].long()
            slot_mapping = pages * self._page_tokens + positions % self._page_tokens
            lengths = torch.where(slots == known.padding, 0, positions + 1).int()
            tokens = known.last_tokens[slots]
            places = known.places[slots] if adapted else None
            output.logits = self._forward(
                tokens, positions, slot_mapping, table, lengths, mark, places,
                self._logits[:bucket],
            )  # fmt: skip
            mark()
            output.tokens = output.logits.argmax(dim=-1)
            known.last_tokens.index_copy_(0, slots, output.tokens)
            mark()

        with torch.inference_mode():
            graph = self._runtime.capture(run)
        return Captured(bucket, graph, inputs, output)


def _nothing() -> None:
    """No mark."""
