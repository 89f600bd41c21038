"""PromQL from metrics of the catalog, so that no board can name a metric that is not there.

Every selector has the board's variables in it. Latencies are asked for twice, as native histograms
and as classic buckets: which of the two a Prometheus has depends on how it was started, and the
other half of the `or` is then empty.
"""

from __future__ import annotations

from telemetry.metrics.metric import Kind, Metric

RATE_WINDOW = "$__rate_interval"
"""At least four scrapes, by Grafana; so a counter has a rate at every point."""

_INSTANCE = 'instance=~"$instance"'
_CLASS = 'slo_class=~"$slo_class"'


def samples(metric: Metric, *where: str, suffix: str = "") -> str:
    """Its series at the chosen instances and classes; `where` are more matchers."""
    matchers = [_INSTANCE]
    if "slo_class" in metric.labels:
        matchers.append(_CLASS)
    return f"{metric.exposed}{suffix}{{{', '.join((*matchers, *where))}}}"


def total(metric: Metric, *by: str, where: tuple[str, ...] = ()) -> str:
    """A gauge, summed over all labels but `by`."""
    return f"sum{_by(by)} ({samples(metric, *where)})"


def highest(metric: Metric, *by: str, where: tuple[str, ...] = ()) -> str:
    """A gauge, the highest over all labels but `by`."""
    return f"max{_by(by)} ({samples(metric, *where)})"


def rate(metric: Metric, *by: str, where: tuple[str, ...] = ()) -> str:
    """A counter's increase a second, summed over all labels but `by`."""
    assert metric.kind is Kind.COUNTER, metric.name
    return f"sum{_by(by)} (rate({samples(metric, *where)}[{RATE_WINDOW}]))"


def share(part: str, whole: str) -> str:
    """`part` of `whole`; nothing where there is nothing to share."""
    return f"{part}\n/\n({whole} > 0)"


def quantile(q: float, metric: Metric, *by: str) -> str:
    """A quantile of a histogram, for each combination of the labels `by`."""
    return (
        f"histogram_quantile({q}, {_native(metric, by)})\n"
        f"or\nhistogram_quantile({q}, {_classic(metric, by)})"
    )


def mean(metric: Metric, *by: str) -> str:
    """The mean of a histogram."""
    native = _native(metric, by)
    summed, counted = (_part(metric, by, suffix) for suffix in ("_sum", "_count"))
    return (
        f"histogram_sum({native}) / (histogram_count({native}) > 0)\nor\n{summed} / ({counted} > 0)"
    )


def count_rate(metric: Metric, *by: str) -> str:
    """Values a second that a histogram took in."""
    return f"histogram_count({_native(metric, by)})\nor\n{_part(metric, by, '_count')}"


def buckets(metric: Metric) -> str:
    """All buckets, for a heatmap."""
    return f"{_native(metric, ())}\nor\n{_classic(metric, ())}"


def _native(metric: Metric, by: tuple[str, ...]) -> str:
    assert metric.kind is Kind.HISTOGRAM, metric.name
    return f"sum{_by(by)} (rate({samples(metric)}[{RATE_WINDOW}]))"


def _classic(metric: Metric, by: tuple[str, ...]) -> str:
    return _part(metric, (*by, "le"), "_bucket")


def _part(metric: Metric, by: tuple[str, ...], suffix: str) -> str:
    return f"sum{_by(by)} (rate({samples(metric, suffix=suffix)}[{RATE_WINDOW}]))"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""
