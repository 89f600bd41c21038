"""Boards as Grafana's JSON, by the builders of the Grafana Foundation SDK."""

from __future__ import annotations

import json
import warnings
from typing import Any

from dashboards.grafana import traces
from dashboards.grafana.spec import Board, Panel, Query, Show, TraceQuery, TraceStore
from telemetry.metrics.catalog import engine, slo

with warnings.catch_warnings():
    # It prefers the newer form of boards, which only the last Grafanas read.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import common as common_builders
    from grafana_foundation_sdk.builders import dashboard as dashboards
    from grafana_foundation_sdk.builders import (
        heatmap,
        prometheus,
        stat,
        statetimeline,
        table,
        timeseries,
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.cog.runtime import UnknownDataquery
    from grafana_foundation_sdk.models import common
    from grafana_foundation_sdk.models import dashboard as models
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

TAG = "phasescope"
_PROMETHEUS = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_GREEN, _RED = "green", "red"

_BUILDERS: dict[Show, Any] = {
    Show.LINES: timeseries.Panel,
    Show.NUMBER: stat.Panel,
    Show.HEATMAP: heatmap.Panel,
    Show.STATES: statetimeline.Panel,
    Show.TABLE: table.Panel,
    Show.TRACES: lambda: dashboards.Panel().type(Show.TRACES.value),
}


def json_of(board: Board, store: TraceStore = TraceStore.JAEGER) -> str:
    """The board as Grafana reads it."""
    return _encoded(_dashboard(board, store).build())


def read_back(text: str) -> str:
    """The same board once the SDK's types have read it: what they do not know is lost."""
    register_default_plugins()
    return _encoded(models.Dashboard.from_json(json.loads(text)))


def _encoded(board: models.Dashboard) -> str:
    return JSONEncoder(sort_keys=True, indent=2).encode(board) + "\n"


def _dashboard(board: Board, store: TraceStore) -> dashboards.Dashboard:
    made = (
        dashboards.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags([TAG])
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("15s")
        .timezone("browser")
        .link(
            dashboards.DashboardLink("phasescope")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
    )
    for variable in _variables(board, store):
        made = made.with_variable(variable)
    number = 0
    for row in board.rows:
        number += 1
        made = made.with_row(dashboards.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            made = made.with_panel(_panel(panel, store).id(number))
    return made


def _variables(board: Board, store: TraceStore) -> list[Any]:
    found: list[Any] = [
        dashboards.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        dashboards.DatasourceVariable(traces.VARIABLE).label("Traces").type(store.value),
        _label_values("instance", "Instance", engine.READY.exposed),
        _label_values("slo_class", "Class", slo.SLO_OBJECTIVE.exposed),
    ]
    if board.asks_trace:
        found.append(dashboards.TextBoxVariable("trace").label("Trace id"))
    return found


def _label_values(label: str, words: str, metric: str) -> Any:
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboards.QueryVariable(label)
        .label(words)
        .datasource(_PROMETHEUS)
        .query(f"label_values({metric}, {label})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(everything)
    )


def _panel(panel: Panel, store: TraceStore) -> Any:
    """The builder of a panel."""
    made = (
        _BUILDERS[panel.show]()
        .title(panel.title)
        .description(_described(panel))
        .height(panel.height)
        .span(panel.width)
    )
    if panel.traces is not None:
        return _of_traces(made, panel.traces, store)
    made = made.datasource(_PROMETHEUS).unit(panel.unit)
    for place, query in enumerate(panel.queries):
        made = made.with_target(_target(query, chr(ord("A") + place), panel.show))
    if panel.show is not Show.HEATMAP:
        made = _limits(made, panel)
    if panel.links_to_traces:
        link = dashboards.DashboardLink("Traces of this class").target_blank(True)
        made = made.data_links([link.url(traces.explore_link(store, traces.OF_CLASS))])
    return _styled(made, panel)


def _described(panel: Panel) -> str:
    if panel.needs.is_usual:
        return panel.about
    return f"{panel.about} Without {panel.needs.value} this is empty."


def _of_traces(made: Any, asked: TraceQuery, store: TraceStore) -> Any:
    source = models.DataSourceRef(type_val=store.value, uid=f"${{{traces.VARIABLE}}}")
    return made.datasource(source).targets([_Ready(UnknownDataquery(traces.query(store, asked)))])


class _Ready:
    """A query that is built already."""

    def __init__(self, query: UnknownDataquery) -> None:
        self._query = query

    def build(self) -> UnknownDataquery:
        return self._query


def _target(query: Query, ref_id: str, show: Show) -> Any:
    made = (
        prometheus.Dataquery()
        .expr(query.expr)
        .ref_id(ref_id)
        .legend_format(query.legend or "__auto")
        .datasource(_PROMETHEUS)
    )
    match show:
        case Show.TABLE:
            return made.instant().format(PromQueryFormat.TABLE)
        case Show.HEATMAP:
            return made.range().format(PromQueryFormat.HEATMAP).exemplar(query.exemplars)
        case _:
            return made.range().exemplar(query.exemplars)


def _limits(made: Any, panel: Panel) -> Any:
    """Its axis from zero, and the value from which it is coloured."""
    if panel.show in (Show.LINES, Show.NUMBER):
        made = made.min(0)
    if panel.max_value is not None:
        made = made.max(panel.max_value)
    steps = [models.Threshold(value=None, color=_GREEN)]
    if panel.warn_above is not None:
        steps.append(models.Threshold(value=panel.warn_above, color=_RED))
    if panel.warn_below is not None:
        steps = [
            models.Threshold(value=None, color=_RED),
            models.Threshold(value=panel.warn_below, color=_GREEN),
        ]
    if panel.show is Show.STATES:
        by_threshold = dashboards.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)
        made = made.color_scheme(by_threshold)
    mode = models.ThresholdsMode.ABSOLUTE
    return made.thresholds(dashboards.ThresholdsConfig().mode(mode).steps(steps))


def _styled(made: Any, panel: Panel) -> Any:
    match panel.show:
        case Show.LINES:
            return _lines(made, panel)
        case Show.HEATMAP:
            axis = heatmap.YAxisConfig().unit(panel.unit)
            return made.y_axis(axis).calculate(False)
        case Show.TABLE:
            return made.transformations([models.DataTransformerConfig(id_val="merge", options={})])
        case _:
            return made


def _lines(made: Any, panel: Panel) -> Any:
    made = (
        made.fill_opacity(30 if panel.stacked else 8)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs([])
        )
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
    )
    if panel.stacked:
        made = made.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if panel.warn_above is not None:
        dashed = common.GraphThresholdsStyleMode.DASHED
        made = made.thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(dashed))
    return made
