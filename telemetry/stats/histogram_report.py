"""Histograms for other processes: the answer of `/debug/histograms`, and merging of answers.

The HDR encoding has counters only. So each entry has the exact maximum and sum beside it, and
merging keeps them exact.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from telemetry.facts.clock import sleep_ns
from telemetry.numbers import hdr
from telemetry.numbers.hdr import Distribution
from telemetry.numbers.quantiles import Percentiles
from telemetry.numbers.windows import WINDOWS_S
from telemetry.requests.classes import WorkloadClass
from telemetry.requests.phases import Measure
from telemetry.stats.histograms import Histograms

SCHEMA = 1
TOTAL = "total"


class HistogramEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of one class over one window; `hdr` counts microseconds."""

    measure: Measure
    slo_class: str
    prompt: str
    cache: str
    tenant: str
    count: int
    sum_ns: int
    max_ns: int
    percentiles: Percentiles
    hdr: str

    @property
    def workload(self) -> WorkloadClass:
        return WorkloadClass(self.slo_class, self.prompt, self.cache, self.tenant)


class HistogramReport(msgspec.Struct, frozen=True, kw_only=True):
    """All histograms of one process with values in `window`: TOTAL or one of WINDOWS_S."""

    schema: int
    window: str
    at_ns: int
    histograms: tuple[HistogramEntry, ...]


Distributions = dict[tuple[Measure, WorkloadClass], Distribution]


def distributions(histograms: Histograms, window: str, now_ns: int) -> Distributions:
    """The values of every histogram in a window. Hold the pump's lock. Raises KeyError for an
    unknown window."""
    length_s = None if window == TOTAL else WINDOWS_S[window]
    found: Distributions = {}
    for key, histogram in histograms.cells.items():
        values = histogram.total() if length_s is None else histogram.last(now_ns, length_s)
        if values.count:
            found[key] = values
    return found


def report(found: Distributions, window: str, now_ns: int) -> HistogramReport:
    """Encode the distributions. Takes a third of a millisecond each, so hold no lock."""
    entries: list[HistogramEntry] = []
    for (measure, cell), values in sorted(found.items(), key=lambda pair: pair[0]):
        entries.append(_entry(measure, cell, values))
        sleep_ns(0)  # yields to the threads that serve
    return HistogramReport(schema=SCHEMA, window=window, at_ns=now_ns, histograms=tuple(entries))


def _entry(measure: Measure, cell: WorkloadClass, values: Distribution) -> HistogramEntry:
    return HistogramEntry(
        measure=measure,
        slo_class=cell.slo_class,
        prompt=cell.prompt,
        cache=cell.cache,
        tenant=cell.tenant,
        count=values.count,
        sum_ns=values.sum_ns,
        max_ns=values.max_ns,
        percentiles=values.percentiles(),
        hdr=hdr.encode(values),
    )


def merge(bodies: Iterable[bytes]) -> Distributions:
    """The answers of several processes merged, as if one process had measured everything.

    Raises ValueError for a body that is no answer, or has another schema or layout.
    """
    parts: dict[tuple[Measure, WorkloadClass], list[Distribution]] = {}
    for body in bodies:
        try:
            answer = msgspec.json.decode(body, type=HistogramReport)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not an answer of /debug/histograms: {error}") from error
        if answer.schema != SCHEMA:
            raise ValueError(f"histograms of schema {answer.schema}; only {SCHEMA} can be merged")
        for entry in answer.histograms:
            values = hdr.decode(entry.hdr, entry.sum_ns, entry.max_ns)
            parts.setdefault((entry.measure, entry.workload), []).append(values)
    return {key: hdr.merged(values) for key, values in parts.items()}
