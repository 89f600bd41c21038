"""Our engine in one process, and transformers as the reference, on the same prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from service.config import EngineConfig, ModelKind, ModelRef
from service.device.loader import LoadedEngine, load_executor
from service.device.torch_executor import TorchExecutor
from service.engine.admission import Limits
from service.engine.inbox import Inbox, Submit
from service.engine.loop import EngineLoop
from service.engine.plan import SamplingParams
from service.engine.scheduler import Scheduler
from telemetry.clock import MonotonicClock
from telemetry.engine_records import SequenceAdmitted, StepRecorded
from telemetry.recorder import Lane


@dataclass(frozen=True)
class Reference:
    """Greedy continuation and, at each place, the distance between the two best logits."""

    tokens: list[int]
    margins: list[float]


def load_reference(path: Path, dtype: torch.dtype) -> Any:
    """transformers' own reading of the GGUF: an implementation that shares nothing with ours."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
    return model.eval()


@torch.inference_mode()
def reference_greedy(model: Any, prompt: list[int], count: int) -> Reference:
    tokens: list[int] = []
    margins: list[float] = []
    feed, cache = torch.tensor([prompt]), None
    for _ in range(count):
        out = model(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        best = out.logits[0, -1].float().topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        feed = torch.tensor([[tokens[-1]]])
    return Reference(tokens, margins)


@dataclass(frozen=True)
class Built:
    """An executor that a test made itself."""

    executor: TorchExecutor[Any]
    max_model_tokens: int


class Engine:
    """The production loop on the real device, driven by hand."""

    def __init__(self, loaded: LoadedEngine | Built, depth: int = 1, **limits: Any) -> None:
        self.limits = Limits(
            block_tokens=loaded.executor.block_tokens,
            blocks_total=limits.pop("blocks_total", loaded.executor.blocks_total),
            max_model_tokens=limits.pop("max_model_tokens", loaded.max_model_tokens),
            max_seqs=limits.pop("max_seqs", 16),
            budget_tokens=limits.pop("budget_tokens", 256),
            chunked_prefill=limits.pop("chunked_prefill", True),
            queue_limit_requests=1000,
            queue_limit_tokens=1_000_000,
            **limits,
        )
        self._inbox, self._lane = Inbox(), Lane()
        self._loop = EngineLoop(
            Scheduler(self.limits),
            loaded.executor,
            self._inbox,
            self._lane,
            MonotonicClock(),
            depth=depth,
        )
        self._next_seq_id = 0
        self.preemptions = 0
        self.accepted = self.hit_tokens = self.host_tokens = 0
        self.chunks = 0
        self.largest_batch = 0

    def greedy(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """All prompts at once; outputs in their order."""
        return self.generate(prompts, count, SamplingParams(temperature=0.0))

    def generate(
        self, prompts: list[list[int]], count: int, sampling: SamplingParams
    ) -> list[list[int]]:
        first = self._next_seq_id
        self._next_seq_id += len(prompts)
        outputs: list[list[int]] = [[] for _ in prompts]
        for index, prompt in enumerate(prompts):
            seq_id = first + index
            self._inbox.put(
                Submit(seq_id=seq_id, prompt=prompt, max_tokens=count, sampling=sampling)
            )
        while True:
            for emission in self._loop.step():
                if emission.sample is not None:
                    outputs[emission.seq_id - first].append(emission.sample.token_id)
            for fact in self._lane.drain():
                if isinstance(fact, StepRecorded):
                    self.preemptions += len(fact.preempted)
                    self.chunks += sum(row.is_prefill for row in fact.rows)
                    self.largest_batch = max(self.largest_batch, len(fact.rows))
                    decodes = [row for row in fact.rows if not row.is_prefill]
                    self.accepted += sum(row.sampled - 1 for row in decodes)
                elif isinstance(fact, SequenceAdmitted):
                    self.hit_tokens += fact.hit_tokens
                    self.host_tokens += fact.host_tokens
            if not self._loop.has_work:
                return outputs


def load_ours(path: Path, dtype: str, **settings: Any) -> LoadedEngine:
    model = ModelRef(kind=ModelKind.GGUF, path=str(path), name="default")
    config = EngineConfig(model=model, dtype=dtype, max_model_tokens=2048, **settings)
    return load_executor(config, MonotonicClock(), lambda stage: None)


@dataclass(frozen=True)
class Comparison:
    """How far two texts were compared: to the end, or to the reference's first near tie."""

    compared: int
    near_tie: bool
    equal: bool


def compare_texts(ours: list[int], reference: Reference, bar: float) -> Comparison:
    """Token for token, up to the first place where the reference itself is undecided."""
    for place, (mine, theirs) in enumerate(zip(ours, reference.tokens, strict=True)):
        if reference.margins[place] < bar:
            return Comparison(place, near_tie=True, equal=True)
        if mine != theirs:
            return Comparison(place, near_tie=False, equal=False)
    return Comparison(len(ours), near_tie=False, equal=True)
