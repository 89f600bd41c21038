"""Metrics of what requests cost each other, of the diagnosis and of the autopilot."""

from __future__ import annotations

from telemetry.metrics.metric import Kind, Metric

HARM_SECONDS = Metric(
    "phasescope_harm_seconds",
    Kind.COUNTER,
    "Seconds that requests took from others, by part of the ledger: prompts, masks or "
    "decodes (co_decode).",
    ("part",),
)
HARM_BY_TENANT = Metric(
    "phasescope_harm_by_tenant_seconds",
    Kind.COUNTER,
    "Seconds that a tenant's prompts and masks took from other requests.",
    ("tenant",),
)
HARM_BY_CLASS = Metric(
    "phasescope_harm_by_class_seconds",
    Kind.COUNTER,
    "Seconds that the prompts and masks of an SLO class took from other requests.",
    ("slo_class",),
)
FINDING = Metric(
    "phasescope_finding",
    Kind.GAUGE,
    "Whether the diagnosis finds a symptom now: 1 for each one found, absent otherwise.",
    ("symptom",),
)
FINDING_HARM_SECONDS = Metric(
    "phasescope_finding_harm_seconds",
    Kind.GAUGE,
    "Seconds that requests have lost to a symptom since its onset.",
    ("symptom",),
)
INDETERMINATE = Metric(
    "phasescope_diagnosis_indeterminate",
    Kind.GAUGE,
    "Whether the verdict is indeterminate: 1 while something is wrong and the record does "
    "not say what, else 0.",
)
ROOT_FAILURES = Metric(
    "phasescope_root_cause_failures",
    Kind.COUNTER,
    "Number of root cause analyses that gave no result, by reason.",
    ("reason",),
)
AUTOPILOT_DECISIONS = Metric(
    "phasescope_autopilot_decisions",
    Kind.COUNTER,
    "Number of decisions of the autopilot about limits, by what was decided.",
    ("decision",),
)
AUTOPILOT_FAILURES = Metric(
    "phasescope_autopilot_search_failures",
    Kind.COUNTER,
    "Number of searches of the autopilot that gave no result, by reason.",
    ("reason",),
)
