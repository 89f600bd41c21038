"""The diagnosis of a fleet as lines of text: a pure function of it."""

from __future__ import annotations

from collections.abc import Iterator

from dashboards.monitor.panels import milliseconds
from diagnosis.fleet.findings import FleetFinding
from diagnosis.fleet.view import FleetDiagnosis, ReplicaLine, ReplicaState
from telemetry.requests.phases import Measure

_SHOWN = (Measure.TTFT, Measure.ITL, Measure.E2E)
_CULPRITS = 5


def lines(fleet: FleetDiagnosis) -> Iterator[str]:
    """The verdict, every replica, every finding, and what all replicas have together."""
    yield from fleet.said
    yield ""
    for replica in fleet.replicas:
        yield _replica(replica)
    for rank, finding in enumerate(fleet.findings, 1):
        yield ""
        yield from _finding(rank, finding)
    yield from _together(fleet)


def _replica(line: ReplicaLine) -> str:
    if line.state is ReplicaState.UNREAD:
        return f"  {line.name}: no answer: {line.why}"
    found = ", ".join(symptom.value for symptom in line.symptoms) or line.verdict
    ttft, itl = (None if one is None else one.p95_ns for one in (line.ttft, line.itl))
    said = [
        f"  {line.name}: {line.state.value}, {found}",
        f"{line.requests} requests in a minute",
        f"TTFT p95 {milliseconds(ttft)}, ITL p95 {milliseconds(itl)}",
    ]
    if line.attempted:
        said.append(f"{100 * line.good / line.attempted:.1f} % good")
    said += [line.why] if line.why else []
    return "; ".join(said)


def _finding(rank: int, found: FleetFinding) -> Iterator[str]:
    whose = f", tenant {found.tenant}" if found.tenant else ""
    yield (
        f"{rank}. {found.symptom.value} on {len(found.replicas)} "
        f"({found.harm_ms / 1e3:,.1f} s of requests' time{whose})"
    )
    yield f"   {found.worst.claim}"
    yield f"   {'replicas':>24}: {', '.join(found.replicas)}"
    if found.worst.chain:
        yield f"   {'chain':>24}: {found.worst.chain_text}"
    for evidence in found.worst.evidence:
        yield f"   {evidence.name:>24}: {evidence.text}"
    if found.culprits:
        yield f"   {'culprits':>24}: {', '.join(found.culprits[:_CULPRITS])}"
    yield f"   {'runbook':>24}: {found.worst.runbook}"


def _together(fleet: FleetDiagnosis) -> Iterator[str]:
    """Goodput, burn and latencies of all replicas that answered."""
    yield ""
    yield "all replicas together, last minute"
    for status in fleet.slo:
        window = status.windows[0]
        if window.burn is not None:
            share = f"{100 * window.good / window.attempted:.1f} % of {window.attempted}"
            yield f"  {status.name}: {share} good, burn {window.burn:.1f}"
    for measure in _SHOWN:
        found = fleet.latencies.get(measure.value)
        if found is not None:
            p50, p95, p99 = map(milliseconds, (found.p50_ns, found.p95_ns, found.p99_ns))
            yield f"  {measure.value.upper()}: p50 {p50}, p95 {p95}, p99 {p99} of {found.count}"
