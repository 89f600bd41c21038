"""Sums over a stretch of time. All of them add up, so longer stretches are sums of short ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum

from telemetry.facts.host_records import GpuSampled, GpuXid, HostSampled
from telemetry.facts.reasons import EndReason, StepFailure, WaitReason
from telemetry.facts.records import EngineHung

BUCKET_NS = 500_000_000  # one tick
_GROUP_TICKS = 10


class Stage(IntEnum):
    """Where a request is: phases of `telemetry.requests.phases`, put together. The baseline has a
    time per completion for each."""

    INGEST = 0  # accept, parse, tokenize
    FIRST = 1  # queue, prefill: not all of its sequences have a token
    DECODE = 2
    DELIVER = 3  # detokenize, deliver: after the engine, before the client has all


@dataclass(slots=True)
class Counts:
    """Sums of one stretch.

    `live_ns` is requests' time by stage; `first_ns` the time before the first token, by tenant.
    `requests` reached the engine, each with one sequence or more. `first_tokens` are requests whose
    decode began; `later_tokens` are tokens after that, those of parallel choices counted once.
    `first_targets_ns` are sequences that came to the engine, by the TTFT target of their class.
    `first_commit_logs` are (tenant, natural logarithm of the ns to first commit): the engine
    had a token then, while the TTFT is known only when the request has ended.

    `waited_ns` is the time of queued sequences, by the reason that blocks the head of the queue;
    `behind_ns` the part of it behind the head, `skipped_ns` that of running sequences without a
    row, by their own reason, and of those that were preempted. `admissions` are the stamps of each
    request's begin, submission and first admission. `open_lengths` are the output tokens so far of
    sequences that run now.
    `zombie_rows_by_sequence` are rows computed after the client had disconnected. `cut` counts
    constrained sequences that ended at their length limit. `aborted` are failed steps by failure
    and message, `aborted_sequences` the sequences that they ended, `deaths_by_failure` engines that
    ended with it. `hosts` are the host's samples (`host_time`).
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
    received_tokens: int = 0
    hit_requests: int = 0
    ghost_tokens: int = 0
    adapter_loads: int = 0
    adapter_reads: int = 0
    adapter_evictions: int = 0
    adapter_read_ns: int = 0
    ingest_work_ns: int = 0
    judged: int = 0
    constrained: int = 0
    cut: int = 0
    invalid: int = 0
    steps_missing: int = 0
    facts_lost: int = 0
    exports_failed: int = 0
    deaths_unready: int = 0
    live_ns: Counter[Stage] = field(default_factory=Counter)
    first_ns: Counter[str] = field(default_factory=Counter)
    waited_ns: Counter[WaitReason] = field(default_factory=Counter)
    behind_ns: Counter[WaitReason] = field(default_factory=Counter)
    skipped_ns: Counter[WaitReason] = field(default_factory=Counter)
    tenant_requests: Counter[str] = field(default_factory=Counter)
    first_targets_ns: Counter[int] = field(default_factory=Counter)
    prefill_by_sequence: Counter[int] = field(default_factory=Counter)
    zombie_rows_by_sequence: Counter[int] = field(default_factory=Counter)
    pauses: Counter[tuple[str, str]] = field(default_factory=Counter)
    ended: Counter[EndReason] = field(default_factory=Counter)
    sequence_reasons: Counter[EndReason] = field(default_factory=Counter)
    first_commit_logs: list[tuple[str, float]] = field(default_factory=list)
    admissions: list[tuple[int, int, int]] = field(default_factory=list)
    choices_requested: list[int] = field(default_factory=list)
    prompt_lengths: list[int] = field(default_factory=list)
    output_lengths: list[int] = field(default_factory=list)
    open_lengths: list[int] = field(default_factory=list)
    aborted: Counter[tuple[StepFailure, str]] = field(default_factory=Counter)
    aborted_sequences: Counter[StepFailure] = field(default_factory=Counter)
    deaths_by_failure: Counter[StepFailure] = field(default_factory=Counter)
    deaths: list[str] = field(default_factory=list)
    hangs: list[EngineHung] = field(default_factory=list)
    hosts: list[HostSampled] = field(default_factory=list)
    gpus: list[GpuSampled] = field(default_factory=list)
    xids: list[GpuXid] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        for name in _SUMS:
            more = getattr(other, name)
            if more:
                setattr(self, name, getattr(self, name) + more)
        for name in _COUNTERS:
            counted = getattr(other, name)
            if counted:
                counter = getattr(self, name)
                for key, more in counted.items():
                    counter[key] = counter.get(key, 0) + more
        for name in _LISTS:
            listed = getattr(other, name)
            if listed:
                getattr(self, name).extend(listed)

    def arrived(self, prompt_tokens: int) -> None:
        """A sequence came to the engine, admitted or refused."""
        self.prompt_lengths.append(prompt_tokens)

    @property
    def preempted_ns(self) -> int:
        """The time of sequences that lost their blocks, with a first token or without."""
        reason = WaitReason.PREEMPTED
        return self.waited_ns[reason] + self.skipped_ns[reason]

    @property
    def prompt_tokens(self) -> float:
        """Mean of a sequence."""
        return sum(self.prompt_lengths) / max(1, len(self.prompt_lengths))

    @property
    def output_tokens(self) -> float:
        """Mean of a sequence that ended."""
        return sum(self.output_lengths) / max(1, len(self.output_lengths))

    @property
    def choices(self) -> float:
        """Mean of a request, as requested (`n`)."""
        return sum(self.choices_requested) / max(1, len(self.choices_requested))

    @property
    def hit_share(self) -> float:
        """The cached part of the prompt tokens of admitted sequences."""
        return self.hit_tokens / max(1, self.known_tokens)

    @property
    def received_share(self) -> float:
        """The part of them whose KV another engine computed."""
        return self.received_tokens / max(1, self.known_tokens)


class Buckets:
    """Counts of ticks, by the number of the tick. Sums over many of them are made of the sums of
    groups of ticks, which are kept until a fact comes that belongs to one."""

    def __init__(self) -> None:
        self._ticks: dict[int, Counts] = {}
        self._groups: dict[int, Counts] = {}

    def at(self, at_ns: int) -> Counts:
        """The counts of a moment, to be added to at once."""
        index = at_ns // BUCKET_NS
        if self._groups:
            self._groups.pop(index // _GROUP_TICKS, None)
        found = self._ticks.get(index)
        if found is None:
            found = self._ticks[index] = Counts()
        return found

    def add_to(self, total: Counts, begin_ns: int, end_ns: int) -> None:
        """Add the ticks that begin within [begin, end)."""
        index, last = -(-begin_ns // BUCKET_NS), -(-end_ns // BUCKET_NS)
        while index < last:
            if index % _GROUP_TICKS == 0 and index + _GROUP_TICKS <= last:
                total.add(self._group(index // _GROUP_TICKS))
                index += _GROUP_TICKS
                continue
            found = self._ticks.get(index)
            if found is not None:
                total.add(found)
            index += 1

    def forget(self, before_ns: int) -> None:
        """Drop ticks that began before."""
        edge = before_ns // BUCKET_NS
        for index in [index for index in self._ticks if index < edge]:
            del self._ticks[index]
        for number in [number for number in self._groups if number * _GROUP_TICKS < edge]:
            del self._groups[number]

    def _group(self, number: int) -> Counts:
        found = self._groups.get(number)
        if found is None:
            found = Counts()
            for index in range(number * _GROUP_TICKS, (number + 1) * _GROUP_TICKS):
                if index in self._ticks:
                    found.add(self._ticks[index])
            self._groups[number] = found
        return found


def _names(kind: type | tuple[type, ...]) -> tuple[str, ...]:
    """Fields of `Counts` of a kind; sums are made of them several times a tick."""
    empty = Counts()
    return tuple(one.name for one in fields(Counts) if isinstance(getattr(empty, one.name), kind))


_SUMS, _COUNTERS, _LISTS = _names((int, float)), _names(Counter), _names(list)


def add_live(
    bucket_at: Callable[[int], Counts], stage: Stage, tenant: str, begin_ns: int, end_ns: int
) -> None:
    """Divide the time of one request in a stage, [begin, end), among the ticks."""
    at_ns = begin_ns
    while at_ns < end_ns:
        stop_ns = min(end_ns, (at_ns // BUCKET_NS + 1) * BUCKET_NS)
        counts = bucket_at(at_ns)
        counts.live_ns[stage] += stop_ns - at_ns
        if stage is Stage.FIRST:
            counts.first_ns[tenant] += stop_ns - at_ns
        at_ns = stop_ns
