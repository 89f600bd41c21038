"""What executors ask of a decoder: the logits of a step, or its states where prompts are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import torch

from service.device.cache.kv_cache import Pages
from service.device.inputs import StepInputs
from service.device.lora.store import AdapterStore
from service.device.sampling.prompt_reader import PromptReader
from service.device.spec import ModelSpec
from service.engine.plan import Plan
from service.engine.prompt_output import PromptResult

PagesT = TypeVar("PagesT", bound=Pages)
_PagesIn = TypeVar("_PagesIn", bound=Pages, contravariant=True)


class StepDecoder(Protocol[_PagesIn]):
    """Weights and the forward pass over pages of its own kind; holds no state of a sequence."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def adapters(self) -> AdapterStore | None:
        """None where it does not compute them."""
        ...

    def forward(self, inputs: StepInputs, cache: _PagesIn) -> torch.Tensor:
        """Compute a step: writes the cache, gives float32 logits [samples, vocab]."""
        ...


@runtime_checkable
class StatesDecoder(Protocol[_PagesIn]):
    """A decoder whose steps can be stopped before the head, so that prompts can be read."""

    def states(self, inputs: StepInputs, cache: _PagesIn, rows: torch.Tensor) -> torch.Tensor:
        """Compute a step: the final, normalised states [rows, hidden] of flat rows."""
        ...

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """float32 logits [rows, vocab] of final states."""
        ...


def forward_and_read(
    decoder: StepDecoder[PagesT],
    reader: PromptReader,
    plan: Plan,
    inputs: StepInputs,
    cache: PagesT,
    wait: Callable[[], None] = lambda: None,
) -> tuple[torch.Tensor, tuple[PromptResult | None, ...]]:
    """The logits of a step, and what its chunks read of their prompts. `wait` returns when the
    device has computed the states, so that the time of the scores is measured alone."""
    reader.last_score_ns = 0
    if inputs.read is None:
        return decoder.forward(inputs, cache), ()
    if not isinstance(decoder, StatesDecoder):
        raise ValueError("this decoder gives no states to read prompts from")
    samples = len(inputs.sampled)
    states = decoder.states(inputs, cache, torch.cat((inputs.sampled, inputs.read)))
    logits = decoder.head(states[:samples])
    wait()
    return logits, reader.read(plan.read_chunks, states[samples:], decoder.head)
