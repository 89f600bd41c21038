"""One sequence on its way through the engine.

    WAITING --admit--> RUNNING --commit of its last token, cancel--> ENDED
       ^                  |
       +----preempt-------+      (WAITING may also end: cancel, deadline, a token in flight)

A request holds the ids of its blocks and the index of its slot; which block belongs to whom is
the block pool's state. `computed_tokens` have their keys and values in the cache once every
launched step is done; `prefill_tokens` is how many must be there before the next token can be
sampled from a prefill chunk. The first `cached_blocks` blocks are in the prefix cache under their
`digests`; `recorded_aliases` stand for full blocks in the record. A running request keeps the sort
key that it was admitted with: `admitted_class`, and `admitted_service`, its tenant's service at
that moment. `late` marks a waiting one that could not meet its first-token target any more. The
scores of `scored_tokens` rows of its prompt are in a launched step; they are not computed again.
One that `awaits_kv` has the blocks of its prefix hits while it waits, and all of its prompt's when
the KV has come; `received_tokens` of its computed ones came so (`service.engine.remote_kv`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from service.engine.draft_proposer import DraftProposer
from service.engine.inbox import Submit
from service.engine.prompt_output import NO_READS, Reads


class Status(StrEnum):
    """Where the request is. An ended request is in no table any more."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Request:
    """Mutable state of one sequence; the scheduler and the sequence table write it."""

    submit: Submit
    status: Status = Status.WAITING
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    computed_tokens: int = 0
    prefill_tokens: int = 0
    ever_computed_tokens: int = 0
    received_tokens: int = 0
    in_flight_samples: int = 0
    preemptions: int = 0
    arrival: int = 0
    queued_ns: int = 0
    admitted_class: int = 0
    admitted_service: float = 0
    late: bool = False
    awaits_grammar: bool = False
    awaits_adapter: bool = False
    awaits_kv: bool = False
    paused: bool = False
    cache_root: bytes = b""
    cacheable: bool = False
    digests: list[bytes] = field(default_factory=list)
    recorded_aliases: list[int] = field(default_factory=list)
    cached_blocks: int = 0
    proposer: DraftProposer | None = None
    scored_tokens: int = 0

    @property
    def seq_id(self) -> int:
        return self.submit.seq_id

    @property
    def known_tokens(self) -> int:
        """Prompt and committed outputs."""
        return len(self.submit.prompt) + len(self.outputs)

    @property
    def next_output_index(self) -> int:
        """Index of the output that the next sampled row will give."""
        return len(self.outputs) + self.in_flight_samples

    @property
    def in_prefill(self) -> bool:
        return self.computed_tokens < self.prefill_tokens

    def tokens(self, start: int, count: int) -> list[int]:
        """Token ids at positions start .. start + count - 1 of prompt and outputs."""
        prompt = self.submit.prompt
        end = start + count
        assert end <= self.known_tokens, f"{self.seq_id}: {end} > {self.known_tokens} known"
        if end <= len(prompt):
            return prompt[start:end]
        if start >= len(prompt):
            return self.outputs[start - len(prompt) : end - len(prompt)]
        return prompt[start:] + self.outputs[: end - len(prompt)]

    @property
    def blocked(self) -> bool:
        """Whether it cannot be scheduled for a reason of its own: its grammar is not compiled, its
        adapter is not placed, its KV comes from another engine, or its client reads too slowly.
        Other requests pass it."""
        return self.awaits_grammar or self.awaits_adapter or self.awaits_kv or self.paused

    @property
    def is_named(self) -> bool:
        """Whether its blocks have digests and aliases; those of a `cacheable` one may be shared."""
        return bool(self.cache_root)

    def recompute_tokens(self, count: int) -> int:
        """How many of the next `count` tokens had been computed before a preemption."""
        return max(0, min(count, self.ever_computed_tokens - self.computed_tokens))

    @property
    def scores_prompt(self) -> bool:
        """Whether its prompt tokens cost the head too."""
        output = self.submit.prompt_output
        return output is not None and output.pooling is None

    def take_reads(self, count: int) -> Reads:
        """The rows of the next `count` tokens that its prompt output wants."""
        output = self.submit.prompt_output
        if output is None:
            return NO_READS
        first, stop = output.positions(len(self.submit.prompt))
        first = max(first, self.computed_tokens, self.scored_tokens)
        stop = min(stop, self.computed_tokens + count)
        if first >= stop:
            return NO_READS
        if self.scores_prompt:
            self.scored_tokens = stop
        return Reads(first, stop, self.scores_prompt)

    def advance(self, count: int) -> None:
        """`count` more tokens are in a launched step."""
        self.computed_tokens += count
        self.ever_computed_tokens = max(self.ever_computed_tokens, self.computed_tokens)
