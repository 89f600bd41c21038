"""Facts become timelines: the one definition of queue, prefill, TTFT, ITL, TPOT and E2E.

Borders of the phases, which tile [accepted, ended) without gap or overlap:

    accepted   read   parsed   tokenized   first      first     last     detokenized   ended
       |         |       |         |     scheduled    tokens    token         |          |
       +-accept--+-parse-+tokenize-+--queue--+-prefill-+--decode-+-detokenize-+--deliver-+

`accepted` is when the kernel received the request's head, `read` when the gateway read it (if the
first is not known, `accept` is empty). `first scheduled` is the `begin_ns` of the first
step that has a row of any of the request's sequences, or when blocks were reserved for the KV that
another engine computed; `first tokens` is the commit of the step
that gave the last of its sequences their first token (with one sequence: the first token). A
request that ends early has its last phase cut at `ended`, and no later ones. One that wants no
token, as an embedding, has no `decode`: its `prefill` ends at the commit of the last prompt.

Of a sequence at an engine node a token's commit is when the token came to the gateway. `first
scheduled` is when it was sent and, later by that, how long it waited by the node's clock: the way
there counts as `prefill`, the way back with the token too. Where a node does not say how long, it
is when the news came, which is with the end of that step.

Of an attached engine, `queue` holds the way from the front end to the engine core's process, and
`detokenize` the way of the last token back. These are not observed, and the ledger says so
(`telemetry.requests.engine_span`). Where nothing observes the front end, `queue` is the first.

Code that follows live requests, such as the diagnosis, takes the borders from the same functions
(`telemetry.requests.borders`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from telemetry.clocks.boundaries import RemoteSpan
from telemetry.facts.reasons import EndReason, Outcome, Phase, WaitReason
from telemetry.facts.records import (
    UNKNOWN_ROUTE,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestTokenized,
)
from telemetry.facts.tool_records import ReturnedCall, ToolCallsMade, ToolResultsReturned
from telemetry.requests.account import Account
from telemetry.requests.borders import first_commit_ns
from telemetry.requests.classes import ENGINE_WIDE, WorkloadClass
from telemetry.requests.kv_accounts import KvAccount


class Measure(StrEnum):
    """The latencies that have histograms; all in nanoseconds.

    TOKENIZE, QUEUE, PREFILL and DELIVER are the phases of that name, of every request that left
    them. TTFT is accepted to first content sent (a stream) or first token committed (a whole
    answer); TPOT is the time from first to last token over the tokens after the first; ITL is
    each gap between successive tokens of a sequence; E2E is accepted to ended. TTFT, TPOT, E2E
    and DELIVER are of finished requests only. GRAMMAR_COMPILE is the time to compile a constraint
    (near 0 from the cache), ADAPTER_LOAD the time to read and place an adapter's weights, MASK the
    time for the masks of constrained rows in one step; CANCEL_TO_FREE is from the detection of a
    disconnect, delete or timeout until the last block is free. TOOL_PARSE is the time to read the
    calls of functions out of an answer, TOOL_CHECK the time to check them against their schemas
    after it was sent; TOOL is from an answer with calls to the arrival of the request with their
    results.
    """

    QUEUE = "queue"
    PREFILL = "prefill"
    TTFT = "ttft"
    ITL = "itl"
    TPOT = "tpot"
    E2E = "e2e"
    GRAMMAR_COMPILE = "grammar_compile"
    ADAPTER_LOAD = "adapter_load"
    CANCEL_TO_FREE = "cancel_to_free"
    TOKENIZE = "tokenize"
    DELIVER = "deliver"
    MASK = "mask"
    TOOL_PARSE = "tool_parse"
    TOOL_CHECK = "tool_check"
    TOOL = "tool"


class Measured(msgspec.Struct, frozen=True, gc=False):
    """One value for a histogram. A struct, because one is created for each token, ten times as fast
    as a frozen dataclass."""

    measure: Measure
    value_ns: int
    at_ns: int
    workload: WorkloadClass


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """One phase of one request: [start_ns, end_ns)."""

    name: Phase
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """One prefill chunk: the part [begin_ns, committed_ns) of step `step_id`. `target_ns` is the
    latency target that bounded the prompt tokens of the step, None where its budget did."""

    seq_id: int
    step_id: int
    start_ns: int
    end_ns: int
    tokens: int
    context_tokens: int
    recompute_tokens: int
    sampled: int
    target_ns: int | None = None


@dataclass(frozen=True, slots=True)
class PreemptedSpan:
    """From the plan of the step that preempted the sequence to its next token, or its end."""

    seq_id: int
    step_id: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class WaitSpan:
    """Time without a row in any step, for one binding reason. Behind the head of the queue
    `head_reason` is what blocks the head."""

    reason: WaitReason
    holder_seq_id: int | None
    start_ns: int
    end_ns: int
    head_reason: WaitReason | None = None


@dataclass(frozen=True, slots=True)
class SequenceTimeline:
    """What the engine did for one sequence. `token_ns[i]` is the commit of token i.

    `hit_tokens` of its prompt were in the prefix cache when it was first admitted (so they
    were not computed), `ghost_tokens` more would have been in a larger one. `last_step_ns`
    is the commit of the last step with a row of it. `received_ns` is when the process of an
    attached engine's core received it; None: not known, or our own engine.

    Of one that was sent to the node `engine` at `sent_ns`, all stamps are the gateway's: tokens are
    when they came, `scheduled_ns` is `sent_ns` and how long it waited there, `ended_ns` when the
    last output came that counted. `remote` is its time at the node.

    Where another engine computed the prompt, `scheduled_ns` is when blocks were reserved for it,
    the first token is of when these were given to the sequence, and `kv` says what it waited for.
    """

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
    last_step_ns: int | None = None
    hit_tokens: int = 0
    ghost_tokens: int = 0
    compile_ns: int | None = None
    submitted_ns: int | None = None
    received_ns: int | None = None
    sent_ns: int | None = None
    engine: str | None = None
    remote: RemoteSpan | None = None
    kv: KvAccount | None = None

    @property
    def is_prompt_only(self) -> bool:
        """It was done when its prompt was computed, as for an embedding: it has no token."""
        return self.end_reason is EndReason.MAX_TOKENS and self.first_token_ns is None

    @property
    def first_token_ns(self) -> int | None:
        """The commit of its first token; None while it has none."""
        return self.token_ns[0] if self.token_ns else None

    @property
    def done_ns(self) -> int | None:
        """The commit of its last token, or of a prompt that was all it wanted; None: neither."""
        if self.token_ns:
            return self.token_ns[-1]
        return self.ended_ns if self.is_prompt_only else None


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The stamps of a cancellation: detected, last step committed, blocks free.

    `detected_ns` is taken by the gateway (by the engine for a deadline); `last_step_ns` is None
    for a request that never had a row in a step.
    """

    detected_ns: int | None
    last_step_ns: int | None
    freed_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimeline:
    """Everything known about one ended request. `account` is set if the phase fold has a ledger and
    the request's end is known. `is_incomplete`: facts were lost while it was live, so it adds to no
    histogram. `tool_calls` are set if its answer could call functions, `tool_results` if it brought
    results of calls."""

    accepted: RequestAccepted
    parsed: RequestParsed | None
    tokenized: RequestTokenized | None
    ended: RequestEnded
    sequences: tuple[SequenceTimeline, ...]
    phases: tuple[PhaseSpan, ...]
    account: Account | None = None
    workload: WorkloadClass = ENGINE_WIDE
    is_incomplete: bool = False
    tool_calls: ToolCallsMade | None = None
    tool_results: ToolResultsReturned | None = None

    @property
    def outcome(self) -> Outcome:
        return self.ended.reason.outcome

    @property
    def e2e_ns(self) -> int:
        return self.ended.at_ns - self.accepted.at_ns

    @property
    def is_core_only(self) -> bool:
        """Known from the core of an attached engine alone."""
        return self.accepted.route == UNKNOWN_ROUTE

    @property
    def token_count(self) -> int:
        return sum(len(sequence.token_ns) for sequence in self.sequences)

    @property
    def stamps(self) -> int:
        """A measure of its size in memory: tokens, chunks, waits and preemptions."""
        return self.token_count + sum(
            len(s.chunks) + len(s.waits) + len(s.preempted) for s in self.sequences
        )

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed because the prefix cache had them."""
        return sum(sequence.hit_tokens for sequence in self.sequences)

    @property
    def cancellation(self) -> Cancellation | None:
        """When its end was noticed, last computed and freed; None for a request not cancelled."""
        if self.outcome is not Outcome.CANCELLED:
            return None
        steps = [s.last_step_ns for s in self.sequences if s.last_step_ns is not None]
        freed = [s.ended_ns for s in self.sequences if s.ended_ns is not None]
        return Cancellation(
            detected_ns=self.ended.detected_ns,
            last_step_ns=max(steps, default=None),
            freed_ns=max(freed, default=None),
        )

    @property
    def truncated(self) -> bool:
        """The request ended before it went through all phases that are observed of it."""
        last = Phase.DETOKENIZE if self.is_core_only else Phase.DELIVER
        return self.phases[-1].name is not last

    @property
    def ttft_ns(self) -> int | None:
        shown_ns = first_commit_ns(s.first_token_ns for s in self.sequences)
        if shown_ns is None:
            return None
        if self.parsed is not None and self.parsed.stream:
            shown_ns = self.ended.first_sent_ns or shown_ns
        return shown_ns - self.accepted.at_ns

    @property
    def tpot_ns(self) -> int | None:
        """Mean time per token after the first, over all sequences; None with no such token."""
        spans = [
            (s.token_ns[-1] - s.token_ns[0], len(s.token_ns) - 1)
            for s in self.sequences
            if len(s.token_ns) > 1
        ]
        tokens = sum(count for _, count in spans)
        return sum(span for span, _ in spans) // tokens if tokens else None

    def phase_ns(self, name: Phase) -> int | None:
        for phase in self.phases:
            if phase.name is name:
                return phase.end_ns - phase.start_ns
        return None

    def measures(self) -> list[Measured]:
        """The values that this request adds to histograms, all but ITL."""
        if self.is_incomplete or self.outcome is Outcome.LOST:
            return []
        values: dict[Measure, int | None] = {
            Measure.TOKENIZE: self._completed_ns(Phase.TOKENIZE),
            Measure.QUEUE: self._completed_ns(Phase.QUEUE),
            Measure.PREFILL: self._completed_ns(Phase.PREFILL),
        }
        if self.outcome is Outcome.FINISHED:
            values[Measure.TTFT] = self.ttft_ns
            values[Measure.TPOT] = self.tpot_ns
            values[Measure.E2E] = self.e2e_ns
            values[Measure.DELIVER] = self.phase_ns(Phase.DELIVER)
        cancelled = self.cancellation
        if cancelled and cancelled.detected_ns is not None and cancelled.freed_ns is not None:
            lag_ns = max(0, cancelled.freed_ns - cancelled.detected_ns)
            values[Measure.CANCEL_TO_FREE] = lag_ns
        made = self.tool_calls
        if made is not None:
            values[Measure.TOOL_PARSE] = made.parse_ns
            values[Measure.TOOL_CHECK] = made.validate_ns if made.calls else None
        found = [(measure, value) for measure, value in values.items() if value is not None]
        found += [(Measure.TOOL, end_ns - begin_ns) for begin_ns, end_ns, _ in self.tool_waits]
        at_ns, workload = self.ended.at_ns, self.workload
        return [Measured(measure, value, at_ns, workload) for measure, value in found]

    @property
    def tool_waits(self) -> list[tuple[int, int, ReturnedCall]]:
        """From an answer with calls to the arrival of this request, which has their results."""
        if self.tool_results is None:
            return []
        end_ns = self.accepted.at_ns
        return [(min(one.called_ns, end_ns), end_ns, one) for one in self.tool_results.calls]

    def _completed_ns(self, name: Phase) -> int | None:
        """A phase's length if the request got past it."""
        if self.phases[-1].name is name:
            return None
        return self.phase_ns(name)
