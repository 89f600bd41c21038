"""What the sampler remembers of one sequence, and what its next token needs beside the logits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from service.device.sampling.grammar import Matcher
from service.engine.plan import SamplingParams
from service.engine.reasoning import Place, ReasoningWatch

_GREEDY_BELOW = 1e-5


@dataclass(slots=True)
class Slot:
    """Token counts are kept only if penalties need them."""

    params: SamplingParams
    min_tokens: int
    end_token_ids: tuple[int, ...]
    prompt_ids: frozenset[int] = frozenset()
    output_counts: Counter[int] = field(default_factory=Counter)
    matcher: Matcher | None = None
    watch: ReasoningWatch | None = None
    counts_tokens: bool = False
    is_greedy: bool = False
    bias: tuple[torch.Tensor, torch.Tensor] | None = None

    def __post_init__(self) -> None:
        params = self.params
        self.counts_tokens = (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )
        self.is_greedy = params.temperature < _GREEDY_BELOW
        if params.reasoning is not None:
            self.watch = ReasoningWatch(params.reasoning)
        if params.logit_bias:
            ids, biases = zip(*params.logit_bias.items(), strict=True)
            self.bias = torch.tensor(ids), torch.tensor(biases)

    def is_just_argmax(self, output_index: int) -> bool:
        """Whether the row's next token is the likeliest, and nothing else is asked for."""
        return self.is_greedy and self.is_just_drawn(output_index)

    def is_just_drawn(self, output_index: int) -> bool:
        """Whether the next token is the likeliest or drawn by temperature and filters, and nothing
        else is asked for."""
        if self.matcher is not None or self.params.logprobs is not None or self.reasons:
            return False
        return not self.alters_logits(output_index)

    def alters_logits(self, output_index: int) -> bool:
        held = self.holds_ends(output_index)
        return held or bool(self.params.logit_bias) or self.counts_tokens or self.reasons

    def holds_ends(self, output_index: int) -> bool:
        """Whether the text may not end with this output."""
        too_early = output_index < self.min_tokens or (
            self.matcher is not None and self.active_matcher is None
        )
        return too_early and bool(self.end_token_ids)

    @property
    def reasons(self) -> bool:
        """Whether the answer, which a grammar constrains, has not begun for certain."""
        return self.watch is not None and self.watch.place is not Place.OVER

    @property
    def active_matcher(self) -> Matcher | None:
        """The grammar, unless the sequence is inside its reasoning."""
        if self.watch is not None and self.watch.place is Place.INSIDE:
            return None
        return self.matcher

    def accept(self, token_id: int) -> None:
        """Go on past a drawn token."""
        if (self.watch is None or self.watch.accept(token_id)) and self.matcher is not None:
            self.matcher.accept(token_id)
