"""Findings of the few: late tokens whose cause comes back, while most requests are on time.

Every tick the late tokens of the tick are charged (`attribution.late_tokens`), and of each cause
the blows are counted (`detection.blows`). A cause with more blows than the baseline had is a
finding; it is held between its blows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from diagnosis.attribution.late_tokens import ChargedLate, LateCharger
from diagnosis.detection.aggregator import KEPT_NS, Aggregator
from diagnosis.detection.blows import BlowDetector, UsualBlows, blows_of, usual_rate
from diagnosis.detection.counts import BUCKET_NS
from diagnosis.detection.learning import BaselineLearner
from diagnosis.detection.reference import Reference
from diagnosis.detection.tail_thresholds import LONG_RATIO, MOST_CHARGED
from diagnosis.symptoms import Finding, Symptom
from diagnosis.verdicts.mean_harm import MeanHarm
from diagnosis.verdicts.tail_findings import OF_LONG_PROMPTS, Incident, tail_finding
from telemetry.facts.records import Fact

S = Symptom
_KEPT = 4_096


class TailHarm:
    """Implements `verdicts.contributor.Contributor`."""

    def __init__(
        self, aggregator: Aggregator, learner: BaselineLearner, mean_harm: MeanHarm
    ) -> None:
        self._aggregator = aggregator
        self._learner = learner
        self._mean_harm = mean_harm
        self._reference: Reference | None = None
        self._charged: deque[ChargedLate] = deque(maxlen=_KEPT)
        self._charged_until_ns: int | None = None
        self._detectors: dict[Symptom, BlowDetector] = {}
        self._usual_blows = UsualBlows()
        self._usual_per_s: dict[str, float] = {}

    @property
    def onset_ns(self) -> int | None:
        onsets_ns = (one.onset_ns for one in self._detectors.values())
        return min((one for one in onsets_ns if one is not None), default=None)

    @property
    def is_elevated(self) -> bool:
        return any(one.is_elevated for one in self._detectors.values())

    @property
    def usual_per_s(self) -> dict[str, float]:
        """Blows of each cause in the baseline, to be saved with it."""
        return self._usual_per_s

    def on_fact(self, fact: Fact) -> None:
        """All that it needs is counted."""

    def on_tick(self, begin_ns: int) -> None:
        end_ns = begin_ns + BUCKET_NS
        reference = self._learner.reference
        if reference is None:
            return
        charger = LateCharger(self._aggregator, reference)
        since_ns = begin_ns if self._charged_until_ns is None else self._charged_until_ns
        if reference is not self._reference:
            self._compare_with(reference)
            if self._charged_until_ns is None and self._learner.span_ns is not None:
                self._charge(charger, self._learner.span_ns[0], begin_ns)
            self._learn_rates(reference)
        found = self._charge(charger, since_ns, end_ns)
        self._charged_until_ns = end_ns
        self._count(found, end_ns)

    def _compare_with(self, reference: Reference) -> None:
        """A new baseline has new limits."""
        self._reference = reference
        self._aggregator.requests.late.tails = reference.tails
        self._aggregator.long_prompt_tokens = int(LONG_RATIO * reference.longest_prompt)

    def _charge(self, charger: LateCharger, begin_ns: int, end_ns: int) -> list[ChargedLate]:
        """Charge the late tokens that ended within [begin, end), the first one first."""
        late = self._aggregator.requests.late.between(begin_ns, end_ns)[:MOST_CHARGED]
        found = [charger.charge(one) for one in reversed(late)]
        self._charged.extend(found)
        return found

    def _learn_rates(self, reference: Reference) -> None:
        """How often each cause came: in the stretch of the baseline, or in the normal time of the
        last minutes if it came more often there."""
        span_ns = self._learner.span_ns
        if span_ns is None:
            self._usual_per_s = dict(reference.tails.blows_per_s)
            return
        times: dict[str, list[int]] = {}
        for one in self._charged:
            if one.symptom is not None and span_ns[0] <= one.late.end_ns < span_ns[1]:
                times.setdefault(_cause_of(one.symptom).value, []).append(one.blow_ns)
        blows = {name: blows_of(sorted(at_ns)) for name, at_ns in times.items()}
        self._usual_blows.add(span_ns, blows)
        rates = self._usual_blows.rates_per_s()
        for name, at_ns in blows.items():
            rates[name] = max(rates.get(name, 0.0), usual_rate(len(at_ns), reference.seconds))
        rare = usual_rate(0, reference.seconds)
        self._usual_per_s = {name: max(rare, rate) for name, rate in rates.items()}

    def _count(self, found: Iterable[ChargedLate], end_ns: int) -> None:
        times: dict[Symptom, list[int]] = {}
        for one in found:
            if one.symptom is not None:
                times.setdefault(_cause_of(one.symptom), []).append(one.blow_ns)
        for symptom in times:
            self._detectors.setdefault(symptom, BlowDetector())
        rare = usual_rate(0, 0.0 if self._reference is None else self._reference.seconds)
        for symptom, detector in self._detectors.items():
            detector.is_confirmed |= symptom in map(_cause_of, self._mean_harm.named)
            usual_per_s = self._usual_per_s.get(symptom.value, rare)
            detector.add(sorted(times.get(symptom, ())), end_ns, usual_per_s)

    def findings(self, end_ns: int, *, is_whole: bool) -> list[Finding]:
        if not is_whole:
            self._detectors.clear()
            return []
        held = {
            symptom: detector
            for symptom, detector in self._detectors.items()
            if detector.onset_ns is not None
        }
        if not held:
            return []
        begin_ns = max(end_ns - KEPT_NS, min(one.onset_ns or 0 for one in held.values()))
        late = [one for one in self._charged if begin_ns <= one.late.end_ns < end_ns]
        firsts = self._aggregator.requests.late.firsts_in(begin_ns, end_ns)
        total_ns = sum(one.late.above_ns for one in late)
        lost_ns = _lost_ns(late)
        names = _named(held, lost_ns)
        found = [
            tail_finding(
                symptom,
                Incident(
                    detector=held[_cause_of(symptom)],
                    late=[one for one in late if names.get(one.symptom) is symptom],
                    share=sum(ns for one, ns in lost_ns.items() if names.get(one) is symptom)
                    / max(1, total_ns),
                    seconds=(end_ns - (held[_cause_of(symptom)].onset_ns or end_ns)) / 1e9,
                    firsts=firsts,
                ),
            )
            for symptom in dict.fromkeys(names.values())
        ]
        return sorted(found, key=lambda one: -one.harm_ms)


def _cause_of(symptom: Symptom) -> Symptom:
    """Long prompts are one cause, whose blows are counted together."""
    return OF_LONG_PROMPTS[0] if symptom in OF_LONG_PROMPTS else symptom


def _lost_ns(late: Iterable[ChargedLate]) -> Counter[Symptom]:
    found: Counter[Symptom] = Counter()
    for one in late:
        if one.symptom is not None:
            found[one.symptom] += one.late.above_ns
    return found


def _named(
    held: dict[Symptom, BlowDetector], lost_ns: Counter[Symptom]
) -> dict[Symptom | None, Symptom]:
    """The finding that each late token belongs to. Long prompts are named by who loses more: the
    requests beside them or their own."""
    names: dict[Symptom | None, Symptom] = {symptom: symptom for symptom in held}
    if OF_LONG_PROMPTS[0] in held:
        worst = max(OF_LONG_PROMPTS, key=lambda symptom: lost_ns[symptom])
        names |= dict.fromkeys(OF_LONG_PROMPTS, worst)
    return names
