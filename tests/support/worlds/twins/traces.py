"""What each mechanism of a twin leaves in its facts, as the real thing would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab.twins.simulated_run import REFERENCE, START_NS, Span
from lab.twins.twin import Twin
from telemetry.facts.adapter_records import AdapterEvicted
from telemetry.facts.engine_records import (
    CacheFlushed,
    EngineStarted,
    GrammarCompiled,
    RecordingSet,
    Row,
    SequenceAdmitted,
    SequencePaused,
    StepRecorded,
)
from telemetry.facts.host_records import HostPaused, HostSampled
from telemetry.facts.reasons import EndReason, HostProcess, PauseCause, WaitReason
from telemetry.facts.records import (
    EngineDied,
    EngineHung,
    EngineRecovered,
    Fact,
    RequestAccepted,
    RequestEnded,
    SequenceSubmitted,
)
from tests.support.worlds.twins.measures import (
    computed_again,
    encoding,
    hits,
    share_of_steps,
    steps,
    waits,
)

SECOND = 1_000_000_000


def fault(one: Twin) -> Span:
    """While it is there; of a healthy one, as long."""
    begin_ns = START_NS + 28 * SECOND if one.onset_ns is None else one.onset_ns
    return Span(begin_ns, START_NS + 48 * SECOND if one.end_ns is None else one.end_ns)


def of(facts: list[Fact], kind: type) -> list[Any]:
    return [fact for fact in facts if isinstance(fact, kind)]


def samples(one: Twin, span: Span) -> list[HostSampled]:
    return [fact for fact in of(one.facts, HostSampled) if span.has(fact.at_ns)]


def _hit_rate_falls(one: Twin) -> bool:
    return hits(one.facts, fault(one)) < 0.5 * hits(one.facts, REFERENCE)


def _ghosts(one: Twin) -> int:
    inside = fault(one)
    return sum(f.ghost_tokens for f in of(one.facts, SequenceAdmitted) if inside.has(f.at_ns))


def _waits_for(one: Twin, reason: WaitReason) -> bool:
    found = waits(one.facts, fault(one))
    return found[reason] > 0.5 * found.total()


def _runs_less(one: Twin) -> bool:
    """It has work to do all the time, and gets to it half of the time."""
    inner = samples(one, fault(one))[1:-1]
    return all((fact.engine_run_ns or 0) < 0.75 * fact.window_ns for fact in inner)


def pauses(one: Twin, process: HostProcess, cause: PauseCause, least_ms: int) -> int:
    return sum(
        fact.process is process
        and fact.cause is cause
        and fact.end_ns - fact.begin_ns >= least_ms * 1_000_000
        for fact in of(one.facts, HostPaused)
    )


def _zombie_tokens(one: Twin) -> int:
    """Given to sequences of requests that had ended."""
    owners = {fact.seq_id: fact.request_id for fact in of(one.facts, SequenceSubmitted)}
    gone_ns = {fact.request_id: fact.at_ns for fact in of(one.facts, RequestEnded)}
    rows: list[tuple[Row, StepRecorded]] = [(r, s) for s in steps(one.facts) for r in s.rows]
    return sum(row.sampled for row, step in rows if gone_ns[owners[row.seq_id]] < step.begin_ns)


def _ends(one: Twin, reason: EndReason) -> int:
    return sum(fact.reason is reason for fact in of(one.facts, RequestEnded))


def _missing_steps(one: Twin) -> float:
    ids = [step.step_id for step in steps(one.facts)]
    return 1 - len(ids) / (ids[-1] - ids[0] + 1)


def _sampling(step: StepRecorded) -> int:
    return step.collected_ns - step.sample_ns


TRACES: dict[tuple[str, str], Callable[[Twin], bool]] = {
    ("queue_overload", "requests"): lambda one: _waits_for(one, WaitReason.SEQS),
    ("queue_overload", "outputs"): lambda one: _waits_for(one, WaitReason.SEQS),
    ("prefix_cache_cold", "flush"): lambda one: (
        len(of(one.facts, CacheFlushed)) > 40 and _hit_rate_falls(one) and not _ghosts(one)
    ),
    ("prefix_cache_cold", "salt"): _hit_rate_falls,
    ("prefix_cache_cold", "working_set"): lambda one: _hit_rate_falls(one) and _ghosts(one) > 2000,
    ("kv_exhaustion", "small_pool"): lambda one: (
        _waits_for(one, WaitReason.KV) and computed_again(one.facts) < 0.01
    ),
    ("kv_thrash", "one_request"): lambda one: (
        computed_again(one.facts) > 0.2 and _waits_for(one, WaitReason.PREEMPTED)
    ),
    ("throttled", "quota"): lambda one: all(
        (fact.throttled_ns or 0) > 0 for fact in samples(one, fault(one))[1:-1]
    ),
    ("throttled", "stop_signals"): lambda one: (
        _runs_less(one)
        and all((fact.engine_wait_ns or 0) < 50_000_000 for fact in samples(one, fault(one)))
        and not any(fact.throttled_ns for fact in of(one.facts, HostSampled))
    ),
    ("host_stall", "collections"): lambda one: (
        pauses(one, HostProcess.ENGINE, PauseCause.GC, 190) >= 8
    ),
    ("host_stall", "blocking_write"): lambda one: (
        not any(f.process is HostProcess.ENGINE for f in of(one.facts, HostPaused))
    ),
    ("cpu_starvation", "one_hog"): lambda one: (
        pauses(one, HostProcess.ENGINE, PauseCause.OFF_CPU, 20) > 40 and _runs_less(one)
    ),
    ("ingest_backlog", "on_the_loop"): lambda one: (
        encoding(one.facts, fault(one)) > 20 * encoding(one.facts, REFERENCE)
        or pauses(one, HostProcess.GATEWAY, PauseCause.LOOP_BLOCKED, 100) > 20
    ),
    ("ingest_backlog", "one_worker"): lambda one: (
        encoding(one.facts, fault(one)) > 20 * encoding(one.facts, REFERENCE)
    ),
    ("grammar_cost", "new_schemas"): lambda one: (
        max(fact.compile_ns for fact in of(one.facts, GrammarCompiled)) > 10**8
    ),
    ("grammar_cost", "dear_masks"): lambda one: (
        share_of_steps(one.facts, fault(one), lambda step: step.mask_ns) > 0.15
    ),
    ("adapter_churn", "many"): lambda one: len(of(one.facts, AdapterEvicted)) > 20,
    ("adapter_churn", "memory"): lambda one: len(of(one.facts, AdapterEvicted)) > 20,
    ("invalid_output", "template"): lambda one: (
        sum(fact.output_valid is False for fact in of(one.facts, RequestEnded)) > 5
    ),
    ("slow_client", "readers"): lambda one: len(of(one.facts, SequencePaused)) > 10,
    ("slow_client", "proxy"): lambda one: not of(one.facts, SequencePaused),
    ("cancellation_leak", "no_abort"): lambda one: _zombie_tokens(one) > 500,
    ("cancellation_leak", "siblings"): lambda one: _zombie_tokens(one) > 500,
    ("heavy_sampling", "choices"): lambda one: (
        share_of_steps(one.facts, fault(one), _sampling)
        > 3 * share_of_steps(one.facts, REFERENCE, _sampling)
    ),
    ("out_of_memory", "activations"): lambda one: _ends(one, EndReason.EXECUTOR_ERROR) > 10,
    ("out_of_memory", "growth"): lambda one: len(of(one.facts, EngineStarted)) == 2,
    ("engine_hung", "stopped"): lambda one: (
        len(of(one.facts, EngineRecovered)) == len(of(one.facts, EngineStarted)) == 1
        and _ends(one, EndReason.NOT_READY) > 3
        and not _ends(one, EndReason.ENGINE_DIED)
    ),
    ("engine_hung", "replaced"): lambda one: (
        len(of(one.facts, EngineHung)) == len(of(one.facts, EngineDied)) == 1
        and _ends(one, EndReason.NOT_READY) > 3
        and _ends(one, EndReason.ENGINE_DIED) > 1
    ),
    ("step_failure", "kernel"): lambda one: _ends(one, EndReason.EXECUTOR_ERROR) > 5,
    ("step_failure", "rank"): lambda one: len(of(one.facts, EngineStarted)) == 2,
    ("step_failure", "input"): lambda one: _ends(one, EndReason.EXECUTOR_ERROR) > 1,
    ("load_failure", "start"): lambda one: not of(one.facts, EngineStarted),
    ("load_failure", "restart"): lambda one: len(of(one.facts, EngineDied)) > 3,
    ("telemetry_degraded", "steps_lost"): lambda one: 0.05 < _missing_steps(one) < 0.2,
    ("telemetry_degraded", "switched_off"): lambda one: len(of(one.facts, RecordingSet)) == 2,
    ("telemetry_degraded", "bursts_lost"): lambda one: (
        len(of(one.facts, RequestAccepted)) != len(of(one.facts, RequestEnded))
    ),
}
