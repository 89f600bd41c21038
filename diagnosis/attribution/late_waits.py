"""What a late token waited for outside of the steps: the gateway, blocks, other tenants."""

from __future__ import annotations

from collections import Counter

from diagnosis.attribution.charges import Charges, shares_of
from diagnosis.attribution.demand import share_grew
from diagnosis.attribution.thresholds import INGEST_WORK, SIGMAS, TENANT_SHARE
from diagnosis.detection.aggregator import Aggregator
from diagnosis.detection.counts import BUCKET_NS, Counts
from diagnosis.detection.late import Late
from diagnosis.detection.reference import Reference
from diagnosis.detection.tail_thresholds import (
    BATCH_S,
    BATCH_SIGMAS,
    PAUSES_SEEN_NS,
)
from diagnosis.symptoms import Symptom
from telemetry.facts.host_records import HostPaused
from telemetry.facts.reasons import HostProcess, PauseCause, WaitReason

S = Symptom

_PAUSES = {
    PauseCause.GC: S.HOST_STALL,
    PauseCause.THROTTLED: S.THROTTLED,
    PauseCause.OFF_CPU: S.CPU_STARVATION,
    PauseCause.LOOP_BLOCKED: S.HOST_STALL,
}
_WAITS = {
    WaitReason.GRAMMAR: S.GRAMMAR_COST,
    WaitReason.ADAPTER: S.ADAPTER_CHURN,
    WaitReason.CLIENT_PAUSE: S.SLOW_CLIENT,
    WaitReason.KV: S.KV_EXHAUSTION,
    WaitReason.PREEMPTED: S.KV_THRASH,
}


def overlapping(
    aggregator: Aggregator, begin_ns: int, end_ns: int, process: HostProcess
) -> list[HostPaused]:
    """Recorded pauses of a process that overlap [begin, end)."""
    found: list[HostPaused] = []
    for pause in reversed(aggregator.pauses):
        if pause.end_ns < begin_ns - PAUSES_SEEN_NS:
            break
        if pause.process is process and pause.begin_ns < end_ns and pause.end_ns > begin_ns:
            found.append(pause)
    return found


def lost_within(pause: HostPaused, begin_ns: int, end_ns: int) -> float:
    """The part of a pause's loss that lies within [begin, end), taken to be spread evenly."""
    length_ns = max(1, pause.end_ns - pause.begin_ns)
    lost_ns = length_ns if pause.lost_ns is None else min(pause.lost_ns, length_ns)
    inside_ns = min(end_ns, pause.end_ns) - max(begin_ns, pause.begin_ns)
    return lost_ns * max(0, inside_ns) / length_ns


def whole_ticks(aggregator: Aggregator, begin_ns: int, end_ns: int) -> tuple[Counts, float]:
    """The counts of the ticks that overlap [begin, end), and their seconds."""
    first = begin_ns // BUCKET_NS * BUCKET_NS
    last = -(-end_ns // BUCKET_NS) * BUCKET_NS
    return aggregator.counts(first, last), (last - first) / 1e9


class GatewayTime:
    """What delayed the gateway in a span: its ingest work, or pauses of its process."""

    def __init__(self, aggregator: Aggregator, reference: Reference) -> None:
        self._aggregator = aggregator
        self._reference = reference

    def charged(self, begin_ns: int, end_ns: int) -> Charges:
        """Its pauses within [begin, end), in ns by cause."""
        found = Charges()
        for pause in overlapping(self._aggregator, begin_ns, end_ns, HostProcess.GATEWAY):
            found[_PAUSES[pause.cause]] += lost_within(pause, begin_ns, end_ns)
        return found

    def shares(self, begin_ns: int, end_ns: int) -> Charges:
        """The shares of the time that requests spent before they were submitted, by cause."""
        stood = self.charged(begin_ns, end_ns)
        counts, _ = whole_ticks(self._aggregator, begin_ns, end_ns)
        work_ns = counts.ingest_work_ns - self._reference.ingest_work_ns * counts.accepted
        if work_ns > INGEST_WORK * sum(stood.values()):
            return Charges({S.INGEST_BACKLOG: 1.0})
        return shares_of(stood)


def wait_shares(aggregator: Aggregator, begin_ns: int, end_ns: int) -> Charges:
    """The share of the time in the queue for blocks, clients, grammars or adapters, by cause. The
    rest is for slots and budget, which others have."""
    counts, _ = whole_ticks(aggregator, begin_ns, end_ns)
    total_ns = sum(counts.waited_ns.values())
    found = Charges()
    for reason, spent_ns in counts.waited_ns.items():
        if reason in _WAITS and total_ns:
            found[_WAITS[reason]] += spent_ns / total_ns
    return found


def batch_of_one_tenant(aggregator: Aggregator, reference: Reference, late: Late) -> str | None:
    """Another tenant, of whom so many requests came shortly before that it is no chance."""
    counts, seconds = whole_ticks(aggregator, late.begin_ns - int(BATCH_S * 1e9), late.end_ns)
    grown: Counter[str] = Counter()
    for tenant, came in counts.tenant_requests.items():
        usual = reference.tenants_per_s.get(tenant, 0.0) * seconds
        least = BATCH_SIGMAS * (reference.dispersion * max(1.0, usual)) ** 0.5
        if came - usual > 0:
            grown[tenant] = int(came - usual)
        if came - usual < least:
            grown[tenant] = min(grown[tenant], 0)
    tenant, more = grown.most_common(1)[0] if grown else ("", 0)
    is_other = len(reference.tenants_per_s) > 1 and tenant != late.request.tenant
    all_more = counts.requests - reference.requests_per_s * seconds
    if more <= 0 or not is_other or more < TENANT_SHARE * all_more:
        return None
    return tenant if share_grew(counts, reference, tenant, SIGMAS) else None
