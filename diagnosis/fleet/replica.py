"""One server's own account of its last minute, as it was read: from its URL, or of a dump."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diagnosis.symptoms import Finding, Symptom
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.numbers.hdr import Distribution, merged
from telemetry.requests.phases import Measure
from telemetry.stats.histogram_report import Distributions
from telemetry.stats.slo_report import SloReport

_NOTHING = Diagnosis((), 0, 0, True)
_FAILURES = frozenset(
    {
        Symptom.ENGINE_HUNG,
        Symptom.LOAD_FAILURE,
        Symptom.OUT_OF_MEMORY,
        Symptom.STEP_FAILURE,
    }
)


class RequestKind(NamedTuple):
    """Requests that should take about the same time on every replica."""

    slo_class: str
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """`why_unread` says why there is no account, and is empty where there is one.

    `latencies` are those of the last minute; they may be missing from an account (`why_partial`
    says why). `tenants` are those of the requests that findings name as culprits.
    """

    name: str
    why_unread: str = ""
    why_partial: str = ""
    diagnosis: Diagnosis = _NOTHING
    ready: bool = False
    model: str = ""
    backend: str = ""
    version: str = ""
    running: int = 0
    waiting: int = 0
    blocks_used: int = 0
    blocks_total: int = 0
    output_tokens_per_s: float = 0.0
    latencies: Distributions = field(default_factory=dict)
    slo: SloReport | None = None
    tenants: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_read(self) -> bool:
        return not self.why_unread

    @property
    def requests(self) -> int:
        """Number of requests of the last minute: ended, and in flight now."""
        ended = sum(v.count for (m, _), v in self.latencies.items() if m is Measure.TOKENIZE)
        return ended + self.running + self.waiting

    @property
    def is_idle(self) -> bool:
        """Nothing was asked of it in the last minute, so that it cannot be compared."""
        return not self.requests and not any(v.count for v in self.latencies.values())

    @property
    def has_failed(self) -> bool:
        """It cannot serve, which shows without any traffic."""
        return any(finding.symptom in _FAILURES for finding in self.diagnosis.findings)

    @property
    def symptoms(self) -> tuple[Symptom, ...]:
        return tuple(finding.symptom for finding in self.diagnosis.findings)

    def finding(self, symptom: Symptom) -> Finding | None:
        return next((one for one in self.diagnosis.findings if one.symptom is symptom), None)

    def overall(self, measure: Measure) -> Distribution:
        """All classes together."""
        return merged(v for (m, _), v in self.latencies.items() if m is measure)

    def by_kind(self, measure: Measure) -> dict[RequestKind, Distribution]:
        """Over tenants and cache states."""
        parts: dict[RequestKind, list[Distribution]] = defaultdict(list)
        for (m, cell), values in self.latencies.items():
            if m is measure:
                parts[RequestKind(cell.slo_class, cell.prompt)].append(values)
        return {kind: merged(values) for kind, values in parts.items()}

    def requests_by_tenant(self) -> Counter[str]:
        """Number of requests by tenant that ended in the last minute."""
        found: Counter[str] = Counter()
        for (m, cell), values in self.latencies.items():
            if m is Measure.TOKENIZE:
                found[cell.tenant] += values.count
        return found

    def misses_by_class(self) -> Counter[str]:
        """Requests that missed their SLO, in the shortest window of the report."""
        found: Counter[str] = Counter()
        for status in self.slo.classes if self.slo is not None else ():
            for window in status.windows[:1]:
                found[status.name] += window.attempted - window.good
        return found
