"""The diagnosis of a fleet: one line a replica, findings, promises and latencies of all of them.

Latencies are merged counter by counter, so they are those that one server would have measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from diagnosis.fleet.findings import FleetFinding, merged_findings
from diagnosis.fleet.judge import FleetVerdict, judge
from diagnosis.fleet.replica import Replica
from diagnosis.fleet.words import sentences
from diagnosis.symptoms import Symptom
from telemetry.numbers.hdr import merged
from telemetry.numbers.quantiles import Percentiles
from telemetry.requests.phases import Measure
from telemetry.stats.slo_merge import merged_slo
from telemetry.stats.slo_report import SloStatus


class ReplicaState(StrEnum):
    """Whether a replica takes part in the verdict."""

    SERVING = "serving"
    IDLE = "idle"  # nothing was asked of it in the last minute
    NOT_READY = "not ready"
    UNREAD = "no answer"


class ReplicaLine(msgspec.Struct, frozen=True, kw_only=True):
    """One replica in one line; `why` is why it could not be read, or not wholly."""

    name: str
    state: ReplicaState
    why: str = ""
    verdict: str = ""
    symptoms: tuple[Symptom, ...] = ()
    model: str = ""
    backend: str = ""
    version: str = ""
    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    output_tokens_per_s: float = 0.0
    requests: int = 0
    ttft: Percentiles | None = None
    itl: Percentiles | None = None
    attempted: int = 0
    good: int = 0


class FleetDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The diagnosis of all replicas together. `said` is the verdict in words; `latencies` are of
    the last minute, by measure."""

    said: tuple[str, ...]
    verdict: FleetVerdict
    replicas: tuple[ReplicaLine, ...]
    findings: tuple[FleetFinding, ...]
    slo: tuple[SloStatus, ...]
    latencies: dict[str, Percentiles]

    @property
    def unread(self) -> int:
        return sum(one.state is ReplicaState.UNREAD for one in self.replicas)


def diagnose_fleet(replicas: Sequence[Replica]) -> FleetDiagnosis:
    """Names of replicas must differ."""
    read = [one for one in replicas if one.is_read]
    latencies = {
        measure.value: merged(one.overall(measure) for one in read).percentiles()
        for measure in Measure
    }
    verdict = judge(replicas)
    return FleetDiagnosis(
        said=sentences(verdict),
        verdict=verdict,
        replicas=tuple(map(_line, replicas)),
        findings=merged_findings(replicas),
        slo=merged_slo(one.slo for one in read if one.slo is not None),
        latencies={name: found for name, found in latencies.items() if found.count},
    )


def _line(replica: Replica) -> ReplicaLine:
    if not replica.is_read:
        return ReplicaLine(name=replica.name, state=ReplicaState.UNREAD, why=replica.why_unread)
    windows = [
        one.windows[0] for one in (replica.slo.classes if replica.slo else ()) if one.windows
    ]
    return ReplicaLine(
        name=replica.name,
        state=_state(replica),
        why=replica.why_partial,
        verdict=replica.diagnosis.verdict,
        symptoms=replica.symptoms,
        model=replica.model,
        backend=replica.backend,
        version=replica.version,
        running=replica.running,
        waiting=replica.waiting,
        blocks_used=replica.blocks_used,
        blocks_total=replica.blocks_total,
        output_tokens_per_s=replica.output_tokens_per_s,
        requests=replica.requests,
        ttft=_percentiles(replica, Measure.TTFT),
        itl=_percentiles(replica, Measure.ITL),
        attempted=sum(window.attempted for window in windows),
        good=sum(window.good for window in windows),
    )


def _state(replica: Replica) -> ReplicaState:
    if not replica.ready:
        return ReplicaState.NOT_READY
    return ReplicaState.IDLE if replica.is_idle else ReplicaState.SERVING


def _percentiles(replica: Replica, measure: Measure) -> Percentiles | None:
    found = replica.overall(measure).percentiles()
    return found if found.count else None
