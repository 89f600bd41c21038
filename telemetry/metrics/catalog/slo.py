"""Metrics of service level objectives, and of cost."""

from __future__ import annotations

from telemetry.metrics.metric import Kind, Metric

SLO_REQUESTS = Metric(
    "phasescope_slo_requests",
    Kind.COUNTER,
    "Number of requests ended, by SLO class and verdict: good, a kind of miss, or not counted.",
    ("slo_class", "verdict"),
)
SLO_TOKENS = Metric(
    "phasescope_slo_tokens",
    Kind.COUNTER,
    "Number of output tokens of requests that count for the SLO, good and missed.",
    ("slo_class",),
)
SLO_GOOD_TOKENS = Metric(
    "phasescope_slo_good_tokens",
    Kind.COUNTER,
    "Number of output tokens of requests that met the SLO of their class.",
    ("slo_class",),
)
SLO_OBJECTIVE = Metric(
    "phasescope_slo_objective_ratio",
    Kind.GAUGE,
    "Objective of an SLO class: the share of requests (0 to 1) that must meet its targets.",
    ("slo_class",),
)
SLO_TTFT_TARGET = Metric(
    "phasescope_slo_ttft_target_seconds",
    Kind.GAUGE,
    "Target of an SLO class for the time to first token, in seconds.",
    ("slo_class",),
)
SLO_ITL_TARGET = Metric(
    "phasescope_slo_itl_target_seconds",
    Kind.GAUGE,
    "Target of an SLO class for the gap between two tokens, in seconds.",
    ("slo_class",),
)
SLO_BURN = Metric(
    "phasescope_slo_burn_ratio",
    Kind.GAUGE,
    "Burn rate of the error budget: the share of requests that missed over the share that "
    "may miss; absent without requests.",
    ("slo_class", "window"),
)
SLO_UNKNOWN = Metric(
    "phasescope_slo_unknown_class_requests",
    Kind.COUNTER,
    "Number of requests that named an unknown SLO class and got the default one.",
)
COST = Metric(
    "phasescope_million_token_cost",
    Kind.GAUGE,
    "Cost of a million output tokens at --price-per-hour, over all tokens or over those "
    "of good requests.",
    ("which", "window"),
)
