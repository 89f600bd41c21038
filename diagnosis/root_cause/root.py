"""Root cause of what is wrong in a journal, and the remedy with its predicted gain.

The scheduler is run again without each thing that differs from the reference; what that would have
spared is the predicted gain (`promises` in the answer) of removing it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from diagnosis.detection.reference import Reference
from diagnosis.root_cause.counterfactual import Explanation, explain
from diagnosis.root_cause.interventions import Cause
from diagnosis.root_cause.question import Question
from diagnosis.root_cause.thresholds import (
    LEAST_COMPARED,
    LEAST_REFERENCE_S,
    REPLAYED_REFERENCE_NS,
    REPLAYED_S,
    REPLAYED_SINCE_S,
)
from diagnosis.settings_search.answer import SettingsAnswer
from diagnosis.settings_search.answered import answered
from diagnosis.settings_search.offline import last_window
from diagnosis.settings_search.search import search
from diagnosis.spans import Span
from diagnosis.symptoms import Symptom
from diagnosis.verdicts.abstentions import no_replay
from diagnosis.verdicts.classifier import Diagnoser, Diagnosis
from diagnosis.verdicts.offline import policy_for
from lab.replay.iteration_cost import fit_iterations
from lab.replay.recorded import NotReplayable, RecordedRun, read_runs
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.records import fact_ns
from telemetry.journal.journal_reader import Journal
from telemetry.journal.replay import replay_folds
from telemetry.requests.slo_policy import SloPolicy

S = Symptom
NOTHING_TO_COMPARE = Explanation(requests=0, moved={}, gains=(), tried=())

REMEDIES = {
    Cause.DEMAND: "bound the queue, shed load, or add a replica",
    Cause.TENANT: "share fairly (--fairness vtc) or limit the tenant (--tenant-max-seqs)",
    Cause.PROMPTS: "route long prompts elsewhere, or give them a class of their own",
    Cause.OUTPUTS: "bound max_tokens, or give long answers a class of their own",
    Cause.CHUNKS: "turn chunked prefill on (leave --no-chunked-prefill out)",
    Cause.KV: "give the cache more memory (--kv-memory), or run fewer sequences",
    Cause.ADAPTERS: "give adapters more memory (--lora-memory, --max-loras), or serve fewer",
    Cause.SLOTS: "lower --max-num-seqs to what it was",
    Cause.BUDGET: "raise --max-batched-tokens to what it was",
    Cause.STALLS: "find what stops the engine's process: phasescope diagnose names pauses it saw",
    Cause.RESIDUAL: "look for what shares the machine: neighbours, a quota, a lower clock",
    Cause.MASKS: "use simpler schemas, and fewer of them",
    Cause.SAMPLES: "bound n and logprobs",
    Cause.PREFIX: "keep the prefix cache: flush less often, stop changing the beginning of prompts",
    Cause.ZOMBIES: "end sequences when their client is gone",
    Cause.PAUSES: "drop slow readers (--slow-client), or give them slots of their own",
}

ACTIONS: dict[Symptom, tuple[Cause, ...]] = {
    S.QUEUE_OVERLOAD: (Cause.DEMAND, Cause.OUTPUTS),
    S.PREFILL_INTERFERENCE: (Cause.CHUNKS, Cause.PROMPTS),
    S.LONG_PROMPTS: (Cause.PROMPTS,),
    S.PREFIX_CACHE_COLD: (Cause.PREFIX,),
    S.KV_EXHAUSTION: (Cause.KV,),
    S.KV_THRASH: (Cause.KV,),
    S.OVERSIZED_BATCH: (Cause.SLOTS,),
    S.MEMORY_BANDWIDTH: (Cause.RESIDUAL,),
    S.THROTTLED: (Cause.RESIDUAL, Cause.STALLS),
    S.HOST_STALL: (Cause.STALLS,),
    S.CPU_STARVATION: (Cause.RESIDUAL, Cause.STALLS),
    S.GRAMMAR_COST: (Cause.MASKS,),
    S.ADAPTER_CHURN: (Cause.ADAPTERS,),
    S.SLOW_CLIENT: (Cause.PAUSES,),
    S.CANCELLATION_LEAK: (Cause.ZOMBIES,),
    S.UNFAIRNESS: (Cause.TENANT,),
    S.HEAVY_SAMPLING: (Cause.SAMPLES, Cause.DEMAND),
    S.BUDGET_TOO_SMALL: (Cause.BUDGET,),
}
"""The interventions that predict the gain of a symptom's first action, in order. Symptoms that are
not in it lie outside of what a scheduler decides, so no replay can predict their gain."""


class RelativeWindow(msgspec.Struct, frozen=True):
    """A window in seconds before the end of the journal."""

    from_s: float
    until_s: float

    def span(self, end_ns: int) -> Span:
        return Span(end_ns - int(self.from_s * 1e9), end_ns - int(self.until_s * 1e9))

    @staticmethod
    def of(span: Span, end_ns: int) -> RelativeWindow:
        return RelativeWindow((end_ns - span.begin_ns) / 1e9, (end_ns - span.end_ns) / 1e9)


WINDOW = RelativeWindow(REPLAYED_S, 0)
REFERENCE = RelativeWindow(REPLAYED_SINCE_S, REPLAYED_S)


class RootCause(msgspec.Struct, frozen=True, kw_only=True):
    """An explanation of `window` against `reference` (None: against the limits of a baseline).
    `promises` is the predicted gain of the first action against each finding, by symptom.
    `settings` is what other settings would have given the last seconds, where it was asked for."""

    window: RelativeWindow
    reference: RelativeWindow | None
    explanation: Explanation
    remedies: dict[str, str]
    promises: dict[str, str]
    diagnosis: Diagnosis | None = None
    settings: SettingsAnswer | None = None


def root_cause(
    journal: Journal,
    window: RelativeWindow | None = None,
    reference: RelativeWindow | None = None,
    baseline: Reference | None = None,
    progress: Callable[[str], None] = lambda what: None,
    policy: SloPolicy | None = None,
) -> RootCause:
    """The root cause for the last engine in the journal. Without a window, that of the journal's
    diagnosis is explained, against the time before its onset or against the limits of a baseline.
    With a policy the best settings for its SLO classes are searched, too.

    Raises NotReplayable, JournalError.
    """
    progress("reading the journal")
    run = read_runs(journal.facts())[-1]
    if run.started.is_attached:
        raise NotReplayable(no_replay(run.started.engine))
    if run.steps_missing:
        raise NotReplayable("recording was switched off for a while: its steps are not there")
    end_ns = _end_ns(run)
    diagnosis, spans = _spans(journal, run, window, reference, baseline, end_ns, policy)
    started = None if baseline is None else baseline.started
    now, before = spans
    may_go_without = policy is not None and window is None and reference is None
    if not may_go_without:
        _check_known(journal, run, before, end_ns)
    cost = fit_iterations([run])
    explanation = NOTHING_TO_COMPARE
    if before is None or _is_known(journal, run, before):
        question = Question(run, cost, before, now, started if before is None else None)
        explanation = explain(question, lambda what: progress(f"without {what}"))
    settings = None
    if policy is not None:
        settings = search(run, cost, last_window(run), policy, progress=progress)
        diagnosis = None if diagnosis is None else answered(diagnosis, settings)
    return RootCause(
        window=RelativeWindow.of(now, end_ns),
        reference=None if before is None else RelativeWindow.of(before, end_ns),
        explanation=explanation,
        remedies={gain.cause.value: REMEDIES[gain.cause] for gain in explanation.gains},
        promises={} if diagnosis is None else promises_of(diagnosis, explanation),
        diagnosis=diagnosis,
        settings=settings,
    )


def why_not_compared(found: RootCause) -> str:
    """Why nothing is known of what moved, in one line; empty where the window was compared."""
    explanation = found.explanation
    if explanation.compared:
        return ""
    before, has_reference = explanation.reference_requests, found.reference is not None
    if before is None and has_reference:
        return "the record has too little time before it to compare with"
    if before is None:
        return "the baseline has no limits to compare with"
    where = "in the reference" if has_reference else "with the limits of the baseline"
    return (
        f"too few finished requests to compare: {explanation.requests}, and {before} {where}, "
        f"where {LEAST_COMPARED} of each are needed"
    )


def promises_of(diagnosis: Diagnosis, explanation: Explanation) -> dict[str, str]:
    """One line a finding: the predicted gain of its first action that helps."""
    found: dict[str, str] = {}
    gains = {gain.cause: gain for gain in explanation.gains}
    for finding in diagnosis.findings:
        for cause in ACTIONS.get(finding.symptom, ()):
            gain = gains.get(cause)
            if gain is not None:
                found[finding.symptom.value] = (
                    f"{REMEDIES[cause]}: {gain.symptom} {100 * gain.gain:.0f} % less, "
                    f"{gain.spared_ms:.0f} ms of requests' time"
                )
                break
    return found


def _spans(
    journal: Journal,
    run: RecordedRun,
    window: RelativeWindow | None,
    reference: RelativeWindow | None,
    baseline: Reference | None,
    end_ns: int,
    policy: SloPolicy | None,
) -> tuple[Diagnosis | None, tuple[Span, Span | None]]:
    """The diagnosis, where one was needed, and the window to explain with its reference."""
    if window is not None or reference is not None:
        before = None if baseline is not None else (reference or REFERENCE).span(end_ns)
        return None, ((window or WINDOW).span(end_ns), before)
    diagnoser = Diagnoser(baseline, policy_for(journal, policy), journal.cut_requests)
    replay_folds(journal.facts(), [diagnoser])
    diagnosis = diagnoser.diagnosis()
    onset_ns = diagnosis.onset_ns
    if onset_ns is None:
        return diagnosis, (WINDOW.span(end_ns), None if baseline else REFERENCE.span(end_ns))
    if baseline is not None:
        return diagnosis, (Span(onset_ns, end_ns), None)
    begin_ns = max(_known_ns(journal, run.started), onset_ns - REPLAYED_REFERENCE_NS)
    return diagnosis, (Span(onset_ns, end_ns), Span(begin_ns, onset_ns))


def _is_known(journal: Journal, run: RecordedRun, reference: Span) -> bool:
    """Whether the record has this reference, long enough to be one."""
    has_begin = reference.begin_ns >= _known_ns(journal, run.started)
    return has_begin and reference.seconds >= LEAST_REFERENCE_S


def _known_ns(journal: Journal, started: EngineStarted) -> int:
    return max(started.at_ns, journal.header.cut_ns or 0)


def _check_known(journal: Journal, run: RecordedRun, before: Span | None, end_ns: int) -> None:
    known_ns = _known_ns(journal, run.started)
    if before is not None and before.begin_ns < known_ns:
        raise NotReplayable(
            f"the journal has {(end_ns - known_ns) / 1e9:.0f} s of this engine, the reference "
            f"begins {(end_ns - before.begin_ns) / 1e9:g} s before its end: give --reference"
        )


def _end_ns(run: RecordedRun) -> int:
    facts = [*run.facts, *run.others]
    return max((fact_ns(fact) for fact in facts), default=run.started.at_ns)
