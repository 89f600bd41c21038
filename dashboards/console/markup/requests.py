"""The request explorer: a form, the page of lines that it finds, and the way to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from markupsafe import Markup

from dashboards.console.markup.findings import Who, who_of
from dashboards.console.markup.html import badge, href, link, request_href, table, tag
from dashboards.console.markup.words import NOTHING, Clock, count, ms, plain
from dashboards.console.model.heat import MEASURES
from dashboards.console.model.requests import MISSED, Order, Page, Query, RequestIndex, missed
from telemetry.requests.request_list import RequestLine
from telemetry.stats.slo_report import Verdict

_ORDERS = {
    Order.NEWEST: "newest first",
    Order.E2E: "slowest first",
    Order.TTFT: "latest first token",
    Order.QUEUE: "longest in the queue",
    Order.PREFILL: "longest prefill",
    Order.DECODE: "longest decode",
    Order.LATE: "longest late token",
}
PATH = "/requests"


def query_of(given: dict[str, str]) -> Query:
    """The query of an address; what is not understood is left out."""
    found = Query()
    for name in Query.__struct_fields__:
        if given.get(name):
            try:
                one = msgspec.convert({name: given[name]}, Query, strict=False)
            except msgspec.ValidationError:
                continue
            found = msgspec.structs.replace(found, **{name: getattr(one, name)})
    return found


def address(query: Query, **changes: Any) -> str:
    """Where a query, changed in these fields, is answered."""
    plain_query = msgspec.structs.asdict(msgspec.structs.replace(query, **changes))
    empty = msgspec.structs.asdict(Query())
    given = {name: value for name, value in plain_query.items() if value != empty[name]}
    return href(PATH, **{name: str(value) for name, value in given.items()})


def form(query: Query, index: RequestIndex) -> Markup:
    """What can be asked for. A plain form: it works by keyboard, and its answer has an address."""
    verdicts = {"": "any", MISSED: "missed SLO", **{one.value: plain(one.value) for one in Verdict}}
    tenants = {"": "any", **{name: name for name in index.tenants()}}
    classes = {"": "any", **{name: name for name in index.classes()}}
    orders = {one.value: words for one, words in _ORDERS.items()}
    return tag(
        "form",
        tag("label", "id or tenant ", tag("input", type="search", name="text", value=query.text,
            id="search", placeholder="part of it", autocomplete="off")),
        _select("class", "slo_class", classes, query.slo_class),
        _select("tenant", "tenant", tenants, query.tenant),
        _select("SLO", "verdict", verdicts, query.verdict),
        _select("order", "order", orders, query.order.value),
        tag("button", "Search", type="submit"),
        action=PATH,
        method="get",
        role="search",
        class_="filter",
    )  # fmt: skip


def _select(title: str, name: str, choices: dict[str, str], chosen: str) -> Markup:
    if chosen and chosen not in choices:
        choices = {**choices, chosen: chosen}
    options = [tag("option", words, value=value, selected=value == chosen)
               for value, words in choices.items()]  # fmt: skip
    return tag("label", f"{title} ", tag("select", options, name=name))


def render(page: Page, query: Query, index: RequestIndex, clock: Clock) -> Markup:
    """What was found."""
    known = f"of the last {count(len(index))} that ended"
    return tag(
        "div",
        tag("p", f"{count(page.found)} requests {known}, {_ORDERS[query.order]}.", class_="lead"),
        _narrowed(query, clock),
        tag("div", lines_table(page.lines, who_of(index), clock), class_="card")
        if page.lines
        else tag("p", "None."),
        _paging(page, query),
    )


def lines_table(lines: Sequence[RequestLine], who: Who, clock: Clock) -> Markup:
    """Requests as rows."""
    rows = [
        (
            link(request_href(line.request_id), line.request_id),
            line.slo_class or NOTHING,
            line.tenant or NOTHING,
            clock.ago(line.ended_ns),
            ms(line.e2e_ns),
            ms(line.ttft_ns),
            ms(line.phases_ns.get("queue")),
            f"{count(line.prompt_tokens)} / {count(line.output_tokens)}",
            count(line.late_tokens) if line.late_tokens else NOTHING,
            verdict_badge(line),
            who(line.takers[0].request_id) if line.takers else NOTHING,
        )
        for line in lines
    ]
    heads = ("request", "class", "tenant", "ended", "whole", "first token", "queue",
             "tokens in / out", "late tokens", "SLO", "most taken by")  # fmt: skip
    return table("Requests", heads, rows, numbers={3, 4, 5, 6, 7, 8}, wide={1, 2, 3, 6, 7, 8})


def verdict_badge(line: RequestLine) -> Markup:
    level = "bad" if missed(line) else "good" if line.verdict == "good" else ""
    return badge(plain(line.verdict), level)


def _narrowed(query: Query, clock: Clock) -> Markup | None:
    """What the address asks for that the form does not show, with a way out."""
    words: list[str] = []
    if query.measure:
        low, high = ms(query.low_ns or 0), ms(query.high_ns)
        words.append(f"{MEASURES.get(query.measure, query.measure)} from {low} to {high}")
    if query.from_ns is not None:
        until = clock.utc(query.to_ns) if query.to_ns is not None else "now"
        words.append(f"ended from {clock.utc(query.from_ns)} to {until} UTC")
    if not words:
        return None
    cleared = address(
        query, measure="", low_ns=None, high_ns=None, from_ns=None, to_ns=None, page=1
    )
    return tag("p", "Only ", ", ".join(words), ". ", link(cleared, "Show all"))


def _paging(page: Page, query: Query) -> Markup | None:
    if page.pages == 1:
        return None

    def to(number: int, words: str) -> Markup:
        if not 1 <= number <= page.pages:
            return tag("span", words, class_="quiet")
        return link(address(query, page=number, until=page.newest), words)

    here = f" page {page.page} of {page.pages} "
    newest = tag("span", " ", link(address(query, page=1, until=None), "newest"))
    parts = (to(page.page - 1, "previous"), here, to(page.page + 1, "next"), newest)
    return tag("nav", parts, aria_label="pages", class_="paging")
