"""Histograms for other processes: what `/debug/histograms` answers, and how answers add up.

The HDR encoding carries counters only, and to a counter's width. So each entry states the
true maximum and the exact sum beside it, and merging keeps them.
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
    """All histograms of one process that hold something over `window`: TOTAL or one of
    WINDOWS_S."""

    schema: int
    window: str
    at_ns: int
    histograms: tuple[HistogramEntry, ...]


Found = dict[tuple[Measure, WorkloadClass], Distribution]


def distributions(histograms: Histograms, window: str, now_ns: int) -> Found:
    """What every histogram holds over a window; hold the pump's lock. Raises KeyError for an
    unknown window."""
    length_s = None if window == TOTAL else WINDOWS_S[window]
    found: Found = {}
    for key, histogram in histograms.cells.items():
        values = histogram.total() if length_s is None else histogram.last(now_ns, length_s)
        if values.count:
            found[key] = values
    return found


def report(found: Found, window: str, now_ns: int) -> HistogramReport:
    """Encodes them; a third of a millisecond each, so hold no lock."""
    entries: list[HistogramEntry] = []
    for (measure, cell), values in sorted(found.items(), key=lambda pair: pair[0]):
        entries.append(_entry(measure, cell, values))
        sleep_ns(0)  # let the threads that serve go first
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


def merge(bodies: Iterable[bytes]) -> Found:
    """Answers of several processes, put together as if one had measured everything.

    Raises ValueError for an answer that is none, or of another schema or layout.
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
