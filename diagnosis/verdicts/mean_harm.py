"""Findings of requests that are delayed on the whole: excess in flight, charged to causes.

Every tick it asks whether requests are delayed beyond the baseline (`detection.excess`), and if so
charges their time to causes (`attribution.blame`).
"""

from __future__ import annotations

import msgspec

from diagnosis.attribution.blame import Blame, blame
from diagnosis.attribution.queue import is_in_danger
from diagnosis.attribution.thresholds import GROWN_LENGTH
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
from diagnosis.detection.learning import BaselineLearner
from diagnosis.detection.reference import Reference, slo_baseline
from diagnosis.detection.window import Window, window_of
from diagnosis.symptoms import Finding, Symptom
from diagnosis.thresholds import (
    CLEAR_SHARE,
    EASED_SHARE,
    EMPTY_TICKS,
    GIVEN_UP_TICKS,
    PASSING_NS,
    UNEXPLAINED_NS,
    UNEXPLAINED_REQUESTS,
    WINDOW_NS,
)
from diagnosis.verdicts.passing import OneBlow
from diagnosis.verdicts.rules import findings_of
from telemetry.facts.records import Fact

_MOST_CULPRITS = 5
# causes that a burst of healthy traffic may look like: said no longer than the burst
_OF_TRAFFIC = (
    Symptom.QUEUE_OVERLOAD,
    Symptom.PREFILL_INTERFERENCE,
    Symptom.LONG_PROMPTS,
    Symptom.PREFIX_CACHE_COLD,
    Symptom.UNFAIRNESS,
    Symptom.HEAVY_SAMPLING,
)


class MeanHarm:
    """Implements `verdicts.contributor.Contributor`. `blame` are the charges behind the last
    findings, `excess` the number of delayed requests, `window_begin_ns` the begin of the stretch
    that was judged last."""

    def __init__(self, aggregator: Aggregator, learner: BaselineLearner) -> None:
        self._aggregator = aggregator
        self._learner = learner
        self._detector = ChangeDetector()
        self._one_blow = OneBlow()
        self._empty_ticks = 0
        self._support_ticks = 0
        self._standing: list[Finding] = []
        self._pending_symptom: Symptom | None = None
        self._charged_before: Symptom | None = None
        self._peak = 0.0
        self.excess = 0.0
        self.blame: Blame | None = None
        self.window_begin_ns = 0

    @property
    def onset_ns(self) -> int | None:
        return self._detector.onset_ns

    @property
    def is_elevated(self) -> bool:
        return self._detector.is_elevated

    @property
    def named(self) -> frozenset[Symptom]:
        """The causes that stand."""
        return frozenset(finding.symptom for finding in self._standing)

    @property
    def _is_unknown(self) -> bool:
        """Nothing is known yet of what is usual for an attached engine, which may be compiling or
        filling its caches. Our own engine is warm when it starts, and is compared with the SLO."""
        return self._learner.reference is None and self._aggregator.is_attached

    def on_fact(self, fact: Fact) -> None:
        """All that it needs is counted."""

    def on_tick(self, begin_ns: int) -> None:
        end_ns = begin_ns + BUCKET_NS
        previous_onset_ns = self._detector.onset_ns
        counts = self._aggregator.counts(begin_ns, end_ns)
        reference = self._learner.reference or slo_baseline()
        stats = stage_stats(counts)
        self._learner.add(begin_ns, stats)
        excess = excess_in_flight(stats, reference)
        self.excess = sum(excess)
        steps = self._aggregator.steps(begin_ns, end_ns)
        direct = DirectExcess(
            slow=slow_step_excess(steps, reference),
            prompts=prompt_excess(steps, counts.first_tokens, reference),
            stopped=stopped_excess(stats, reference),
        )
        self._detector.add(begin_ns, excess, direct, counts.first_commit_logs, reference)
        if self._detector.onset_ns is None:
            self._one_blow = OneBlow()
        elif counts.first_tokens or counts.later_tokens:  # an idle server shows no recovery
            is_said = bool(self._standing)
            self._one_blow.add(self._detector.levels, self.excess, is_said=is_said)
        is_over = previous_onset_ns is not None and self._detector.onset_ns is None
        if is_over and end_ns - (previous_onset_ns or 0) > PASSING_NS:
            self._learner.exclude_until(end_ns)

    def findings(self, end_ns: int, *, is_whole: bool) -> list[Finding]:
        is_judged = is_whole and not self._is_unknown
        if is_judged:
            self._promote_pending(end_ns)
        onset_ns = self._detector.onset_ns
        self.window_begin_ns = end_ns - WINDOW_NS
        self.blame = None
        if onset_ns is None or not is_judged:
            self._standing, self._peak, self._support_ticks = [], 0.0, 0
            self._charged_before = self._pending_symptom
            return []
        self.window_begin_ns = max(onset_ns, self.window_begin_ns)
        self.blame, charged = self._charge(self.window_begin_ns, end_ns, onset_ns)
        standing = self._settled(charged)
        return [] if standing and self._is_passing(standing[0].symptom) else standing

    def is_unexplained(self, end_ns: int) -> bool:
        """Requests are delayed, and have been for long: a burst that drains is no fault. A fuller
        batch, and a queue that keeps nobody from their target, are explained by load."""
        onset_ns = self._detector.onset_ns
        if self._is_unknown or onset_ns is None or end_ns - onset_ns <= UNEXPLAINED_NS:
            return False
        if self._standing and self._is_passing(self._standing[0].symptom):
            return False
        left = self.excess
        if self.blame is not None and not is_in_danger(self.blame, is_said=False):
            mean = (self.blame.excess_ns - self.blame.load_ns) / 1e9 / self.blame.seconds
            left = min(left, mean)
        return left > UNEXPLAINED_REQUESTS

    def _is_passing(self, symptom: Symptom) -> bool:
        """It may be a burst of healthy traffic, and what it held up is served."""
        is_draining = symptom is Symptom.QUEUE_OVERLOAD and self._one_blow.is_draining
        return is_draining or (symptom in _OF_TRAFFIC and self._one_blow.has_passed)

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
        """The findings that stand while the alarm fires. The first are made when two ticks in a row
        have the same first cause, and none is made once the harm has eased. They are withdrawn
        after as many ticks without a cause as there were with one: chance explains them now. An
        alarm without findings is cleared: soon if it eases, which is normal variation; else after
        GIVEN_UP_TICKS."""
        self._peak = max(self._peak, self.excess)
        before, first = self._charged_before, charged[0].symptom if charged else None
        self._charged_before = first
        is_sure = bool(self._standing) or (first is before and not self._detector.has_eased)
        if charged and is_sure:
            self._empty_ticks, self._standing = 0, charged
            before_ticks = self._support_ticks or 1  # the tick before had it too
            self._support_ticks = min(GIVEN_UP_TICKS, before_ticks + 1)
            return charged
        self._empty_ticks += 1
        self._support_ticks = max(0, self._support_ticks - 1)
        if not self._support_ticks:
            self._standing = []
        has_eased = self.excess < EASED_SHARE * self._peak
        if self._empty_ticks >= (EMPTY_TICKS if has_eased else GIVEN_UP_TICKS):
            self._detector.reset()
            self._empty_ticks, self._support_ticks = 0, 0
            self._standing, self._peak = [], 0.0
        return self._standing

    def _charge(self, begin_ns: int, end_ns: int, onset_ns: int) -> tuple[Blame, list[Finding]]:
        window = window_of(self._aggregator, begin_ns, end_ns, has_finding=bool(self._standing))
        charged = blame(window, self._learner.reference or _slo_baseline_like(window))
        affected = self._aggregator.requests.active(begin_ns, end_ns)
        found = findings_of(
            charged, onset_ns, affected, self._culprits(window.counts), self._standing
        )
        return charged, found

    def _culprits(self, counts: Counts) -> tuple[str, ...]:
        """Requests with more prompt tokens than any in the baseline, the longest first."""
        reference = self._learner.reference
        longest = 0 if reference is None else reference.longest_prompt
        owners: dict[str, int] = {}
        for seq_id, tokens in counts.prefill_by_sequence.items():
            if tokens > GROWN_LENGTH * longest:
                name = self._aggregator.requests.owner(seq_id)
                owners[name] = owners.get(name, 0) + tokens
        return tuple(sorted(owners, key=lambda name: -owners[name]))[:_MOST_CULPRITS]


def _slo_baseline_like(window: Window) -> Reference:
    """The SLO's targets, for requests of the size of those in the window."""
    counts = window.counts
    return msgspec.structs.replace(
        slo_baseline(),
        prompt_tokens=counts.prompt_tokens,
        output_tokens=counts.output_tokens,
        choices=counts.choices,
        hit_share=counts.hit_share,
        received_share=counts.received_share,
        ingest_work_ns=counts.ingest_work_ns / max(1, counts.accepted),
    )
