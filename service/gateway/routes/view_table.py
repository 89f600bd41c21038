"""The routes of any server of ours in words and types; a test compares them with the app's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from service.gateway.routes.types import response_types as answers
from service.gateway.routes.types.query_types import (
    BatchQuery,
    HistogramsQuery,
    MetricsQuery,
    RequestsQuery,
)
from service.gateway.routes.view_routes import TracingChange
from telemetry.requests.request_list import RequestsPage
from telemetry.stats.snapshot import Batch

JSON = "application/json"
EVENTS = "text/event-stream"
BINARY = "application/vnd.phasescope.journal"
EXPOSITIONS = (
    "text/plain",
    "application/openmetrics-text",
    "application/vnd.google.protobuf",
)

STATUS_TEXTS = {
    400: "The request is invalid; `param` names the field, `code` the error.",
    401: "The key is missing or wrong.",
    403: "This host, origin or key may not do that.",
    404: "What the path or the body names does not exist.",
    408: "The request took longer than its timeout, or than the server waits.",
    409: "The state of the server or of the request does not allow it now.",
    413: "The body is larger than `--max-body`.",
    415: "The type of the body is not supported.",
    429: "Too many requests; try again after `retry-after` seconds.",
    500: "An error of the server; its log has it with the request id.",
    503: "The engine is not ready, hangs or has died, or the server is shutting down.",
    504: "The engine has not done it in time, and may yet do it.",
}
_ALWAYS = (401, 403, 429, 500, 503)
_WITH_BODY = (400, 408, 413, 415)

REQUEST_HEADERS = {
    "x-request-id": "The request's id; one that is malformed or in use is replaced.",
    "x-tenant": "The tenant, if no key has one; one that is too long counts as absent.",
    "x-slo-class": "The SLO class of the request.",
    "traceparent": "W3C trace context; a malformed one is ignored.",
    "tracestate": "W3C trace state.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One method of one path.

    `answer` has the type of a 200 by content type, None for bytes or text. `errors` are statuses in
    addition to those of every route.
    """

    method: str
    path: str
    summary: str
    tag: str
    answer: dict[str, Any]
    body: type | None = None
    query: type | None = None
    headers: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    not_ready: Any = answers.ErrorBody
    path_parameters: dict[str, str] = field(default_factory=dict)

    @property
    def statuses(self) -> list[int]:
        """All error statuses of the route."""
        return sorted({*_ALWAYS, *self.errors, *(_WITH_BODY if self.body else ())})


def view(path: str, summary: str, **more: Any) -> Description:
    return Description(
        method="GET",
        path=path,
        summary=summary,
        tag="debug",
        answer={JSON: more.pop("answer", answers.View)},
        **more,
    )


REQUEST_ID_PARAMETER = {"request_id": "As in `x-request-id`."}

OPERATIONS = [
    Description(
        method="GET", path="/health", summary="Whether the gateway responds", tag="operations",
        answer={JSON: answers.Health},
    ),
    Description(
        method="GET", path="/ready", summary="Whether requests are accepted", tag="operations",
        answer={JSON: answers.Ready}, not_ready=answers.Ready,
    ),
    Description(
        method="GET", path="/openapi.json", summary="This document", tag="operations",
        answer={JSON: answers.View},
    ),
    Description(
        method="GET", path="/metrics", summary="Metrics, in the format that Accept asks for",
        tag="operations", answer=dict.fromkeys(EXPOSITIONS), query=MetricsQuery,
    ),
]  # fmt: skip

DEBUG_VIEWS = [
    view("/debug/snapshot", "The current state of the service"),
    view("/debug/diagnosis", "What is wrong, ranked, with evidence"),
    view("/debug/root", "The root cause, by replay"),
    view("/debug/autopilot", "What the autopilot does and has decided, and its bounds"),
    view("/debug/harm", "Time that requests took from others"),
    view("/debug/host", "The machine, and pauses with the delay that they caused"),
    view("/debug/roofline", "What steps read and compute, against the limits of the hardware"),
    view("/debug/tracing", "Settings, exports and cost of tracing"),
    view(
        "/debug/histograms", "All histograms, to be merged with those of other processes",
        query=HistogramsQuery, errors=(400,),
    ),
    view("/debug/slo", "SLOs and how well they are met"),
    view(
        "/debug/requests", "Ended requests by number, one line each, and those that are live",
        answer=RequestsPage, query=RequestsQuery, errors=(400,),
    ),
    view(
        "/debug/batch", "The batch: what each sequence did in the last steps",
        answer=Batch, query=BatchQuery, errors=(400,),
    ),
    view(
        "/debug/requests/{request_id}", "The timeline of one request", errors=(404,),
        path_parameters=REQUEST_ID_PARAMETER,
    ),
    Description(
        method="GET", path="/debug/journal", summary="The flight recorder's contents", tag="debug",
        answer={BINARY: None}, errors=(404,),
    ),
    Description(
        method="POST", path="/debug/dump", summary="Write the flight recorder to disk", tag="debug",
        answer={JSON: answers.View}, errors=(404,),
    ),
    Description(
        method="PUT", path="/debug/tracing", summary="How much is traced", tag="debug",
        answer={JSON: answers.View}, body=TracingChange, errors=(409,),
    ),
]  # fmt: skip

VIEWS = [*OPERATIONS, *DEBUG_VIEWS]
