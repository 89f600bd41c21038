"""Findings as metrics, shaped like the `ALERTS` series of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from diagnosis.routed.symptoms import PREFIX, RoutedVerdict
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.metrics.catalog import fleet
from telemetry.metrics.catalog import harm as catalog
from telemetry.metrics.metric import Metric

Sample = tuple[dict[str, str], float]


def finding_families(diagnosis: Diagnosis) -> Iterator[tuple[Metric, list[Sample]]]:
    """One sample a finding; a symptom without a finding has none."""
    names = [{"symptom": finding.symptom.value} for finding in diagnosis.findings]
    harms = [finding.harm_ms / 1e3 for finding in diagnosis.findings]
    yield catalog.FINDING, [(labels, 1.0) for labels in names]
    yield catalog.FINDING_HARM_SECONDS, list(zip(names, harms, strict=True))
    yield catalog.INDETERMINATE, [({}, float(diagnosis.verdict == "indeterminate"))]
    if diagnosis.fleet is not None:
        yield from _fault_families(diagnosis.fleet)


def _fault_families(verdict: RoutedVerdict) -> Iterator[tuple[Metric, list[Sample]]]:
    """The same of a fleet, by the engine at fault, where it is one."""
    faults: list[Sample] = []
    harms: list[Sample] = []
    for fault in verdict.faults:
        engines = [one for one in fault.culprits if not one.startswith(PREFIX)]
        labels = {"symptom": fault.symptom.value, "engine": engines[0] if engines else ""}
        faults.append((labels, 1.0))
        harms.append((labels, fault.harm_ms / 1e3))
    yield fleet.FAULT, faults
    yield fleet.FAULT_HARM_SECONDS, harms
