"""Writes the rules of `dashboards/prometheus` as a PrometheusRule: `python -m dashboards.stack`."""

from __future__ import annotations

from dashboards.stack.prometheus_rule import PATH, document

if __name__ == "__main__":
    PATH.write_text(document())
