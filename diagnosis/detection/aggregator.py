"""A fold over facts: demand, waits and computation, summed per half second.

Each quantity is filed by the time stamp of its fact, so late facts find their place, and the
state at a moment depends on the facts so far, not on how they were batched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from diagnosis.detection.counts import BUCKET_NS, Buckets, Counts
from diagnosis.detection.holders import Holders
from diagnosis.detection.host_time import HostTime, host_time
from diagnosis.detection.requests import Requests
from diagnosis.detection.steps import StepLog, StepRow, Steps, row_of
from diagnosis.detection.waits import Waits
from diagnosis.thresholds import HANG_TICKS
from telemetry.facts.adapter_records import AdapterEvicted, AdapterLoaded, AdapterRead
from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    GrammarCompiled,
    LimitsSet,
    RecordingSet,
    SequenceAdmitted,
    SequenceEnded,
    SequencePaused,
    SequenceQueued,
    SequenceRefused,
    SequenceResumed,
    SequencesListed,
    StepAborted,
    StepRecorded,
)
from telemetry.facts.host_records import GpuSampled, GpuXid, HostPaused, HostSampled
from telemetry.facts.limits import with_limits
from telemetry.facts.reasons import EndReason, HostProcess
from telemetry.facts.records import (
    UNKNOWN_ROUTE,
    EngineDied,
    EngineHung,
    EngineRecovered,
    ExportFailed,
    Fact,
    FactsLost,
    FoldDetached,
    RequestAccepted,
    RequestEnded,
    RequestParsed,
    RequestsListed,
    RequestTokenized,
    SequenceSubmitted,
    fact_ns,
)
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy

_KEPT = 64
_KEPT_PAUSES = 2_048
KEPT_NS = 180_000_000_000  # the longest stretch that is ever judged or learnt is shorter


class Aggregator:
    """Keeps the last three minutes.

    `started` is the engine that runs or ran last (None before the first), with the limits in
    force, `ready` whether it runs, `hung` how it hangs (None while it does not), `recording`
    whether steps are recorded. `detached` are folds of telemetry that raised, with the type of the
    error. `pauses` are the last ones of the two processes. `sees_front_end` and `sees_engine_host`
    are True once a fact came from there. Prompts of more than
    `long_prompt_tokens` are counted apart (0: none is). `policy` has the targets of classes.
    """

    def __init__(self, policy: SloPolicy = DEFAULT_POLICY) -> None:
        self.started: EngineStarted | None = None
        self._limits: deque[tuple[int, EngineStarted]] = deque(maxlen=_KEPT)
        self.ready = False
        self.hung: EngineHung | None = None
        self._hung_ns = 0
        self.recording = True
        self.first_ns: int | None = None
        self.last_ns = 0
        self._buckets = Buckets()
        self._at = self._buckets.at
        self._steps = StepLog()
        self.requests = Requests(self._at, policy)
        self.detached: dict[str, str] = {}
        self._waits = Waits(self.requests)
        self._holders = Holders()
        self._constrained: set[int] = set()
        self._commit_ns: int | None = None
        self._last_step_id: int | None = None
        self.pauses: deque[HostPaused] = deque(maxlen=_KEPT_PAUSES)
        self.long_prompt_tokens = 0
        self.sees_front_end = self.sees_engine_host = False
        self._gateways = {0}  # processes that have served requests

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self.on_fact(fact)

    def on_fact(self, fact: Fact) -> None:
        at_ns = fact_ns(fact)
        if self.first_ns is None:
            self.first_ns = at_ns
        self.last_ns = max(self.last_ns, at_ns)
        match fact:
            case StepRecorded():
                self._step(fact)
            case RequestAccepted():
                self.sees_front_end |= fact.route != UNKNOWN_ROUTE
                self._gateways.add(fact.gateway)
                self.requests.accepted(fact)
            case RequestParsed():
                self.requests.parsed(fact)
            case RequestTokenized():
                self.requests.tokenized(fact)
            case SequenceSubmitted():
                self.requests.submitted(fact)
            case RequestEnded():
                self.requests.ended(fact)
            case RequestsListed():
                self.requests.listed(fact)
            case FactsLost() | FoldDetached():
                self._of_telemetry(fact)
            case HostSampled():
                self.sees_engine_host |= fact.engine_run_ns is not None
                self._at(at_ns).hosts.append(fact)
            case HostPaused():
                self._host_paused(fact)
            case GpuSampled():
                self._at(at_ns).gpus.append(fact)
            case GpuXid():
                self._at(at_ns).xids.append(fact)
            case _:
                self._of_engine(fact)

    def counts(self, begin_ns: int, end_ns: int) -> Counts:
        """The sums of the ticks that begin within [begin, end), and the time of requests that are
        still in flight."""
        total = self.requests.open_counts(begin_ns, end_ns)
        self._buckets.add_to(total, begin_ns, end_ns)
        return total

    def steps(self, begin_ns: int, end_ns: int) -> Steps:
        """Steps that were committed within [begin, end)."""
        return self._steps.between(begin_ns, end_ns)

    def host_time(self, counts: Counts, begin_ns: int) -> HostTime:
        """The host's samples of a stretch that begins then and has these `counts`."""
        since_ns = min((one.at_ns - one.window_ns for one in counts.hosts), default=begin_ns)
        return host_time(counts.hosts, self.steps(since_ns, self.last_ns + 1), begin_ns)

    def started_at(self, at_ns: int) -> EngineStarted | None:
        """The engine that ran then, with the limits that were in force."""
        for since_ns, started in reversed(self._limits):
            if since_ns <= at_ns:
                return started
        return self._limits[0][1] if self._limits else None

    def forget(self, now_ns: int) -> None:
        """Drop ticks older than KEPT_NS."""
        self._buckets.forget(now_ns - KEPT_NS)

    # --- the engine ----------------------------------------------------------------------

    def _of_engine(self, fact: Fact) -> None:
        match fact:
            case SequenceQueued():
                if not self._waits.has_live and self.is_attached:
                    self._commit_ns = None  # it was idle, and need not have said so
                self._waits.queued(fact.seq_id, fact.at_ns if fact.awaits_adapter else None)
                if fact.constrained:
                    self._constrained.add(fact.seq_id)
                self.requests.queued(fact)
                self._at(fact.at_ns).arrived(fact.prompt_tokens)
            case SequenceRefused():
                counts = self._at(fact.at_ns)
                counts.arrived(fact.prompt_tokens)
                counts.refused += 1
            case SequenceAdmitted():
                counts = self._at(fact.at_ns)
                self.requests.admitted(fact)
                counts.admitted += 1
                counts.known_tokens += fact.known_tokens
                counts.hit_tokens += fact.hit_tokens
                counts.received_tokens += fact.received_tokens
                counts.hit_requests += fact.hit_tokens > 0
                counts.ghost_tokens += fact.ghost_tokens
            case SequenceEnded():
                self._sequence_ended(fact)
            case GrammarCompiled():
                self.requests.compiled(fact)
            case AdapterRead() | AdapterLoaded() | AdapterEvicted():
                self._waits.adapter(fact, self._at(fact.at_ns))
            case SequencesListed():
                self._listed(fact)
            case SequencePaused():
                self._holders.paused(fact.seq_id)
                self._waits.pause(fact.seq_id, fact.at_ns)
            case SequenceResumed():
                self._waits.paused.discard(fact.seq_id)
            case EngineIdled():
                self._commit_ns = None
            case EngineStarted() | EngineDied():
                self._restarted(fact)
            case LimitsSet() if self.started is not None:
                self._begin_with(with_limits(self.started, fact.limits), fact.at_ns)
            case EngineHung():
                self.hung, self._hung_ns = fact, fact.at_ns
            case EngineRecovered():
                self._hang_ended(fact.at_ns)
            case StepAborted():
                counts = self._at(fact.at_ns)
                counts.aborted[fact.failure, fact.detail] += 1
                counts.aborted_sequences[fact.failure] += fact.sequences
            case ExportFailed():
                self._at(fact.at_ns).exports_failed += fact.attempts
            case RecordingSet():
                self.recording = fact.enabled
                self._commit_ns = self._last_step_id = None
            case _:
                pass

    @property
    def is_attached(self) -> bool:
        """Whether the engine is not our own."""
        return self.started is not None and self.started.is_attached

    def _restarted(self, fact: EngineStarted | EngineDied) -> None:
        self._commit_ns = self._last_step_id = None
        self._hang_ended(fact.at_ns)
        self._waits.clear()
        self._constrained.clear()
        self._holders.clear()
        if isinstance(fact, EngineStarted):
            self.ready = True
            self._begin_with(fact, fact.at_ns)
            return
        counts = self._at(fact.at_ns)
        counts.deaths.append(fact.detail)
        counts.deaths_unready += not self.ready
        if fact.failure is not None:
            counts.deaths_by_failure[fact.failure] += 1
        self.ready = False

    def _begin_with(self, started: EngineStarted, at_ns: int) -> None:
        self.started = started
        self._limits.append((at_ns, started))

    def _hang_ended(self, at_ns: int) -> None:
        """Filed into earlier ticks as well: the judged window lags behind the facts."""
        hang, self.hung = self.hung, None
        if hang is not None:
            for lag in range(HANG_TICKS):
                self._at(at_ns - lag * BUCKET_NS).hangs.append(hang)

    def _listed(self, fact: SequencesListed) -> None:
        """Drop sequences that are not listed: their end fact was lost."""
        self.requests.sequences_listed(fact)
        self._holders.listed(fact)
        self._waits.listed(fact)
        self._constrained.difference_update(fact.over(self._constrained))

    def _of_telemetry(self, fact: FactsLost | FoldDetached) -> None:
        if isinstance(fact, FoldDetached):
            self.detached[fact.fold] = fact.error_type
        elif fact.source.is_of_requests:
            self._at(fact.at_ns).facts_lost += fact.count

    @property
    def live(self) -> int:
        """Requests and sequences in the books; zero when all have ended."""
        return self.requests.live + len(self._waits.heads | self._waits.paused | self._constrained)

    def _sequence_ended(self, fact: SequenceEnded) -> None:
        counts = self._at(fact.at_ns)
        self._waits.ended(fact.seq_id)
        self._holders.ended(fact.seq_id)
        counts.sequence_reasons[fact.reason] += 1
        counts.output_lengths.append(fact.output_tokens)
        if fact.seq_id in self._constrained:
            self._constrained.discard(fact.seq_id)
            counts.constrained += 1
            counts.cut += fact.reason in (EndReason.MAX_TOKENS, EndReason.CONTEXT)
        self.requests.sequence_ended(fact.seq_id, fact.reason, fact.at_ns)

    def _step(self, step: StepRecorded) -> None:
        since_ns = step.begin_ns if self._commit_ns is None else self._commit_ns
        turn_ns = max(1, step.committed_ns - since_ns)
        self._commit_ns = step.committed_ns
        counts = self._at(step.committed_ns)
        if self._last_step_id is not None and step.step_id > self._last_step_id + 1:
            counts.steps_missing += step.step_id - self._last_step_id - 1
            turn_ns = max(1, step.committed_ns - step.begin_ns)
        self._last_step_id = step.step_id
        row = self._row(step, turn_ns, counts)
        if step.begin_ns < self._hung_ns < step.committed_ns:
            return  # it includes a hang: its length says nothing about the cost of steps
        if step.rows or not self.is_attached:  # one without rows says nothing of what rows cost
            self._steps.append(row)
        self._waits.count(step, turn_ns, counts)

    def _row(self, step: StepRecorded, turn_ns: int, counts: Counts) -> StepRow:
        recompute = long_tokens = 0
        zombies = self.requests.step(step, counts)
        counts.zombie_rows_by_sequence.update(row.seq_id for row in zombies)
        for row in [row for row in step.rows if row.is_prefill]:
            recompute += row.recompute_tokens
            counts.prefill_by_sequence[row.seq_id] += row.tokens
            if self.requests.has_prompt_above(self.long_prompt_tokens, row.seq_id):
                long_tokens += row.tokens
            self._waits.computed(row.seq_id)
        block_tokens = 16 if self.started is None else self.started.block_tokens
        held = self._holders.step(step, zombies, block_tokens)
        return row_of(
            step,
            turn_ns,
            held,
            paused=len(self._waits.paused),
            zombie_rows=len(zombies),
            recompute_tokens=recompute,
            long_tokens=long_tokens,
        )

    def _host_paused(self, fact: HostPaused) -> None:
        if self.is_attached and fact.process is HostProcess.GATEWAY:
            return  # of the process that observes, and not of the engine's front end
        length_ns = fact.end_ns - fact.begin_ns
        lost_ns = length_ns if fact.lost_ns is None else min(fact.lost_ns, length_ns)
        if fact.gateway:  # one of several: it delays the requests that it serves
            lost_ns //= max(1, len(self._gateways) - 1)
            fact = replace(fact, lost_ns=lost_ns)
        self.pauses.append(fact)
        self._at(fact.at_ns).pauses[fact.process.value, fact.cause.value] += lost_ns
