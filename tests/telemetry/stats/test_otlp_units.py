"""The unit that OTLP states for each metric, from which Prometheus makes the end of its name."""

from __future__ import annotations

import re

import pytest
from opentelemetry.sdk.resources import Resource

from telemetry.metrics import vllm_names
from telemetry.metrics.catalog import all_metrics
from telemetry.metrics.families import Family, HistogramPoint
from telemetry.metrics.metric import Kind, Metric
from telemetry.metrics.otlp_metrics import Interval, metrics_data
from telemetry.numbers.hdr import distribution_of

METRICS = [
    *all_metrics(),
    *(one for one in vars(vllm_names).values() if isinstance(one, Metric)),
    *vllm_names.HISTOGRAMS,
]
SHARES = {
    "phasescope_mbu", "phasescope_mfu", "phasescope_not_observed_share",
    "phasescope_slo_burn_ratio", "phasescope_slo_objective_ratio", "phasescope_trace_rate",
    "vllm:kv_cache_usage_perc",
}  # fmt: skip
FORM = re.compile(r"(1|%|s|By|J|W|Cel|Hz|\{[a-z]+\})(/s)?")


def unit_of(metric: Metric) -> str:
    """As it is sent."""
    family = Family(metric, (({}, 1.0),))
    if metric.kind is Kind.HISTOGRAM:
        family = Family(metric, (), (HistogramPoint({}, distribution_of([1_000_000])),))
    (resource,) = metrics_data([family], Resource({}), Interval(1, 2)).resource_metrics
    ((sent,),) = (scope.metrics for scope in resource.scope_metrics)
    return str(sent.unit)


def test_shares_alone_have_no_unit() -> None:
    """Prometheus ends the name of another gauge without one in `_ratio`, where no board looks."""
    assert {one.name for one in METRICS if unit_of(one) == "1"} == SHARES


def test_every_unit_is_one_of_ucum() -> None:
    assert [one.name for one in METRICS if not FORM.fullmatch(unit_of(one))] == []


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("phasescope_running", "{sequence}"), ("phasescope_waiting", "{sequence}"),
        ("phasescope_ready", "{flag}"), ("phasescope_connections", "{connection}"),
        ("phasescope_requests", "{request}"), ("phasescope_kv_blocks_used", "{block}"),
        ("phasescope_journal_bytes", "By"), ("phasescope_e2e_seconds", "s"),
        ("phasescope_measured_bytes_per_second", "By/s"), ("vllm:prompt_tokens", "{token}"),
    ],
)  # fmt: skip
def test_a_unit_says_what_is_counted_or_measured(name: str, unit: str) -> None:
    (metric,) = (one for one in METRICS if one.name == name)

    assert unit_of(metric) == unit
