"""The pages: each is a frame and the parts that fill it."""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup
from nicegui import ui
from starlette.requests import Request

from dashboards.console.markup import batch as batch_markup
from dashboards.console.markup import latency as latency_markup
from dashboards.console.markup import overview as overview_markup
from dashboards.console.markup import requests as requests_markup
from dashboards.console.markup import waterfall as waterfall_markup
from dashboards.console.markup.findings import who_of
from dashboards.console.markup.html import tag
from dashboards.console.markup.overview import CHART_NS, Overview
from dashboards.console.model.heat import MEASURES, cells_of, target_ns
from dashboards.console.model.moments import Moment
from dashboards.console.model.waterfall import waterfall_of
from dashboards.console.web.incident_page import incident_page
from dashboards.console.web.limits_page import limits_page
from dashboards.console.web.parts import Frame
from dashboards.console.web.poller import Poller
from dashboards.console.web.state import Known
from dashboards.explain import Explained
from dashboards.monitor.client import Unreachable
from telemetry.stats.slo_report import SloStatus

_LEAST_NS = 60_000_000_000
_ASK_AGAIN_S = 2.0
_NOT_FOUND = 404
WAITING = tag("p", "Nothing is known yet.", class_="quiet")


def add_pages(poller: Poller) -> None:
    """Register all pages; each tab draws its own from what the poller knows."""
    _add_state_pages(poller)
    _add_request_pages(poller)


def _add_state_pages(poller: Poller) -> None:
    known = poller.known

    def drawn(draw: Callable[[Moment], Markup]) -> Callable[[], Markup]:
        return lambda: WAITING if known.moment is None else draw(known.moment)

    @ui.page("/")
    def overview() -> None:
        frame = Frame(poller, "overview", "Overview")
        with frame.main:
            frame.keep(drawn(lambda moment: overview_markup.render(_overview(poller, moment))))

    @ui.page("/batch")
    def batch() -> None:
        frame = Frame(poller, "batch", "Batch")
        with frame.main:
            frame.keep(drawn(lambda moment: batch_markup.render(known.batch, moment.snapshot)))

    @ui.page("/latency")
    def latency(request: Request) -> None:
        frame = Frame(poller, "latency", "Latency by class and phase")
        given = dict(request.query_params)
        measure = given.get("measure", "ttft")
        wanted = given.get("slo_class", ""), measure if measure in MEASURES else "ttft"
        with frame.main:
            frame.keep(lambda: _latency(poller, wanted))

    @ui.page("/incidents")
    def incidents(request: Request) -> None:
        incident_page(poller, request.query_params.get("at", ""))

    @ui.page("/limits")
    def limits() -> None:
        limits_page(poller)


def _add_request_pages(poller: Poller) -> None:
    known = poller.known

    @ui.page("/requests")
    def requests(request: Request) -> None:
        query = requests_markup.query_of(dict(request.query_params))
        frame = Frame(poller, "requests", "Requests")

        def draw() -> Markup:
            found = known.index.search(query)
            clock = known.clock(poller.clock.now_ns())
            return requests_markup.render(found, query, known.index, clock)

        with frame.main:
            frame.keep(lambda: requests_markup.form(query, known.index))
            frame.keep(draw)

    @ui.page("/requests/{request_id}")
    def one_request(request_id: str) -> None:
        frame = Frame(poller, "requests", f"Request {request_id}")
        found: Explained | Unreachable = Unreachable("not asked yet")

        def draw() -> Markup:
            if isinstance(found, Explained):
                fall = waterfall_of(found)
                return waterfall_markup.render(found, fall, known.index, who_of(known.index))
            if found.status == _NOT_FOUND:
                return waterfall_markup.unknown(request_id, known.index)
            return tag("p", "The server is asked for it, again and again until it answers.")

        async def ask() -> None:
            """At once, then until it has ended: then it changes no more."""
            nonlocal found
            if not isinstance(found, Explained) or found.outcome == "running":
                found = await _explained(poller, request_id)
                frame.redraw(force=True)

        with frame.main:
            frame.keep(draw)
            ui.timer(_ASK_AGAIN_S, ask)  # the page does not wait: the server may be frozen


def _overview(poller: Poller, moment: Moment) -> Overview:
    known = poller.known
    clock = known.clock(poller.clock.now_ns())
    return Overview(moment, known.history, known.index, known.root, clock)


async def _explained(poller: Poller, request_id: str) -> Explained | Unreachable:
    """The request, or why it is not there."""
    try:
        return await poller.explained(request_id)
    except Unreachable as error:
        return error


def _latency(poller: Poller, wanted: tuple[str, str]) -> Markup:
    """The matrix of the last ten minutes, and the picture of one of its cells."""
    known = poller.known
    clock = known.clock(poller.clock.now_ns())
    lines = known.index.since(clock.now_ns - CHART_NS)
    oldest_ns = min((line.ended_ns for line in lines), default=clock.now_ns)
    begin_ns = min(oldest_ns, clock.now_ns - _LEAST_NS)
    statuses = _statuses(known)
    cells = cells_of(lines, statuses, begin_ns)
    name, measure = wanted
    if not name and cells:  # the class with most requests
        name = max(cells, key=lambda one: max(cell.count for cell in cells[one].values()))
    target = target_ns(next((one for one in statuses if one.name == name), None), measure)
    chosen = (name, measure)
    return tag(
        "div",
        tag("p", "Of the last ten minutes: p95, and p99 small beside it. Choose one for its "
            "heatmap.", class_="lead"),
        latency_markup.matrix(cells, chosen),
        latency_markup.picture(lines, chosen, target, begin_ns, clock),
    )  # fmt: skip


def _statuses(known: Known) -> tuple[SloStatus, ...]:
    slo = known.moment.snapshot.slo if known.moment else None
    return slo.classes if slo else ()
