"""Queries of traces, in the words of the data sources that have them."""

from __future__ import annotations

import json
from urllib.parse import quote

from dashboards.grafana.spec import TraceQuery, TraceStore

VARIABLE = "traces"
SERVICE = "phasescope"
_LIMIT = 20
_VARIABLES = "${}"  # characters that a link keeps, so that Grafana finds its variables

OF_CLASS = TraceQuery(tags={"phasescope.slo_class": "${__field.labels.slo_class}"})
"""The traces of the class that a series is of."""


def query(store: TraceStore, asked: TraceQuery) -> dict[str, object]:
    """The query as in a panel's targets."""
    source = {"type": store.value, "uid": f"${{{VARIABLE}}}"}
    return {"refId": "A", "datasource": source, **_asked(store, asked)}


def explore_link(store: TraceStore, asked: TraceQuery) -> str:
    """Grafana's Explore with that search, over the time that a board shows."""
    pane = {
        "datasource": f"${{{VARIABLE}}}",
        "queries": [query(store, asked)],
        "range": {"from": "${__from}", "to": "${__to}"},
    }
    panes = quote(json.dumps({"traces": pane}, separators=(",", ":")), safe=_VARIABLES)
    return f"/explore?schemaVersion=1&panes={panes}"


def _asked(store: TraceStore, asked: TraceQuery) -> dict[str, object]:
    match store:
        case TraceStore.JAEGER:
            return {"query": asked.trace_id} if asked.trace_id else _jaeger(asked)
        case TraceStore.TEMPO:
            return {
                "queryType": "traceql",
                "query": asked.trace_id or _traceql(asked),
                "filters": [],
                "limit": _LIMIT,
                "tableType": "traces",
            }


def _jaeger(asked: TraceQuery) -> dict[str, object]:
    tags = dict(asked.tags) | ({"error": "true"} if asked.is_failed else {})
    return {
        "queryType": "search",
        "service": SERVICE,
        "operation": asked.span,
        "tags": " ".join(f"{name}={value}" for name, value in tags.items()),
        "limit": _LIMIT,
    }


def _traceql(asked: TraceQuery) -> str:
    wanted = [f'resource.service.name = "{SERVICE}"']
    if asked.span:
        wanted.append(f'name = "{asked.span}"')
    if asked.is_failed:
        wanted.append("status = error")
    wanted += [f'span.{name} = "{value}"' for name, value in asked.tags.items()]
    return f"{{ {' && '.join(wanted)} }}"
