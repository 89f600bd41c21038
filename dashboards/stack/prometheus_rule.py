"""The rules as a resource of the Prometheus operator, whose groups are those of a rule file."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
PATH = _HERE / "kubernetes/prometheusrule.yaml"
RULES = tuple(_HERE.parent / "prometheus" / name for name in ("rules.yml", "fleet.yml"))

_HEAD = """\
# Written by `python -m dashboards.stack` from dashboards/prometheus/rules.yml and fleet.yml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: phasescope
  labels:
    app.kubernetes.io/name: phasescope
spec:
  groups:
"""


def document() -> str:
    """The resource. Lines are copied, so that comments stay."""
    return _HEAD + "".join(_indented(path.read_text()) for path in RULES)


def _indented(text: str) -> str:
    _, marker, groups = text.partition("\ngroups:\n")
    assert marker, "a rule file begins with its groups"
    return "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(True))
