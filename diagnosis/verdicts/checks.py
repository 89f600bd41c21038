"""Symptoms that are counted and not inferred: failures, leaks, and gaps in the record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import Counts
from diagnosis.evidence import Counted
from diagnosis.symptoms import Evidence, Finding, Symptom
from diagnosis.thresholds import (
    COUNTED_CONFIDENCE,
    INVALID_SHARE,
    LEAKED_ROWS,
    LEAST_FAILED,
    LEAST_INVALID,
    LEAST_LEAKED,
)
from diagnosis.verdicts.runbook import runbook_name
from telemetry.facts.reasons import EndReason, HangKind, StackSource, StepFailure
from telemetry.facts.records import EngineHung

C = Counted

_NAMED = 6
_CAUSES = {
    StepFailure.OUT_OF_MEMORY: "for want of memory",
    StepFailure.KERNEL_ERROR: "by an error of the device or a library (kernel_error)",
    StepFailure.RANK_LOST: "because a rank of the model was lost (rank_lost)",
    StepFailure.BAD_INPUT: "by an input that the model does not have (bad_input)",
}

_HANGS = {
    HangKind.STOPPED: "the engine's process is stopped by a signal",
    HangKind.SILENT: "the engine's process lives, and its heartbeat has ended",
    HangKind.STUCK: "the engine's heart beats, and one turn of its loop does not end",
}
_SOURCES = {
    StackSource.NOBODY: "its threads could not be looked at",
    StackSource.FAULTHANDLER: "its threads, by itself at a signal (faulthandler):",
    StackSource.PY_SPY: "its threads, from its memory (py-spy):",
    StackSource.KERNEL: "its threads, as the kernel tells (a stopped process runs no handler):",
}

Check = Callable[[Counts, Aggregator], Finding | None]


def invalid_output(counts: Counts, aggregator: Aggregator) -> Finding | None:
    """Constrained answers that do not obey their constraint, or are cut at their length."""
    ended = max(counts.judged + counts.cut, counts.constrained)
    useless = counts.invalid + counts.cut
    if useless < LEAST_INVALID or useless < INVALID_SHARE * ended:
        return None
    return _finding(
        Symptom.INVALID_OUTPUT,
        f"{useless} of {ended} constrained answers are no use: {counts.cut} were cut at their "
        f"length, {counts.invalid} do not obey their constraint",
        (
            C.INVALID.of(counts.invalid),
            C.CUT.of(counts.cut),
            C.CONSTRAINED.of(ended),
        ),
        confidence=useless / ended,
    )


def leaked(counts: Counts, aggregator: Aggregator) -> Finding | None:
    """Sequences that are still computed after their clients disconnected, whether or not that
    delays another request."""
    rows = [number for number in counts.zombie_rows_by_sequence.values() if number >= LEAKED_ROWS]
    if len(rows) < LEAST_LEAKED:
        return None
    return _finding(
        Symptom.CANCELLATION_LEAK,
        f"{len(rows)} sequences had {sum(rows)} rows after their clients had disconnected",
        (C.LEAKED.of(len(rows)), C.ZOMBIE_ROWS.of(sum(rows))),
    )


def out_of_memory(counts: Counts, aggregator: Aggregator) -> Finding | None:
    """Steps that failed, or an engine that died, because an allocation was refused."""
    failed = counts.aborted_sequences[StepFailure.OUT_OF_MEMORY]
    dead = counts.deaths_by_failure[StepFailure.OUT_OF_MEMORY]
    if failed < LEAST_FAILED and not dead:
        return None
    return _finding(
        Symptom.OUT_OF_MEMORY,
        _claim_of(counts, StepFailure.OUT_OF_MEMORY),
        (
            C.FAILED_SEQUENCES.of(failed),
            C.DEATHS.of(dead),
        ),
    )


def engine_hung(counts: Counts, aggregator: Aggregator) -> Finding | None:
    """The engine's process exists and does not respond, or did not until a moment ago."""
    if aggregator.hung is None and not counts.hangs:
        return None
    hang = aggregator.hung or counts.hangs[-1]
    since = "" if aggregator.hung is not None else "; it is over"
    found = _finding(
        Symptom.ENGINE_HUNG,
        f"{_HANGS[hang.kind]} (process {hang.engine_pid}, state {hang.process_state}); "
        f"{hang.sequences} sequences wait for it, and new requests are refused{since}"
        f"{_xid_words(counts)}",
        (
            *_xid_evidence(counts),
            C.UNANSWERED.of(round((hang.at_ns - hang.since_ns) / 1e6)),
            C.HUNG_SEQUENCES.of(hang.sequences),
            C.DEATHS.of(len(counts.deaths)),
        ),
    )
    return msgspec.structs.replace(found, stacks=_stacks(hang))


def _stacks(hang: EngineHung) -> tuple[str, ...]:
    """The stacks of its threads, under a line that names their source."""
    return (_SOURCES[hang.stacks_source], *hang.stacks)


def step_failure(counts: Counts, aggregator: Aggregator) -> Finding | None:
    """Steps that failed, or a serving engine that died, for another reason than memory. The claim
    names the kind that ended most; each kind is evidence. Older records do not have the kind."""
    kinds = [kind for kind in StepFailure if kind is not StepFailure.OUT_OF_MEMORY]
    harm = {kind: counts.aborted_sequences[kind] + counts.deaths_by_failure[kind] for kind in kinds}
    harm[StepFailure.KERNEL_ERROR] += _deaths_by_xid(counts)
    ended = counts.sequence_reasons[EndReason.EXECUTOR_ERROR]
    unclassified = max(0, ended - counts.aborted_sequences.total())
    if sum(harm.values()) + unclassified < LEAST_FAILED:
        return None
    worst = max(kinds, key=lambda kind: harm[kind])
    unclassified_words = (
        f"{unclassified} sequences ended because a step failed, of which no more is recorded"
    )
    steps = {
        kind: sum(n for (one, _), n in counts.aborted.items() if one is kind) for kind in kinds
    }
    return _finding(
        Symptom.STEP_FAILURE,
        (_claim_of(counts, worst) if harm[worst] else unclassified_words) + _xid_words(counts),
        (
            *_xid_evidence(counts),
            *(C.named(kind.value).of(steps[kind]) for kind in kinds if steps[kind]),
            C.FAILED_SEQUENCES.of(ended),
            C.DEATHS.of(
                sum(counts.deaths_by_failure[kind] for kind in kinds) + _deaths_by_xid(counts)
            ),
        ),
    )


def _deaths_by_xid(counts: Counts) -> int:
    """Engines that ended without a reason of their own beside an error of the GPU: a GPU that is
    lost ends the process, which cannot say why any more."""
    known = sum(counts.deaths_by_failure.values())
    return len(counts.deaths) - known if counts.xids else 0


def _xid_words(counts: Counts) -> str:
    """What the driver reported of the GPUs; empty without an error."""
    seen = Counter((one.gpu, one.xid) for one in counts.xids)
    told = [
        f"GPU {gpu}: XID {xid}" if xid is not None else f"GPU {gpu}: an uncorrectable memory error"
        for gpu, xid in seen
    ]
    return f"; the driver reported {', '.join(told[:_NAMED])}" if told else ""


def _xid_evidence(counts: Counts) -> tuple[Evidence, ...]:
    return (C.XIDS.of(len(counts.xids)),) if counts.xids else ()


def _claim_of(counts: Counts, kind: StepFailure) -> str:
    """The claim: how many ended, of what, with the message of the most common error."""
    details = Counter({said: n for (one, said), n in counts.aborted.items() if one is kind})
    told = [f"{counts.aborted_sequences[kind]} sequences ended"] if details else []
    deaths = counts.deaths_by_failure[kind]
    if kind is StepFailure.KERNEL_ERROR:
        deaths += _deaths_by_xid(counts)
    if deaths:
        told.append(f"the engine died {deaths} times")
    said = f"{' and '.join(told)} {_CAUSES[kind]}"
    words = details.most_common(1)[0][0] if details else ""
    return f"{said}: {words}" if words else said


def load_failure(counts: Counts, aggregator: Aggregator) -> Finding | None:
    """The engine ended before it was ready."""
    if aggregator.ready or not counts.deaths_unready:
        return None
    return _finding(
        Symptom.LOAD_FAILURE,
        f"the engine did not become ready: {counts.deaths[-1]}",
        (C.DEATHS.of(len(counts.deaths)),),
    )


def telemetry_degraded(counts: Counts, aggregator: Aggregator) -> Finding | None:
    """Facts are missing or not recorded; or, which leaves the record complete, a fold of telemetry
    raised or spans are not delivered. The first of these is the claim; all are evidence."""
    claims: list[str] = []
    evidence: list[Evidence] = []
    if not aggregator.recording:
        claims.append("recording is switched off")
    if counts.steps_missing:
        claims.append(
            f"{counts.steps_missing} steps are missing from the record: what is said of others "
            "rests on the rest"
        )
        evidence.append(C.STEPS_MISSING.of(counts.steps_missing))
    if counts.facts_lost:
        claims.append(
            f"{counts.facts_lost} facts never came to telemetry, which was not fast enough: what "
            "is said of others rests on the rest"
        )
        evidence.append(C.FACTS_LOST.of(counts.facts_lost))
    if aggregator.detached:
        claims.append(detached_claim(aggregator.detached))
        evidence.append(C.FOLDS_DETACHED.of(len(aggregator.detached)))
    if counts.exports_failed:
        claims.append(
            "spans do not reach their receiver, which fails or does not answer; serving is not "
            "delayed by it, and the record is complete"
        )
        evidence.append(C.EXPORTS_FAILED.of(counts.exports_failed))
    if not claims:
        return None
    return _finding(Symptom.TELEMETRY_DEGRADED, claims[0], tuple(evidence))


def detached_claim(detached: Mapping[str, str]) -> str:
    """The folds that are no longer fed, and what each raised."""
    parts = ", ".join(f"{name} ({error})" for name, error in list(detached.items())[:_NAMED])
    more = f" and {len(detached) - _NAMED} more" if len(detached) > _NAMED else ""
    return (
        f"parts of telemetry raised and are not fed until the next start: {parts}{more}; what they "
        "show stands still, serving goes on"
    )


def diagnosis_detached(error: str) -> Finding:
    """The finding when the diagnoser itself raised and is no longer fed."""
    return _finding(
        Symptom.TELEMETRY_DEGRADED,
        detached_claim({"diagnosis": error}),
        (C.FOLDS_DETACHED.of(1),),
    )


def is_whole(counts: Counts, aggregator: Aggregator) -> bool:
    """Whether no fact is missing from the record."""
    return aggregator.recording and not counts.steps_missing and not counts.facts_lost


CHECKS: tuple[Check, ...] = (
    telemetry_degraded,
    load_failure,
    engine_hung,
    out_of_memory,
    step_failure,
    invalid_output,
    leaked,
)


def _finding(
    symptom: Symptom,
    claim: str,
    evidence: tuple[Evidence, ...],
    confidence: float | None = None,
) -> Finding:
    """A finding, with the confidence of a count if no other is given."""
    return Finding(
        symptom=symptom,
        confidence=COUNTED_CONFIDENCE if confidence is None else round(confidence, 3),
        claim=claim,
        harm_ms=0.0,
        evidence=evidence,
        share=0.0,
        runbook=runbook_name(symptom),
    )
