"""The fold that gives the verdict: healthy, at fault and by what, or indeterminate.

Every tick of facts it asks whether requests are delayed beyond the baseline (`detection.excess`),
and if so charges their time to causes (`attribution.blame`). The verdict depends on the facts so
far and on nothing else, so a journal gives the verdict that was given live.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from diagnosis.attribution.blame import Blame, blame
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import BUCKET_NS, Counts
from diagnosis.detection.excess import (
    ChangeDetector,
    DirectExcess,
    excess_in_flight,
    prompt_excess,
    slow_step_excess,
    stage_stats,
    stopped_excess,
)
from diagnosis.detection.history import FindingLog
from diagnosis.detection.learning import BaselineLearner
from diagnosis.detection.reference import Reference, slo_baseline
from diagnosis.detection.window import Window
from diagnosis.promises.form import Recent
from diagnosis.promises.promises import Promises
from diagnosis.symptoms import Finding, Symptom
from diagnosis.thresholds import (
    CHECKED_NS,
    CLEAR_SHARE,
    EASED_SHARE,
    EMPTY_TICKS,
    GIVEN_UP_TICKS,
    LATE_FACTS_NS,
    LONG_PROMPT,
    PASSING_NS,
    REFERENCE_NS,
    UNEXPLAINED_NS,
    UNEXPLAINED_REQUESTS,
    WINDOW_NS,
)
from diagnosis.verdicts.checks import CHECKS, diagnosis_detached, is_whole
from diagnosis.verdicts.rules import findings_of
from telemetry.facts.engine_records import RecordingSet
from telemetry.facts.records import EngineDied, EngineHung, EngineRecovered, Fact, fact_ns
from telemetry.requests.slo_policy import SloPolicy

_MOST_CULPRITS = 5
# judged at once and not at the next tick: no other fact may follow for a long time
_JUDGED_AT_ONCE = (EngineDied, EngineHung, EngineRecovered, RecordingSet)


class Diagnosis(msgspec.Struct, frozen=True):
    """The answer of `/debug/diagnosis`.

    `verdict` is `healthy`, `fault` or `indeterminate`, with the reason in `why`. Findings are of
    the `window_ns` that ended with the last tick, since `onset_ns`. `reference` says what they are
    compared with: this run's `history`, a `baseline` file, or the `slo`. `excess_in_flight`
    (`held_up` in JSON) is the number of delayed requests.
    """

    findings: tuple[Finding, ...]
    window_ns: int
    steps: int
    healthy: bool
    verdict: str = "healthy"
    why: str = ""
    onset_ns: int | None = None
    reference: str = "slo"
    excess_in_flight: float = msgspec.field(default=0.0, name="held_up")


class Diagnoser:
    """Feed it facts; it keeps three minutes of them. With a `baseline` nothing is learnt of this
    run. With a `policy` its promises are judged, but for those to the requests in `cut`."""

    def __init__(
        self,
        baseline: Reference | None = None,
        policy: SloPolicy | None = None,
        cut: Collection[str] = (),
    ) -> None:
        self._aggregator = Aggregator()
        self._detector = ChangeDetector()
        self._learner = BaselineLearner(self._aggregator, baseline)
        self._tick: int | None = None
        self._empty_ticks = 0
        self._standing: list[Finding] = []
        self._pending_symptom: Symptom | None = None
        self._blame: Blame | None = None
        self._excess = self._peak = 0.0
        self._diagnosis = Diagnosis((), 0, 0, True)
        self.log = FindingLog()
        self._promises = None if policy is None else Promises(policy, cut)

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self._aggregator.on_fact(fact)
            if self._promises is not None:
                self._promises.on_fact(fact)
            self._advance(fact_ns(fact) - LATE_FACTS_NS)
            if isinstance(fact, _JUDGED_AT_ONCE):
                self._judge(fact.at_ns + 1)

    def diagnosis(self) -> Diagnosis:
        """As of the last complete tick."""
        return self._diagnosis

    @property
    def live(self) -> int:
        """Requests and sequences in the books; zero when all have ended."""
        promised = 0 if self._promises is None else self._promises.live
        return self._aggregator.live + promised

    def blame(self) -> Blame | None:
        """The charges behind the last findings."""
        return self._blame

    def reference(self) -> Reference | None:
        """The baseline, None until one is learnt."""
        return self._learner.reference

    def baseline(self) -> Reference | None:
        """The baseline of this run so far, to be saved; None if too little was normal."""
        return self._learner.fit(self._aggregator.last_ns)

    def _advance(self, at_ns: int) -> None:
        if self._tick is None:
            self._tick = at_ns // BUCKET_NS + 1
            return
        while (self._tick + 1) * BUCKET_NS <= at_ns:
            behind = at_ns // BUCKET_NS - self._tick
            if behind > REFERENCE_NS // BUCKET_NS:  # no facts for a long time
                self._tick += behind - 1
            self._on_tick(self._tick * BUCKET_NS)
            self._tick += 1

    def _on_tick(self, begin_ns: int) -> None:
        end_ns = begin_ns + BUCKET_NS
        previous_onset_ns = self._detector.onset_ns
        counts = self._aggregator.counts(begin_ns, end_ns)
        reference = self._learner.reference or slo_baseline()
        stats = stage_stats(counts)
        self._learner.add(begin_ns, stats)
        excess = excess_in_flight(stats, reference)
        self._excess = sum(excess)
        steps = self._aggregator.steps(begin_ns, end_ns)
        direct = DirectExcess(
            slow=slow_step_excess(steps, reference),
            prompts=prompt_excess(steps, counts.first_tokens, reference),
            stopped=stopped_excess(stats, reference),
        )
        self._detector.add(begin_ns, excess, direct, counts.first_commit_logs, reference)
        is_over = previous_onset_ns is not None and self._detector.onset_ns is None
        if is_over and end_ns - (previous_onset_ns or 0) > PASSING_NS:
            self._learner.exclude_until(end_ns)
        self._learner.learn(end_ns, is_elevated=self._detector.is_elevated)
        if self._promises is not None:
            self._promises.tick(end_ns)
        self._judge(end_ns)
        self._aggregator.forget(end_ns)

    def _judge(self, end_ns: int) -> None:
        found, degraded = self._checked(end_ns)
        if not degraded:
            self._promote_pending(end_ns)
        onset_ns = self._detector.onset_ns
        begin_ns = end_ns - WINDOW_NS
        self._blame = None
        if onset_ns is None or degraded:
            self._standing, self._peak = [], 0.0
        else:
            begin_ns = max(onset_ns, begin_ns)
            self._blame, charged = self._charge(begin_ns, end_ns, onset_ns)
            found = _ranked(self._settled(charged), found)
        if not degraded:
            found += self._missed_promises(end_ns)
        self._diagnosis = self._verdict(begin_ns, end_ns, found, degraded)
        self.log.update(end_ns, found)

    def _promote_pending(self, end_ns: int) -> None:
        """A pending alarm fires when one cause was clear, and the same, in two ticks in a row."""
        pending_ns, before = self._detector.pending_ns, self._pending_symptom
        self._pending_symptom = None
        is_firing = self._detector.onset_ns is not None
        if is_firing or pending_ns is None or self._learner.reference is None:
            return
        _, charged = self._charge(max(pending_ns, end_ns - WINDOW_NS), end_ns, pending_ns)
        if charged and charged[0].share >= CLEAR_SHARE:
            self._pending_symptom = charged[0].symptom
            if self._pending_symptom is before:
                self._detector.promote()

    def _settled(self, charged: list[Finding]) -> list[Finding]:
        """The findings that stand while the alarm fires. They are not withdrawn for one quiet tick,
        and none is made once the harm has eased. An alarm without findings is cleared: soon if it
        eases, which is normal variation; else after GIVEN_UP_TICKS."""
        self._peak = max(self._peak, self._excess)
        if charged and (self._standing or not self._detector.has_eased):
            self._empty_ticks, self._standing = 0, charged
            return charged
        self._empty_ticks += 1
        has_eased = self._excess < EASED_SHARE * self._peak
        if self._empty_ticks >= (EMPTY_TICKS if has_eased else GIVEN_UP_TICKS):
            self._detector.reset()
            self._empty_ticks, self._standing, self._peak = 0, [], 0.0
        return self._standing

    def _charge(self, begin_ns: int, end_ns: int, onset_ns: int) -> tuple[Blame, list[Finding]]:
        window = Window(
            seconds=(end_ns - begin_ns) / 1e9,
            counts=self._aggregator.counts(begin_ns, end_ns),
            later_half=self._aggregator.counts((begin_ns + end_ns) // 2, end_ns),
            steps=self._aggregator.steps(begin_ns, end_ns),
            started=self._aggregator.started,
            has_finding=bool(self._standing),
        )
        charged = blame(window, self._learner.reference or _slo_baseline_like(window))
        affected = self._aggregator.requests.active(begin_ns, end_ns)
        found = findings_of(charged, onset_ns, affected, self._culprits(window.counts))
        return charged, found

    def _missed_promises(self, end_ns: int) -> list[Finding]:
        """After every cause: they say what it costs, and not why."""
        if self._promises is None:
            return []
        aggregator = self._aggregator

        def recent_since(begin_ns: int) -> Recent:
            first_ns = (aggregator.first_ns or 0) // BUCKET_NS * BUCKET_NS
            begin_ns = max(first_ns, begin_ns)
            counts = aggregator.counts(begin_ns, end_ns)
            return Recent((end_ns - begin_ns) / 1e9, counts, aggregator.started)

        found = self._promises.finding(recent_since, end_ns)
        return [] if found is None else [found]

    def _culprits(self, counts: Counts) -> tuple[str, ...]:
        """Requests with more prompt tokens than any in the baseline, the longest first."""
        reference = self._learner.reference
        longest = 0 if reference is None else reference.longest_prompt
        owners: dict[str, int] = {}
        for seq_id, tokens in counts.prefill_by_sequence.items():
            if tokens > LONG_PROMPT * longest:
                name = self._aggregator.requests.owner(seq_id)
                owners[name] = owners.get(name, 0) + tokens
        return tuple(sorted(owners, key=lambda name: -owners[name]))[:_MOST_CULPRITS]

    def _checked(self, end_ns: int) -> tuple[list[Finding], bool]:
        """Findings by counting, and whether the record is too incomplete for any other."""
        counts = self._aggregator.counts(end_ns - CHECKED_NS, end_ns)
        found = (check(counts, self._aggregator) for check in CHECKS)
        kept = [finding for finding in found if finding is not None]
        return kept, not is_whole(counts, self._aggregator)

    def _is_unexplained(self, end_ns: int) -> bool:
        """Requests are delayed, and have been for long: a burst that drains is no fault."""
        onset_ns = self._detector.onset_ns
        is_old = onset_ns is not None and end_ns - onset_ns > UNEXPLAINED_NS
        return is_old and self._excess > UNEXPLAINED_REQUESTS

    def _verdict(
        self, begin_ns: int, end_ns: int, found: list[Finding], degraded: bool
    ) -> Diagnosis:
        verdict, why = ("fault" if found else "healthy"), ""
        if degraded:
            verdict, why = "indeterminate", f"the record is not whole: {found[0].claim}"
        elif not found and self._is_unexplained(end_ns):
            verdict, why = "indeterminate", "requests are delayed, and nothing recorded explains it"
        known = "baseline" if self._learner.is_given else "history"
        return Diagnosis(
            findings=tuple(found),
            window_ns=end_ns - begin_ns,
            steps=len(self._aggregator.steps(begin_ns, end_ns)),
            healthy=not found,
            verdict=verdict,
            why=why,
            onset_ns=self._detector.onset_ns,
            reference=known if self._learner.reference is not None else "slo",
            excess_in_flight=round(self._excess, 3),
        )


def diagnoser_failed(error: str) -> Diagnosis:
    """The verdict after the diagnoser raised `error` and is no longer fed."""
    found = diagnosis_detached(error)
    return Diagnosis(
        findings=(found,),
        window_ns=0,
        steps=0,
        healthy=False,
        verdict="indeterminate",
        why=f"the record is not read: {found.claim}",
    )


def _ranked(charged: list[Finding], counted: list[Finding]) -> list[Finding]:
    """Failures first, then what delays requests, then what does not delay them yet."""
    named = {finding.symptom for finding in charged}
    rest = [finding for finding in counted if finding.symptom not in named]
    return sorted([*charged, *rest], key=_is_no_failure)


def _is_no_failure(finding: Finding) -> bool:
    """The sort key: what ends requests comes before what delays them."""
    return finding.symptom not in (
        Symptom.ENGINE_HUNG,
        Symptom.OUT_OF_MEMORY,
        Symptom.STEP_FAILURE,
        Symptom.LOAD_FAILURE,
    )


def _slo_baseline_like(window: Window) -> Reference:
    """The SLO's targets, for requests of the size of those in the window."""
    counts = window.counts
    return msgspec.structs.replace(
        slo_baseline(),
        prompt_tokens=counts.prompt_tokens,
        output_tokens=counts.output_tokens,
        choices=counts.choices,
        hit_share=counts.hit_share,
        ingest_work_ns=counts.ingest_work_ns / max(1, counts.accepted),
    )
