"""Incidents: for how long each symptom was found, from the moments of the last minutes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dashboards.console.model.moments import Moment
from diagnosis.detection.tail_thresholds import INCIDENT_NS
from diagnosis.routed.symptoms import FleetFault, FleetSymptom
from diagnosis.symptoms import Finding, Symptom


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One symptom, of the server or of its fleet, from its onset until it was last found; `finding`
    is the one with most harm. `end_ns` is None while it holds."""

    symptom: Symptom | FleetSymptom
    begin_ns: int
    found_ns: int
    last_ns: int
    finding: Finding | FleetFault
    end_ns: int | None = None

    def until_ns(self, now_ns: int) -> int:
        return now_ns if self.end_ns is None else self.end_ns


def incidents_of(moments: Iterable[Moment]) -> list[Incident]:
    """Oldest first. A symptom that comes back within INCIDENT_NS goes on with its incident, as it
    does for the server itself."""
    done: list[Incident] = []
    held: dict[Symptom | FleetSymptom, Incident] = {}
    newest_ns: int | None = None
    for moment in moments:
        newest_ns = moment.at_ns
        for finding in moment.diagnosis.causes:
            old = held.get(finding.symptom)
            if old is None or moment.at_ns - old.last_ns > INCIDENT_NS:
                done += [] if old is None else [_ended(old)]
                held[finding.symptom] = _begun(finding, moment.at_ns, old)
            else:
                held[finding.symptom] = _grown(old, finding, moment.at_ns)
    done += [one if one.last_ns == newest_ns else _ended(one) for one in held.values()]
    return sorted(done, key=lambda one: (one.begin_ns, one.symptom))


def _begun(finding: Finding | FleetFault, at_ns: int, before: Incident | None) -> Incident:
    """Not earlier than the end of the same symptom's last incident."""
    onset_ns = at_ns if finding.onset_ns is None else min(finding.onset_ns, at_ns)
    return Incident(
        symptom=finding.symptom,
        begin_ns=onset_ns if before is None else max(onset_ns, before.last_ns),
        found_ns=at_ns,
        last_ns=at_ns,
        finding=finding,
    )


def _grown(old: Incident, finding: Finding | FleetFault, at_ns: int) -> Incident:
    """The finding with more harm is kept, and the culprits of the one before where it has none."""
    worst = finding if finding.harm_ms >= old.finding.harm_ms else old.finding
    if not worst.culprits:
        culprits = old.finding.culprits or finding.culprits
        worst = msgspec.structs.replace(worst, culprits=culprits)
    return msgspec.structs.replace(old, last_ns=at_ns, finding=worst)


def _ended(one: Incident) -> Incident:
    return msgspec.structs.replace(one, end_ns=one.last_ns)
