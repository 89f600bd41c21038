"""Findings of all replicas as one list: of one symptom and culprit tenant they are one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from diagnosis.fleet.replica import Replica
from diagnosis.symptoms import Finding, Symptom


class FleetFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of lost time on one or more replicas.

    `tenant` is that of the first culprit, empty where none is named. `harm_ms` is the sum over
    `replicas`, which come worst first; `worst` is the finding of the first of them. `culprits` are
    as `NAME at REPLICA`.
    """

    symptom: Symptom
    tenant: str
    replicas: tuple[str, ...]
    harm_ms: float
    worst: Finding
    culprits: tuple[str, ...] = ()


def culprit_tenant(replica: Replica, finding: Finding) -> str:
    """The tenant of the first culprit that is a known request; of unfairness the tenant itself is
    the culprit."""
    if finding.symptom is Symptom.UNFAIRNESS:
        return finding.culprits[0] if finding.culprits else ""
    known = (replica.tenants[one] for one in finding.culprits if one in replica.tenants)
    return next(known, "")


def merged_findings(replicas: Sequence[Replica]) -> tuple[FleetFinding, ...]:
    """On most replicas first, then by lost time."""
    groups: dict[tuple[Symptom, str], list[tuple[Replica, Finding]]] = defaultdict(list)
    for replica in replicas:
        for finding in replica.diagnosis.findings if replica.is_read else ():
            groups[finding.symptom, culprit_tenant(replica, finding)].append((replica, finding))
    found = [_merged(*key, group) for key, group in groups.items()]
    return tuple(sorted(found, key=lambda one: (-len(one.replicas), -one.harm_ms)))


def _merged(
    symptom: Symptom, tenant: str, group: Sequence[tuple[Replica, Finding]]
) -> FleetFinding:
    ranked = sorted(group, key=lambda pair: -pair[1].harm_ms)
    return FleetFinding(
        symptom=symptom,
        tenant=tenant,
        replicas=tuple(replica.name for replica, _ in ranked),
        harm_ms=round(sum(finding.harm_ms for _, finding in ranked), 1),
        worst=ranked[0][1],
        culprits=tuple(
            f"{culprit} at {replica.name}"
            for replica, finding in ranked
            for culprit in finding.culprits
        ),
    )
