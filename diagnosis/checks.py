"""What is wrong without making anybody late: each a check of its own, by counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from diagnosis.counts import Counts
from diagnosis.symptoms import Evidence, Finding, Symptom
from diagnosis.tally import Tally
from telemetry.reasons import EndReason, StepFailure

# Of constrained answers that were judged, so many invalid ones are no accident.
_LEAST_INVALID = 3
_INVALID_SHARE = 0.2
_LEAST_FAILED = 1
# an abort takes a step or two; so many sequences that had so many rows were not aborted
_LEAST_LEAKED, _LEAST_ROWS = 2, 8
_WORDS = {
    StepFailure.OUT_OF_MEMORY: "for want of memory",
    StepFailure.KERNEL_ERROR: "by an error of the device or a library (kernel_error)",
    StepFailure.RANK_LOST: "because a rank of the model was lost (rank_lost)",
    StepFailure.BAD_INPUT: "by an input that the model does not have (bad_input)",
}

Check = Callable[[Counts, Tally], Finding | None]


def invalid_output(counts: Counts, tally: Tally) -> Finding | None:
    """Constrained answers that end, or are cut, without obeying their constraint."""
    ended = max(counts.judged + counts.cut, counts.constrained)
    useless = counts.invalid + counts.cut
    if useless < _LEAST_INVALID or useless < _INVALID_SHARE * ended:
        return None
    return _finding(
        Symptom.INVALID_OUTPUT,
        f"{useless} of {ended} constrained answers are no use: {counts.cut} were cut at their "
        f"length, {counts.invalid} do not obey their constraint",
        useless / ended,
        (
            Evidence("invalid", counts.invalid, "requests"),
            Evidence("cut", counts.cut, "sequences"),
            Evidence("constrained", ended, "requests"),
        ),
    )


def leaked(counts: Counts, tally: Tally) -> Finding | None:
    """Sequences that go on although their clients have gone, whether or not anybody is late for
    it yet."""
    rows = [number for number in counts.gone_rows.values() if number >= _LEAST_ROWS]
    if len(rows) < _LEAST_LEAKED:
        return None
    return _finding(
        Symptom.CANCELLATION_LEAK,
        f"{len(rows)} sequences had {sum(rows)} rows after their clients had gone",
        0.95,
        (Evidence("leaked", len(rows), "sequences"), Evidence("zombie_rows", sum(rows), "rows")),
    )


def out_of_memory(counts: Counts, tally: Tally) -> Finding | None:
    """Steps that fail, or an engine that dies, because an allocation was refused."""
    failed = counts.aborted_sequences[StepFailure.OUT_OF_MEMORY]
    dead = counts.deaths_by_failure[StepFailure.OUT_OF_MEMORY]
    if failed < _LEAST_FAILED and not dead:
        return None
    return _finding(
        Symptom.OUT_OF_MEMORY,
        _said_of(counts, StepFailure.OUT_OF_MEMORY),
        0.9,
        (
            Evidence("failed_sequences", failed, "sequences"),
            Evidence("deaths", dead, "engines"),
        ),
    )


def step_failure(counts: Counts, tally: Tally) -> Finding | None:
    """Steps that fail, or a serving engine that dies, for another reason than memory: the kind
    that ended most is told, each is evidence. Of older records the kind is not known."""
    kinds = [kind for kind in StepFailure if kind is not StepFailure.OUT_OF_MEMORY]
    harm = {kind: counts.aborted_sequences[kind] + counts.deaths_by_failure[kind] for kind in kinds}
    ended = counts.sequence_reasons[EndReason.EXECUTOR_ERROR]
    untold = max(0, ended - counts.aborted_sequences.total())
    if sum(harm.values()) + untold < _LEAST_FAILED:
        return None
    worst = max(kinds, key=lambda kind: harm[kind])
    untold_words = f"{untold} sequences ended because a step failed, of which no more is recorded"
    steps = {
        kind: sum(n for (one, _), n in counts.aborted.items() if one is kind) for kind in kinds
    }
    return _finding(
        Symptom.STEP_FAILURE,
        _said_of(counts, worst) if harm[worst] else untold_words,
        0.9,
        (
            *(Evidence(kind.value, steps[kind], "steps") for kind in kinds if steps[kind]),
            Evidence("failed_sequences", ended, "sequences"),
            Evidence("deaths", sum(counts.deaths_by_failure[kind] for kind in kinds), "engines"),
        ),
    )


def _said_of(counts: Counts, kind: StepFailure) -> str:
    """In one line, with the words of the commonest error."""
    details = Counter({said: n for (one, said), n in counts.aborted.items() if one is kind})
    told = [f"{counts.aborted_sequences[kind]} sequences ended"] if details else []
    if counts.deaths_by_failure[kind]:
        told.append(f"the engine died {counts.deaths_by_failure[kind]} times")
    said = f"{' and '.join(told)} {_WORDS[kind]}"
    words = details.most_common(1)[0][0] if details else ""
    return f"{said}: {words}" if words else said


def load_failure(counts: Counts, tally: Tally) -> Finding | None:
    """The engine ends before it is ready."""
    if tally.ready or not counts.deaths_unready:
        return None
    return _finding(
        Symptom.LOAD_FAILURE,
        f"the engine did not become ready: {counts.deaths[-1]}",
        0.95,
        (Evidence("deaths", len(counts.deaths), "engines"),),
    )


def telemetry_degraded(counts: Counts, tally: Tally) -> Finding | None:
    """Steps are missing from the record, or are not recorded at all; or spans do not arrive,
    which takes nothing from the record."""
    if not tally.recording:
        return _finding(Symptom.TELEMETRY_DEGRADED, "recording is switched off", 0.95, ())
    if counts.steps_missing:
        return _finding(
            Symptom.TELEMETRY_DEGRADED,
            f"{counts.steps_missing} steps are missing from the record: what is said of others "
            "rests on the rest",
            0.95,
            (Evidence("steps_missing", counts.steps_missing, "steps"),),
        )
    if counts.exports_failed:
        return _finding(
            Symptom.TELEMETRY_DEGRADED,
            "spans do not reach their receiver, which fails or does not answer; serving is not "
            "held up by it, and the record is whole",
            0.95,
            (Evidence("exports_failed", counts.exports_failed, "attempts"),),
        )
    return None


def is_whole(counts: Counts, tally: Tally) -> bool:
    """Whether all that happened is in the record."""
    return tally.recording and not counts.steps_missing


CHECKS: tuple[Check, ...] = (
    telemetry_degraded,
    load_failure,
    out_of_memory,
    step_failure,
    invalid_output,
    leaked,
)


def _finding(
    symptom: Symptom, claim: str, confidence: float, evidence: tuple[Evidence, ...]
) -> Finding:
    return Finding(
        symptom=symptom,
        confidence=round(confidence, 3),
        claim=claim,
        harm_ms=0.0,
        evidence=evidence,
        share=0.0,
    )
