"""The root of the last seconds of a journal: what differs from the time before, and what of it
made requests slow."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from diagnosis.counterfactual import Explanation, explain
from diagnosis.interventions import Cause
from diagnosis.question import Question, Span
from service.sim.recorded import NotReplayable, RecordedRun, read_runs
from service.sim.turn_cost import fit_turns
from telemetry.journal_reader import Journal
from telemetry.records import fact_ns

REMEDIES = {
    Cause.DEMAND: "bound the queue, shed load, or add a replica",
    Cause.TENANT: "share fairly (--fairness vtc) or limit the tenant (--tenant-max-seqs)",
    Cause.PROMPTS: "route long prompts elsewhere, or give them a class of their own",
    Cause.OUTPUTS: "bound max_tokens, or give long answers a class of their own",
    Cause.CHUNKS: "turn chunked prefill on (leave --no-chunked-prefill out)",
    Cause.KV: "give the cache more memory (--kv-memory), or run fewer sequences",
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


class Ago(msgspec.Struct, frozen=True):
    """From so many seconds before the end of the journal until so many."""

    from_s: float
    until_s: float

    def span(self, end_ns: int) -> Span:
        return Span(end_ns - int(self.from_s * 1e9), end_ns - int(self.until_s * 1e9))


WINDOW, REFERENCE = Ago(20, 0), Ago(60, 20)


class RootCause(msgspec.Struct, frozen=True, kw_only=True):
    """An explanation, and of what."""

    window: Ago
    reference: Ago
    explanation: Explanation
    remedies: dict[str, str]


def root_cause(
    journal: Journal,
    window: Ago = WINDOW,
    reference: Ago = REFERENCE,
    progress: Callable[[str], None] = lambda what: None,
) -> RootCause:
    """Of the last engine in the journal. Raises NotReplayable, JournalError."""
    progress("reading the journal")
    run = read_runs(journal.facts())[-1]
    if run.steps_missing:
        raise NotReplayable("recording was switched off for a while: its steps are not there")
    end_ns = _end_ns(run)
    before = reference.span(end_ns)
    question = Question(run, fit_turns([run]), before, window.span(end_ns))
    known_ns = max(run.started.at_ns, journal.header.cut_ns or 0)
    if before.begin_ns < known_ns:
        covered_s = (end_ns - known_ns) / 1e9
        raise NotReplayable(
            f"the journal has {covered_s:.0f} s of this engine, the reference begins "
            f"{reference.from_s:g} s before its end: give --reference"
        )
    explanation = explain(question, lambda what: progress(f"without {what}"))
    return RootCause(
        window=window,
        reference=reference,
        explanation=explanation,
        remedies={gain.cause.value: REMEDIES[gain.cause] for gain in explanation.gains},
    )


def _end_ns(run: RecordedRun) -> int:
    facts = [*run.facts, *run.others]
    return max((fact_ns(fact) for fact in facts), default=run.started.at_ns)
