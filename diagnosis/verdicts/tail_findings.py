"""What a finding of late tokens says: how many of how many, by how much, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from diagnosis.attribution.late_tokens import ChargedLate
from diagnosis.detection.blows import BlowDetector
from diagnosis.detection.late import LateKind
from diagnosis.evidence import Late
from diagnosis.symptoms import Evidence, Finding, Symptom
from diagnosis.verdicts.confidence import confidence
from diagnosis.verdicts.rules import RULES
from diagnosis.verdicts.runbook import runbook_name

S = Symptom
OF_LONG_PROMPTS = (S.PREFILL_INTERFERENCE, S.LONG_PROMPTS)
_MOST_VICTIMS, _MOST_EXEMPLARS, _MOST_CULPRITS = 10, 3, 5
_WORDS = {
    LateKind.GAP: "a gap above {limit:.0f} ms",
    LateKind.FIRST: "a first token after {limit:.0f} ms",
    LateKind.DELIVERY: "a delivery above {limit:.0f} ms",
}

_MEASURED = {
    LateKind.GAP: (Late.LATE_GAPS, Late.GAP_ABOVE, Late.GAP_ABOVE_MOST),
    LateKind.FIRST: (Late.LATE_FIRSTS, Late.FIRST_ABOVE, Late.FIRST_ABOVE_MOST),
    LateKind.DELIVERY: (Late.LATE_DELIVERIES, Late.DELIVERY_ABOVE, Late.DELIVERY_ABOVE_MOST),
}


@dataclass(frozen=True, slots=True)
class Incident:
    """The late tokens of one cause since its onset, `seconds` ago. `share` is their part of all
    lateness, `firsts` the number of requests that had a first token."""

    detector: BlowDetector
    late: Sequence[ChargedLate]
    share: float
    seconds: float
    firsts: int


def tail_finding(symptom: Symptom, incident: Incident) -> Finding:
    """The finding of a cause that comes back."""
    late, detector = incident.late, incident.detector
    above_ns: Counter[str] = Counter()
    traces: dict[str, str] = {}
    for one in late:
        above_ns[one.late.request.request_id] += one.late.above_ns
        traces[one.late.request.request_id] = one.late.request.trace_id
    victims = [name for name, _ in above_ns.most_common(_MOST_VICTIMS)]
    culprits = Counter(one.culprit for one in late if one.culprit is not None)
    of_few = max(len(above_ns), incident.firsts)
    return Finding(
        symptom=symptom,
        confidence=confidence(incident.share, incident.seconds),
        claim=f"{RULES[symptom].claim}, now and then: {len(above_ns)} of {of_few} requests had "
        f"{_most_common(late)}, {detector.blows} times, once in {detector.period_s or 0:.1f} s",
        harm_ms=round(above_ns.total() / 1e6, 1),
        evidence=_evidence(late, of_few),
        culprits=tuple(name for name, _ in culprits.most_common(_MOST_CULPRITS)),
        victims=tuple(victims),
        exemplars=tuple(traces[name] for name in victims[:_MOST_EXEMPLARS]),
        share=round(incident.share, 3),
        onset_ns=detector.onset_ns,
        runbook=runbook_name(symptom),
        period_s=None if detector.period_s is None else round(detector.period_s, 2),
        blows=detector.blows,
    )


def named_by_late(found: Sequence[Finding], end_ns: int) -> list[Finding]:
    """An `Annotator`. The mean charges a long prompt to those beside it as soon as two of them
    decode, though none of their tokens may be late; where late tokens say that the prompt's own
    request loses more, their finding stands in its place."""
    own = next((one for one in found if one.symptom is S.LONG_PROMPTS and one.blows), None)
    if own is None:
        return list(found)
    named = [own if one.symptom is S.PREFILL_INTERFERENCE else one for one in found]
    return list({one.symptom: one for one in named}.values())


def _most_common(late: Sequence[ChargedLate]) -> str:
    """What most of them had."""
    kinds = Counter((one.late.kind, one.late.limit_ns) for one in late)
    (kind, limit_ns), _ = kinds.most_common(1)[0]
    return _WORDS[kind].format(limit=limit_ns / 1e6)


def _evidence(late: Sequence[ChargedLate], requests: int) -> tuple[Evidence, ...]:
    """Counts and lateness by kind, the requests concerned, and the one class or tenant if all are
    of one."""
    found = [Late.REQUESTS.of(requests)]
    for kind, (number, above, most) in _MEASURED.items():
        above_ms = [one.late.above_ns / 1e6 for one in late if one.late.kind is kind]
        if above_ms:
            found += [number.of(len(above_ms)), above.of(sum(above_ms)), most.of(max(above_ms))]
    concerned = len({one.late.request.request_id for one in late})
    tenants = len({one.late.request.tenant for one in late})
    return (Late.LATE_REQUESTS.of(concerned), *found, Late.TENANTS.of(tenants))
