"""The first page: is it well, how loaded is it, what is wrong, which requests are slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from dashboards.console.markup import findings as findings_markup
from dashboards.console.markup.charts import Points, line_chart, share_bar
from dashboards.console.markup.findings import Who
from dashboards.console.markup.html import badge, card, href, link, request_href, table, tag
from dashboards.console.markup.words import NOTHING, Clock, count, ms, percent, span
from dashboards.console.model.moments import History, Moment
from dashboards.console.model.requests import Order, Query, RequestIndex
from dashboards.console.model.whatif import RootAnswer
from dashboards.monitor.panels import budget, limit_text, prefix_hits
from telemetry.stats.slo_report import SloStatus
from telemetry.stats.snapshot import Snapshot

CHART_NS = 10 * 60 * 1_000_000_000
_SLOW_SHOWN = 6
_MEASURES = {
    "queue": "queue",
    "prefill": "prefill",
    "ttft": "first token",
    "itl": "between tokens",
    "e2e": "whole request",
}


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that the page shows."""

    moment: Moment
    history: History
    index: RequestIndex
    root: RootAnswer | None
    clock: Clock


def render(view: Overview) -> Markup:
    """The whole page."""
    who = findings_markup.who_of(view.index)
    diagnosis = view.moment.diagnosis
    shown = findings_markup.findings(diagnosis, view.root, who, view.clock)
    none = tag("p", "Nothing is found to be wrong.", class_="quiet")
    return tag(
        "div",
        findings_markup.verdict(diagnosis, who, view.root),
        gauges(view.moment, view.history),
        tag("section", tag("h2", "Findings"), shown or none, class_="findings"),
        tag("div", _slowest(view, who), _live(view), class_="pair"),
    )


def gauges(moment: Moment, history: History | None = None) -> Markup:
    """The cards of load, goodput and settings; with a line over time where there is a history."""
    snapshot = moment.snapshot
    lines = _Lines(history, moment.at_ns)
    return tag(
        "div",
        _goodput(snapshot, lines),
        _queue(snapshot, lines),
        _kv(snapshot, lines),
        _throughput(snapshot, lines),
        _budget(snapshot),
        _latency(snapshot),
        class_="cards",
    )


@dataclass(frozen=True, slots=True)
class _Lines:
    """The last minutes of one figure, where they are known."""

    history: History | None
    at_ns: int

    def draw(
        self,
        name: str,
        value: Callable[[Snapshot], float | None],
        top: float | None = None,
        level: str = "",
    ) -> Markup | None:
        if self.history is None:
            return None
        points: Points = self.history.series(lambda one: value(one.snapshot), self.at_ns - CHART_NS)
        known = [one for _, one in points if one is not None]
        if not known:
            return line_chart(points, name)
        minutes = span(points[-1][0] - points[0][0])
        label = f"{name}, last {minutes}: now {count(known[-1])}, at most {count(max(known))}"
        return tag("figure", line_chart(points, label, top, level), tag("figcaption", label))


def burn_of(snapshot: Snapshot) -> float | None:
    """The fastest burn of any class in the last minute."""
    classes = snapshot.slo.classes if snapshot.slo else ()
    return max((one.windows[0].burn for one in classes if one.windows[0].burn is not None),
               default=None)  # fmt: skip


def _goodput(snapshot: Snapshot, lines: _Lines) -> Markup:
    classes = snapshot.slo.classes if snapshot.slo else ()
    rows = [_goodput_row(one) for one in classes if one.windows[1].attempted]
    if not rows:
        return card("Goodput and burn", tag("p", "No request in the last five minutes."),
                    class_="double")  # fmt: skip
    shown = table(
        "Requests that met their SLO",
        ("class", "good, 1 min", "burn, 1 min", "burn, 5 min", "requests, 5 min"),
        rows,
        numbers={1, 2, 3, 4},
        wide={4},
    )
    worst = burn_of(snapshot) or 0.0
    return card(
        "Goodput and burn",
        shown,
        lines.draw("burn of the worst class", burn_of, 2.0, "bad" if worst > 1 else "good"),
        tag("p", "At burn 1 the error budget lasts exactly its period.", class_="quiet"),
        class_="double",
    )


def _goodput_row(one: SloStatus) -> tuple[Markup | str | tuple[Markup | str, str], ...]:
    minute, five = one.windows[0], one.windows[1]
    share = percent(minute.good, minute.attempted)
    name = link(href("/requests", slo_class=one.name, verdict="missed"), one.name)
    return name, share, _burn(minute.burn), _burn(five.burn), count(five.attempted)


def _burn(burn: float | None) -> Markup | str:
    if burn is None:
        return NOTHING
    return badge(f"{burn:.1f}", "bad" if burn > 1 else "good")


def _queue(snapshot: Snapshot, lines: _Lines) -> Markup:
    slots = f" of {snapshot.max_seqs}" if snapshot.max_seqs is not None else ""
    return card(
        "Queue",
        _big(count(snapshot.waiting), "waiting"),
        tag("p", f"{count(snapshot.waiting_tokens)} tokens wait, {snapshot.running}{slots} run"),
        lines.draw("waiting", lambda one: one.waiting),
    )


def _kv(snapshot: Snapshot, lines: _Lines) -> Markup:
    total = snapshot.blocks_total
    if not total:
        return card("KV cache", tag("p", "No cache: there is no engine."))
    used, cached = snapshot.blocks_used / total, snapshot.blocks_cached / total
    share = percent(snapshot.blocks_used, total)
    blocks = f"{count(snapshot.blocks_used)} used and {count(snapshot.blocks_cached)} cached"
    hits, preempted = prefix_hits(snapshot), count(snapshot.preemptions_total)
    parts = (("used", used), ("cached", cached))
    return card(
        "KV cache",
        _big(share, "in use"),
        share_bar(parts, f"{share} used, {100 * cached:.0f} % cached"),
        tag("p", f"{blocks} of {count(total)} blocks. Prefixes: {hits}. {preempted} preempted."),
        lines.draw("KV blocks used, in %", _used_percent, 100),
    )


def _used_percent(one: Snapshot) -> float | None:
    return 100 * one.blocks_used / one.blocks_total if one.blocks_total else None


def _throughput(snapshot: Snapshot, lines: _Lines) -> Markup:
    return card(
        "Throughput",
        _big(count(snapshot.output_tokens_per_s), "output tokens/s"),
        tag("p", f"{count(snapshot.prompt_tokens_per_s)} prompt tokens/s, "
            f"{snapshot.requests_per_s:.2f} requests/s"),
        lines.draw("output tokens/s", lambda one: one.output_tokens_per_s),
    )  # fmt: skip


def _budget(snapshot: Snapshot) -> Markup:
    changed = [
        tag("li", f"{name} {limit_text(one.value)} (started with {limit_text(one.at_start)})")
        for name, one in snapshot.limits_changed.items()
    ]
    pilot = snapshot.autopilot
    unreachable = snapshot.steps_target_unreachable_total
    return card(
        "Step budget in force",
        tag("p", _budget_words(snapshot), class_="big-text"),
        tag("p", f"Half of the steps take at most {ms(snapshot.step_ns_p50)}.")
        if snapshot.step_ns_p50 is not None
        else None,
        tag("p", f"In {count(unreachable)} steps the decodes alone took longer than their target.")
        if unreachable
        else None,
        tag("ul", changed) if changed else tag("p", "All limits are as at the start."),
        tag("p", f"Autopilot ({pilot.mode}): {pilot.why}") if pilot and pilot.why else None,
        tag("p", link("/limits", "Look at the limits, or change them")),
    )


def _budget_words(snapshot: Snapshot) -> str:
    """What a step may compute; of an automatic budget, what the last one did."""
    if not snapshot.auto_budget or snapshot.step_tokens is None:
        return budget(snapshot)
    target_ns = snapshot.step_target_ns
    bounded = "" if target_ns is None else f", bounded by a target of {ms(target_ns)}"
    computed = f"{count(snapshot.step_tokens)} of {count(snapshot.step_budget_tokens)} tokens"
    return f"Automatic: the last step computed {computed}{bounded}"


def _latency(snapshot: Snapshot) -> Markup:
    rows = [
        (name, ms(found.p50_ns), ms(found.p95_ns), ms(found.p99_ns))
        for measure, name in _MEASURES.items()
        if (found := snapshot.percentiles.get(measure)) is not None and found.count
    ]
    if not rows:
        return card("Latency, 60 s", tag("p", "No request in the last minute."), class_="double")
    shown = table(
        "Latency of the last 60 s", ("measure", "p50", "p95", "p99"), rows, numbers={1, 2, 3}
    )
    more = tag("p", link("/latency", "By class and phase"))
    return card("Latency, 60 s", shown, more, class_="double")


def _big(value: str, unit: str) -> Markup:
    return tag("p", tag("strong", value), " ", unit, class_="big")


def _slowest(view: Overview, who: Who) -> Markup:
    query = Query(order=Order.E2E, from_ns=view.clock.now_ns - CHART_NS)
    lines = view.index.search(query).lines[:_SLOW_SHOWN]
    rows = [
        (
            link(request_href(line.request_id), line.request_id),
            line.slo_class or NOTHING,
            ms(line.e2e_ns),
            ms(line.ttft_ns),
            who(line.takers[0].request_id) if line.takers else NOTHING,
        )
        for line in lines
    ]
    heads = ("request", "class", "whole", "first token", "most taken by")
    shown = table("Slowest of the last ten minutes", heads, rows, numbers={2, 3}, wide={1})
    more = tag("p", link(href("/requests", order="slowest"), "Search all requests"))
    return card("Slowest requests, 10 min", shown if rows else _none(), more)


def _live(view: Overview) -> Markup:
    rows = [
        (
            link(request_href(one.request_id), one.request_id),
            one.slo_class or NOTHING,
            one.tenant or NOTHING,
            span(max(0, view.clock.now_ns - one.accepted_ns)),
        )
        for one in view.index.live[:_SLOW_SHOWN]
    ]
    heads = ("request", "class", "tenant", "for")
    shown = table("Oldest requests in flight", heads, rows, numbers={3}, wide={2})
    title = f"In flight: {view.index.live_total}"
    return card(title, shown if rows else _none(), tag("p", link("/batch", "See the batch")))


def _none() -> Markup:
    return tag("p", "None.", class_="quiet")
