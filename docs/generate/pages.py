"""Which page is written by whom. A test compares each page with what its writer says now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.generate import (
    columns,
    compatibility,
    diagnosis,
    facts,
    flags,
    http,
    importers,
    weights,
)
from service.gateway.http import limits_doc
from telemetry.metrics import metrics_doc

REFERENCE = Path(__file__).parents[1] / "reference"

PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "flags.md": flags.document,
    REFERENCE / "http.md": http.document,
    REFERENCE / "compatibility.md": compatibility.document,
    REFERENCE / "limits.md": limits_doc.document,
    REFERENCE / "metrics.md": metrics_doc.document,
    REFERENCE / "facts.md": facts.document,
    REFERENCE / "thresholds.md": diagnosis.thresholds,
    REFERENCE / "evidence.md": diagnosis.evidence,
    REFERENCE / "importers.md": importers.document,
    REFERENCE / "columns.md": columns.document,
    REFERENCE / "weights.md": weights.document,
}
