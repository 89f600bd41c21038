"""Our engine in one process, and transformers as the reference, on the same prompts."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from service.config.settings import EngineConfig, ModelKind, ModelRef
from service.device.loader import LoadedEngine, load_executor
from service.device.torch_executor import DeviceExecutor
from service.engine.admission import Limits
from service.engine.inbox import Inbox, Submit
from service.engine.loop import EngineLoop
from service.engine.plan import SamplingParams
from service.engine.prompt_output import PromptOutput, PromptResult
from service.engine.scheduler import Scheduler
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import SequenceAdmitted, StepRecorded
from telemetry.facts.recorder import Lane


def load_reference(path: Path) -> Any:
    """transformers' own reading of the GGUF: an implementation that shares nothing with ours."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    return model.eval()


def rounded_to_bf16(model: Any) -> Any:
    """The same model as loading it in bf16 gives: weights rounded, buffers as they were."""
    rounded = copy.deepcopy(model)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return rounded


class Judge:
    """Asks the reference about each place of a text; the same text of the same prompt once."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._answers: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = {}

    @torch.inference_mode()
    def behind(self, prompt: list[int], text: list[int]) -> list[float]:
        """By how many logits each token of `text` is worse than the reference's own choice after
        `prompt` and the tokens before it; 0 where it is that choice."""
        asked = (tuple(prompt), tuple(text))
        if asked not in self._answers:
            feed = torch.tensor([prompt + text[:-1]])
            logits = self._model(input_ids=feed, logits_to_keep=len(text)).logits[0]
            own = logits[torch.arange(len(text)), torch.tensor(text)]
            self._answers[asked] = (logits.amax(dim=-1) - own).tolist()
        return self._answers[asked]


@dataclass(frozen=True)
class Built:
    """An executor that a test made itself."""

    executor: DeviceExecutor
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
        self.steps: list[StepRecorded] = []
        self.read: list[list[PromptResult]] = []

    def greedy(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """All prompts at once; outputs in their order."""
        return self.generate(prompts, count, SamplingParams(temperature=0.0))

    def generate(
        self,
        prompts: list[list[int]],
        count: int,
        sampling: SamplingParams,
        prompt_output: PromptOutput | None = None,
    ) -> list[list[int]]:
        """Outputs; `read` has what came of each prompt."""
        first = self._next_seq_id
        self._next_seq_id += len(prompts)
        outputs: list[list[int]] = [[] for _ in prompts]
        self.read = [[] for _ in prompts]
        for index, prompt in enumerate(prompts):
            seq_id = first + index
            self._inbox.put(
                Submit(
                    seq_id=seq_id, prompt=prompt, max_tokens=count, sampling=sampling,
                    prompt_output=prompt_output,
                )
            )  # fmt: skip
        while True:
            for emission in self._loop.step():
                if emission.prompt is not None:
                    self.read[emission.seq_id - first].append(emission.prompt)
                if emission.sample is not None:
                    outputs[emission.seq_id - first].append(emission.sample.token_id)
            for fact in self._lane.drain():
                if isinstance(fact, StepRecorded):
                    self.steps.append(fact)
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
