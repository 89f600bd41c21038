"""What a fleet's gateway finds wrong with its fleet, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.routed.symptoms import FleetFault, RoutedVerdict

_VICTIMS = 5


def fault_line(fault: FleetFault) -> str:
    """In one line, without its name."""
    harm = f" ({fault.harm_ms / 1e3:,.1f} s of requests' time)" if fault.harm_ms else ""
    return f"{fault.claim}{harm}; see {fault.runbook}"


def fleet_lines(verdict: RoutedVerdict) -> Iterator[str]:
    """The faults with their evidence, and what is not judged."""
    seconds = verdict.window_ns / 1e9
    if not verdict.faults:
        yield f"the fleet of {verdict.engines} engines: nothing found in the last {seconds:.0f} s"
    for rank, fault in enumerate(verdict.faults, 1):
        share = f", {100 * fault.share:.0f} % of the harm" if fault.share else ""
        yield f"fleet {rank}. {fault.symptom.value} ({fault.harm_ms:,.0f} ms{share})"
        yield f"   {fault.claim}"
        for evidence in fault.evidence:
            yield f"   {evidence.name:>24}: {evidence.text}"
        for name, listed in (("culprits", fault.culprits), ("victims", fault.victims[:_VICTIMS])):
            if listed:
                yield f"   {name:>24}: {', '.join(listed)}"
        for other in fault.excluded:
            yield f"   {'not ' + other.symptom.value:>24}: {other.reason}"
        yield f"   {'would remove it':>24}: {fault.intervention}"
        yield f"   {'runbook':>24}: {fault.runbook}"
    for one in verdict.abstained:
        yield f"not judged of the fleet: {one.text}"
