"""Facts become timelines: the one definition of queue, prefill, TTFT, ITL, TPOT and E2E.

Borders of the phases, which tile [accepted, ended) without gap or overlap:

    accepted   parsed    tokenized   first      first      last       detokenized   ended
       |          |          |      scheduled   tokens     token          |           |
       +--parse---+-tokenize-+--queue--+-prefill--+--decode--+-detokenize-+--deliver--+

`first scheduled` is the `begin_ns` of the first step that has a row of any of the
request's sequences; `first tokens` is the commit of the step that gave the last of its
sequences their first token (with one sequence: the first token). A request that ends
early has its last phase cut at `ended`, and no later ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.records import (
    EndReason,
    Outcome,
    Phase,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
    WaitReason,
)


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """One phase of one request, half open."""

    name: Phase
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """One prefill chunk: the part [begin_ns, committed_ns) of step `step_id`."""

    seq_id: int
    step_id: int
    start_ns: int
    end_ns: int
    tokens: int
    context_tokens: int
    recompute_tokens: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class PreemptedSpan:
    """From the plan that took the blocks to the commit of the next token (or the end)."""

    seq_id: int
    step_id: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class WaitSpan:
    """Time without a row in any step, under one binding reason."""

    reason: WaitReason
    holder_seq_id: int | None
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class SequenceTimeline:
    """What the engine did for one sequence. `token_ns[i]` is the commit of token i."""

    seq_id: int
    choice: int
    queued_ns: int | None
    scheduled_ns: int | None
    token_ns: tuple[int, ...]
    ended_ns: int | None
    end_reason: EndReason | None
    chunks: tuple[ChunkSpan, ...]
    preempted: tuple[PreemptedSpan, ...]
    waits: tuple[WaitSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimeline:
    """Everything known about one ended request."""

    accepted: RequestAccepted
    parsed: RequestParsed | None
    tokenized: RequestTokenized | None
    ended: RequestEnded
    sequences: tuple[SequenceTimeline, ...]
    phases: tuple[PhaseSpan, ...]

    @property
    def outcome(self) -> Outcome:
        return self.ended.reason.outcome

    @property
    def e2e_ns(self) -> int:
        return self.ended.at_ns - self.accepted.at_ns
