"""What is counted of a stretch of time, requests' side; all of it adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum

from telemetry.facts.host_records import HostSampled
from telemetry.facts.reasons import EndReason, StepFailure, WaitReason
from telemetry.facts.records import EngineHung

BUCKET_NS = 500_000_000


class Stage(IntEnum):
    """Where a request is, in phases of `telemetry.requests.phases`; each has a price of its own in
    the reference."""

    INGEST = 0  # accept, parse, tokenize
    FIRST = 1  # queue, prefill: not all of its sequences have a token
    DECODE = 2
    DELIVER = 3  # detokenize, deliver: the engine is done with it, the client is not


@dataclass(slots=True)
class Counts:
    """Sums. `live_ns` is requests' time by stage; `first_ns` that before the first token, by
    tenant. `requests` are those that came to the engine, each with one sequence or more.
    `first_tokens` are requests whose decode began, `later_tokens` tokens since then, of requests:
    those of several choices at once count once. `first_commit_logs` are tenants and natural
    logarithms of their times to first commit, in ns, which is when the engine had a token of the
    request; its TTFT is known only when it ends.

    Of the queue everybody waits for what binds its head (`waited_ns`), running ones that got no
    row for their own reason (`skipped_ns`). `gone_rows` are rows by sequence whose client had
    left. `cut` of the `constrained` sequences that ended did so for their length. `aborted` are
    steps by why they failed and what was said of it, `aborted_sequences` those that ended by it,
    `deaths_by_failure` engines that could not go on for it. Engine times, and what follows, are
    sums of samples.
    """

    accepted: int = 0
    requests: int = 0
    first_tokens: int = 0
    later_tokens: float = 0.0
    delivered: int = 0
    admitted: int = 0
    refused: int = 0
    known_tokens: int = 0
    hit_tokens: int = 0
    hit_requests: int = 0
    ghost_tokens: int = 0
    ingest_work_ns: int = 0
    judged: int = 0
    constrained: int = 0
    cut: int = 0
    invalid: int = 0
    steps_missing: int = 0
    facts_lost: int = 0
    exports_failed: int = 0
    deaths_unready: int = 0
    host_window_ns: int = 0
    engine_run_ns: int = 0
    engine_wait_ns: int = 0
    throttled_ns: int = 0
    live_ns: Counter[Stage] = field(default_factory=Counter)
    first_ns: Counter[str] = field(default_factory=Counter)
    waited_ns: Counter[WaitReason] = field(default_factory=Counter)
    skipped_ns: Counter[WaitReason] = field(default_factory=Counter)
    tenant_requests: Counter[str] = field(default_factory=Counter)
    prefill_by_sequence: Counter[int] = field(default_factory=Counter)
    gone_rows: Counter[int] = field(default_factory=Counter)
    pauses: Counter[tuple[str, str]] = field(default_factory=Counter)
    ended: Counter[EndReason] = field(default_factory=Counter)
    sequence_reasons: Counter[EndReason] = field(default_factory=Counter)
    first_commit_logs: list[tuple[str, float]] = field(default_factory=list)
    choices_asked: list[int] = field(default_factory=list)
    prompt_lengths: list[int] = field(default_factory=list)
    output_lengths: list[int] = field(default_factory=list)
    aborted: Counter[tuple[StepFailure, str]] = field(default_factory=Counter)
    aborted_sequences: Counter[StepFailure] = field(default_factory=Counter)
    deaths_by_failure: Counter[StepFailure] = field(default_factory=Counter)
    deaths: list[str] = field(default_factory=list)
    hangs: list[EngineHung] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        for entry in fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            elif isinstance(mine, list):
                mine.extend(theirs)
            else:
                setattr(self, entry.name, mine + theirs)

    def arrived(self, prompt_tokens: int) -> None:
        """A sequence came to the engine, whether or not it was taken."""
        self.prompt_lengths.append(prompt_tokens)

    def host(self, sample: HostSampled) -> None:
        self.host_window_ns += sample.window_ns
        self.engine_run_ns += sample.engine_run_ns or 0
        self.engine_wait_ns += sample.engine_wait_ns or 0
        self.throttled_ns += sample.throttled_ns or 0

    @property
    def prompt_tokens(self) -> float:
        """Of a sequence, on average."""
        return sum(self.prompt_lengths) / max(1, len(self.prompt_lengths))

    @property
    def output_tokens(self) -> float:
        """Of a sequence that ended, on average."""
        return sum(self.output_lengths) / max(1, len(self.output_lengths))

    @property
    def choices(self) -> float:
        """Of a request, on average, as many as were asked for."""
        return sum(self.choices_asked) / max(1, len(self.choices_asked))

    @property
    def hit_share(self) -> float:
        """Of the prompt tokens of admitted sequences, those that were cached."""
        return self.hit_tokens / max(1, self.known_tokens)


def add_live(
    bucket_at: Callable[[int], Counts], stage: Stage, tenant: str, begin_ns: int, end_ns: int
) -> None:
    """One request was in a stage for [begin, end): to each half second its part."""
    at_ns = begin_ns
    while at_ns < end_ns:
        stop_ns = min(end_ns, (at_ns // BUCKET_NS + 1) * BUCKET_NS)
        counts = bucket_at(at_ns)
        counts.live_ns[stage] += stop_ns - at_ns
        if stage is Stage.FIRST:
            counts.first_ns[tenant] += stop_ns - at_ns
        at_ns = stop_ns
