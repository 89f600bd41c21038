"""The page about metrics, from the catalog; `make docs` writes it."""

from __future__ import annotations

from telemetry.metrics import vllm_names
from telemetry.metrics.catalog import all_metrics
from telemetry.metrics.metric import Metric

_HEAD = f"""# Metrics

Everything at `/metrics`, written from `{all_metrics.__module__}` by `make docs`.

The format follows the `Accept` header: protobuf with native histograms, OpenMetrics 1.0 with
exemplars, or text 0.0.4. A counter's samples end in `_total`. A value that was not measured is
absent, never 0. Over OTLP the names have dots and histograms are exponential.

Latency histograms are split by `slo_class`; `/metrics?classes=full` splits them by `prompt` (length
bin), `cache` (cold or warm) and `tenant` too. Native buckets grow by 0.54 %.
"""

_VLLM = """
## vLLM's names

With `--vllm-metrics`, metrics that vLLM defines in the same way are exposed under its name too.
"""


def document() -> str:
    """The page as Markdown."""
    vllm = [one for one in vars(vllm_names).values() if isinstance(one, Metric)]
    return "\n".join(
        [
            _HEAD,
            *_table(all_metrics()),
            _VLLM,
            *_table([*vllm, *vllm_names.HISTOGRAMS]),
            "",
        ]
    )


def _table(metrics: list[Metric]) -> list[str]:
    head = ["| name | kind | unit | labels | meaning |", "|---|---|---|---|---|"]
    return head + [
        f"| `{metric.name}` | {metric.kind.value} | {metric.counted or '1'} "
        f"| {', '.join(metric.labels) or '-'} | {metric.help} |"
        for metric in metrics
    ]
