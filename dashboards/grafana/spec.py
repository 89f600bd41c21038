"""What a board is made of, before it is Grafana's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from telemetry.metrics.metric import Metric

UNITS = {
    "seconds": "s",
    "bytes": "bytes",
    "ratio": "percentunit",
    "joules": "joule",
    "watts": "watt",
    "celsius": "celsius",
    "hertz": "hertz",
    "percent": "percent",
}
"""Grafana's name of a unit of the catalog; others are plain numbers."""


class Show(StrEnum):
    """How a panel draws, by the id of Grafana's plugin."""

    LINES = "timeseries"
    NUMBER = "stat"
    HEATMAP = "heatmap"
    STATES = "state-timeline"
    TABLE = "table"
    TRACES = "traces"


class Needs(StrEnum):
    """What must be there for a panel to have data, besides requests."""

    LOAD = "load"
    GPU = "a GPU"
    RANKS = "several tensor-parallel ranks"
    COUNTERS = "a way to read the memory's bandwidth"
    PEAKS = "peaks of the machine (--peak-gb-per-s)"
    PRICE = "a price (--price-per-hour)"
    TRACE_STORE = "a trace store"
    GATEWAYS = "several gateway processes (--gateways)"
    ATTACHED = "an engine that others wrote (phasescope attach)"
    FLEET = "engines behind a network (phasescope engine, serve --engines)"

    @property
    def is_usual(self) -> bool:
        return self in (Needs.LOAD, Needs.TRACE_STORE)


class TraceStore(StrEnum):
    """Where traces are looked up, by the id of Grafana's plugin."""

    JAEGER = "jaeger"
    TEMPO = "tempo"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL query; with `exemplars`, trace ids are asked for too."""

    expr: str
    legend: str = ""
    exemplars: bool = False


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """A search for traces that have a span of this name, or that failed, with these attributes; or
    with `trace_id` one trace."""

    span: str = ""
    is_failed: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    trace_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`about` is its description. `warn_above` and `warn_below` colour its values. With
    `links_to_traces` a series leads to the traces of its class."""

    title: str
    show: Show = Show.LINES
    queries: tuple[Query, ...] = ()
    traces: TraceQuery | None = None
    unit: str = "short"
    about: str = ""
    needs: Needs = Needs.LOAD
    stacked: bool = False
    links_to_traces: bool = False
    warn_above: float | None = None
    warn_below: float | None = None
    max_value: float | None = None
    width: int = 8
    height: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A heading, and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """`name` is its file and the end of its uid. With `asks_trace` one can type a trace id in."""

    name: str
    title: str
    about: str
    rows: tuple[Row, ...]
    asks_trace: bool = False

    @property
    def uid(self) -> str:
        return f"phasescope-{self.name}"

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def unit_of(metric: Metric) -> str:
    """Grafana's unit of its values."""
    return UNITS.get(metric.unit, "short")
