"""The rule: one bad replica, bad traffic, or not enough to say.

Replicas that do not answer, and those that nothing was asked of, say nothing of the others and are
left out. Of the rest, in this order:

    what the machine or the settings of a few cause, and of the others not    those are bad
    the same finding on all, of what they are sent                           bad traffic
    the same finding on all, and not of what they are sent                   a common cause
    a few that are sent more than the others, or something worse             uneven traffic
    a few with a finding, or slow                                            those are bad
    trouble on more, or some that cannot judge themselves                    not enough to say
    anything else                                                            healthy
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from diagnosis.fleet.compare import Comparison, comparison, load_ratio
from diagnosis.fleet.findings import culprit_tenant
from diagnosis.fleet.replica import Replica
from diagnosis.fleet.sides import Side, side_of
from diagnosis.fleet.thresholds import (
    DOMINANT_SHARE,
    LEAST_REPLICAS,
    MINORITY_SHARE,
    SHARED_SHARE,
    UNEVEN_RATIO,
)
from diagnosis.symptoms import Finding, Symptom
from telemetry.requests.classes import NONE, OTHER

_OWN = (Side.MACHINE, Side.SETTING)


class Scope(StrEnum):
    """How far the trouble reaches."""

    HEALTHY = "healthy"
    BAD_REPLICA = "bad_replica"
    BAD_TRAFFIC = "bad_traffic"
    COMMON_CAUSE = "common_cause"
    UNEVEN_TRAFFIC = "uneven_traffic"
    NOT_ENOUGH = "not_enough"


class BadReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that is not like the others. `symptom` is its finding, None where it is only slow,
    and `culprits` whom that names; `alone_in` what it has and none of the others (a version, a back
    end, a model)."""

    name: str
    symptom: Symptom | None = None
    side: Side | None = None
    claim: str = ""
    culprits: tuple[str, ...] = ()
    compared: Comparison | None = None
    load_ratio: float | None = None
    alone_in: tuple[str, ...] = ()

    @property
    def is_slow(self) -> bool:
        return self.compared is not None and self.compared.is_slow

    @property
    def is_sent_more(self) -> bool:
        """More than its share, or something that names whose it is."""
        if (self.load_ratio or 0.0) >= UNEVEN_RATIO:
            return True
        return self.side is Side.TRAFFIC and (bool(self.culprits) or not self.is_slow)


class InCommon(msgspec.Struct, frozen=True, kw_only=True):
    """What all replicas with the same finding share. `role` is that of `name`: the `culprit
    tenant`, the `tenant` of most requests, or the `class` of most misses; `share` its least part of
    them on any replica, None for a culprit."""

    role: str
    name: str
    share: float | None = None


class Unsure(msgspec.Struct, frozen=True, kw_only=True):
    """A replica whose own verdict is indeterminate, for the reason `why`, and names no cause."""

    name: str
    why: str


class FleetVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`judged` replicas had traffic, or failed. `shared` are the symptoms that all of these show
    (or nearly all: `showing` show the first), the one that cost most first; `why` says why there is
    not enough to say. `unsure` ones cannot judge themselves; `unread` more do not answer."""

    scope: Scope
    judged: int
    unread: int = 0
    bad: tuple[BadReplica, ...] = ()
    shared: tuple[Symptom, ...] = ()
    showing: int = 0
    in_common: tuple[InCommon, ...] = ()
    why: str = ""
    unsure: tuple[Unsure, ...] = ()


def judge(replicas: Sequence[Replica]) -> FleetVerdict:
    """What is said of the fleet. Names of replicas must differ."""
    judged = [one for one in replicas if one.is_read and (one.has_failed or not one.is_idle)]
    unsure = tuple(_unsure(judged))
    return msgspec.structs.replace(
        _judged(judged, len(replicas), len(unsure)),
        unread=sum(not one.is_read for one in replicas),
        unsure=unsure,
    )


def _judged(judged: Sequence[Replica], replicas: int, unsure: int) -> FleetVerdict:
    count = len(judged)
    if count < LEAST_REPLICAS:
        why = f"{count} of {replicas} replicas had traffic in the last minute"
        return FleetVerdict(scope=Scope.NOT_ENOUGH, judged=count, why=why)
    bad = [one for one in (_bad(replica, judged) for replica in judged) if one is not None]
    if not bad and unsure:
        why = f"{unsure} of {count} replicas cannot judge themselves, and nothing else is found"
        return FleetVerdict(scope=Scope.NOT_ENOUGH, judged=count, why=why)
    if not bad:
        return FleetVerdict(scope=Scope.HEALTHY, judged=count)
    shared = _shared(judged)
    exceptions = _exceptions(judged, shared)
    if exceptions:
        return FleetVerdict(
            scope=Scope.BAD_REPLICA, judged=count, bad=exceptions, shared=tuple(shared)
        )
    if shared:
        first = next(iter(shared))
        is_traffic = shared[first] is Side.TRAFFIC
        return FleetVerdict(
            scope=Scope.BAD_TRAFFIC if is_traffic else Scope.COMMON_CAUSE,
            judged=count,
            shared=tuple(shared),
            showing=sum(first in one.symptoms for one in judged),
            in_common=_in_common(judged, first) if is_traffic else (),
        )
    return _of_a_few(judged, bad)


def _of_a_few(judged: Sequence[Replica], bad: Sequence[BadReplica]) -> FleetVerdict:
    """Nothing is on all of them, and no machine is at fault for sure."""
    count = len(judged)
    if len(bad) > MINORITY_SHARE * count:
        said = [f"{one.name} {'slow' if one.symptom is None else one.symptom.value}" for one in bad]
        why = (
            f"{len(bad)} of {count} replicas have trouble, too many for an exception, and no cause "
            f"is on all: {', '.join(said)}"
        )
        return FleetVerdict(scope=Scope.NOT_ENOUGH, judged=count, bad=tuple(bad), why=why)
    is_sent = all(one.is_sent_more for one in bad)
    scope = Scope.UNEVEN_TRAFFIC if is_sent else Scope.BAD_REPLICA
    return FleetVerdict(scope=scope, judged=count, bad=tuple(bad))


def _exceptions(judged: Sequence[Replica], shared: dict[Symptom, Side]) -> tuple[BadReplica, ...]:
    """The few with a fault of their own that most others do not have."""
    found: list[BadReplica] = []
    for replica in judged:
        own = [one for one in _causes(replica) if one.symptom not in shared]
        first = next((one for one in own if side_of(one) in _OWN), None)
        if first is not None:
            found.append(_described(replica, judged, first))
    return tuple(found) if len(found) <= MINORITY_SHARE * len(judged) else ()


def _shared(judged: Sequence[Replica]) -> dict[Symptom, Side]:
    """The symptoms that all show, with their sides, by the time that was lost to them."""
    counts: Counter[Symptom] = Counter()
    harm_ms: defaultdict[Symptom, float] = defaultdict(float)
    sides: dict[Symptom, Side] = {}
    for replica in judged:
        for finding in _causes(replica):
            counts[finding.symptom] += 1
            harm_ms[finding.symptom] += finding.harm_ms
            sides.setdefault(finding.symptom, side_of(finding))
    found = [one for one, n in counts.items() if n >= SHARED_SHARE * len(judged)]
    return {one: sides[one] for one in sorted(found, key=lambda one: -harm_ms[one])}


def _causes(replica: Replica) -> list[Finding]:
    """What it was found to suffer from. A missed promise is what a cause costs, and counts where no
    cause is known."""
    found = [one for one in replica.diagnosis.findings if side_of(one) is not Side.RECORD]
    causes = [one for one in found if one.symptom is not Symptom.SLO_MISSED]
    return causes or found


def _unsure(judged: Sequence[Replica]) -> Iterator[Unsure]:
    for replica in judged:
        if replica.diagnosis.verdict == "indeterminate" and not _causes(replica):
            yield Unsure(name=replica.name, why=replica.diagnosis.why)


def _bad(replica: Replica, judged: Sequence[Replica]) -> BadReplica | None:
    """The replica as a bad one; None where it has no finding and is not slow."""
    causes = _causes(replica)
    described = _described(replica, judged, causes[0] if causes else None)
    return described if causes or described.is_slow else None


def _described(replica: Replica, judged: Sequence[Replica], finding: Finding | None) -> BadReplica:
    others = [one for one in judged if one is not replica]
    alike = [one for one in others if (one.model, one.backend) == (replica.model, replica.backend)]
    return BadReplica(
        name=replica.name,
        symptom=None if finding is None else finding.symptom,
        side=None if finding is None else side_of(finding),
        claim="" if finding is None else finding.claim,
        culprits=() if finding is None else finding.culprits,
        compared=comparison(replica, alike),
        load_ratio=load_ratio(replica, others),
        alone_in=tuple(
            f"{what} {getattr(replica, what)}"
            for what in ("version", "backend", "model")
            if _is_odd(what, replica, others)
        ),
    )


def _is_odd(what: str, replica: Replica, others: Sequence[Replica]) -> bool:
    """Others know theirs, and have another."""
    theirs = {getattr(one, what) for one in others} - {""}
    mine = getattr(replica, what)
    return bool(mine) and bool(theirs) and mine not in theirs


def _in_common(judged: Sequence[Replica], symptom: Symptom) -> tuple[InCommon, ...]:
    """The tenant and the class that stand out on every replica with that finding."""
    sharing = [(one, found) for one in judged if (found := one.finding(symptom)) is not None]
    tenants = {culprit_tenant(one, found) for one, found in sharing}
    in_common: list[InCommon] = []
    if len(tenants) == 1 and (name := next(iter(tenants))):
        in_common.append(InCommon(role="culprit tenant", name=name))
    counts = [one.requests_by_tenant() for one, _ in sharing]
    if not in_common and len(set().union(*counts)) > 1:
        in_common += _dominant("tenant", counts)
    in_common += _dominant("class", [one.misses_by_class() for one, _ in sharing])
    return tuple(in_common)


def _dominant(role: str, counts: Sequence[Counter[str]]) -> list[InCommon]:
    """The name that has most on each of them; nothing where it is another one, or no name."""
    names = {count.most_common(1)[0][0] for count in counts if count.total()}
    if len(names) != 1 or not all(count.total() for count in counts):
        return []
    name = next(iter(names))
    share = min(count[name] / count.total() for count in counts)
    if name in (NONE, OTHER) or share < DOMINANT_SHARE:
        return []
    return [InCommon(role=role, name=name, share=round(share, 3))]
