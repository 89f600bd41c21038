"""One request: its waterfall, who took its time, whose time it took, its exact ledger."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from dashboards.console.markup.findings import Who
from dashboards.console.markup.html import badge, card, definition, link, table, tag
from dashboards.console.markup.words import NOTHING, count, ms, part, percent, plain
from dashboards.console.model.requests import RequestIndex
from dashboards.console.model.waterfall import Bar, Taken, Waterfall
from dashboards.explain import Explained, scope_of
from telemetry.requests.account import Part
from telemetry.requests.request_list import RequestLine


def render(explained: Explained, fall: Waterfall, index: RequestIndex, who: Who) -> Markup:
    """The page of one request."""
    victims = index.victims(explained.request_id)
    if explained.outcome == "running":
        return tag(
            "div",
            tag("p", f"In flight for {ms(explained.e2e_ns)}. The waterfall is drawn when it has "
                "ended; until then ", link("/batch", "the batch"), " shows what it does.",
                class_="lead"),
            _taken_from(victims, who),
        )  # fmt: skip
    return tag(
        "div",
        tag("p", _summary(explained, fall), class_="lead"),
        _facts(explained),
        tag("div", _guilty(fall, index, who), _taken_from(victims, who), class_="pair"),
        _bars(explained, fall, who),
        _ledger(explained, who),
    )


def _summary(explained: Explained, fall: Waterfall) -> str:
    """What took longest, in one sentence."""
    words = f"{plain(explained.outcome)} in {ms(explained.e2e_ns)}"
    longest = max(explained.phases, key=lambda one: one.end_ns - one.start_ns, default=None)
    if longest is not None:
        spent_ns = longest.end_ns - longest.start_ns
        share = percent(spent_ns, explained.e2e_ns)
        words += f", {share} of it in {plain(longest.name).lower()}"
    if fall.takers:
        taken = percent(sum(one.ns for one in fall.takers), explained.e2e_ns)
        words += f"; other requests took {taken}"
    return f"{words}."


def _facts(explained: Explained) -> Markup:
    slo = explained.slo
    verdict = NOTHING if slo is None else f"{slo.slo_class}: {plain(slo.verdict).lower()}"
    level = "good" if slo is not None and slo.verdict == "good" else "warn"
    prefill = explained.prefill
    many = prefill is not None and prefill.chunks > 1
    chunks = f", prefill in {prefill.chunks} chunks" if prefill and many else ""
    tokens = f"{count(explained.prompt_tokens)} in ({count(explained.cached_tokens)} cached)"
    first, per = (slo.ttft_target_ns, slo.itl_target_ns) if slo else (None, None)
    return definition(
        (
            ("SLO", badge(verdict, level)),
            ("ended", explained.reason or NOTHING),
            ("tenant", explained.tenant or NOTHING),
            (
                "first token",
                f"{ms(explained.ttft_ns)}{_target(first)}",
            ),
            ("per token", f"{ms(explained.tpot_ns)}{_target(per)}"),
            ("tokens", f"{tokens}, {count(explained.output_tokens)} out{chunks}"),
            ("late tokens", count(len(explained.stalls) + explained.stalls_cut)),
            ("trace", tag("code", explained.trace_id)),
        )
    )


def _target(target_ns: int | None) -> str:
    return f", promised {ms(target_ns)}" if target_ns else ""


def _guilty(fall: Waterfall, index: RequestIndex, who: Who) -> Markup:
    """Who took its time, by name."""
    if not fall.takers:
        text = "No other request's prompt or mask took its time."
        return card("Who took its time", tag("p", text))
    rows = [_taker_row(one, fall, index, who) for one in fall.takers[:8]]
    heads = ("request", "took", "share", "by", "tenant", "prompt tokens")
    shown = table("Requests that took this one's time", heads, rows, numbers={1, 2, 5},
                  wide={4, 5})  # fmt: skip
    return card("Who took its time", shown)


def _taker_row(
    one: Taken, fall: Waterfall, index: RequestIndex, who: Who
) -> tuple[Markup | str, ...]:
    known = index.get(one.request_id)
    return (
        who(one.request_id),
        ms(one.ns),
        percent(one.ns, fall.whole_ns),
        ", ".join(part(name) for name in one.parts),
        (known.tenant or NOTHING) if known else NOTHING,
        count(known.prompt_tokens) if known else NOTHING,
    )


def _taken_from(victims: Sequence[tuple[RequestLine, int]], who: Who) -> Markup:
    """The other way: whose time this request took."""
    if not victims:
        return card("Whose time it took", tag("p", "None that is known here."))
    rows = [
        (who(line.request_id), ms(spent_ns), percent(spent_ns, line.e2e_ns), line.slo_class)
        for line, spent_ns in victims
    ]
    heads = ("request", "lost to this one", "share of its time", "class")
    shown = table("Requests that lost time to this one", heads, rows, numbers={1, 2}, wide={3})
    return card("Whose time it took", shown)


def _bars(explained: Explained, fall: Waterfall, who: Who) -> Markup:
    rows = [_bar(bar, fall.whole_ns, who) for bar in fall.bars]
    cut = [
        f"{number} more {what} are not drawn."
        for number, what in ((fall.chunks_cut, "chunks"), (fall.late_cut, "late tokens"))
        if number
    ]
    scale = tag("p", tag("span", "0"), tag("span", ms(fall.whole_ns // 2)),
                tag("span", ms(fall.whole_ns)), class_="scale", aria_hidden="true")  # fmt: skip
    return card("Waterfall", scale, tag("ol", rows, class_="waterfall"), tag("p", " ".join(cut)))


def _bar(bar: Bar, whole_ns: int, who: Who) -> Markup:
    left, width = 100 * bar.begin_ns / whole_ns, 100 * bar.ns / whole_ns
    position = f"left:{min(left, 99.6):.3f}%;width:{max(width, 0.4):.3f}%"
    blamed = tag("span", " by ", who(bar.who)) if bar.who else None
    why = "" if bar.part is None else f": {part(bar.part)}"
    said = f"{why} {plain(bar.note).lower()}" if bar.note else why
    note = tag("span", said, class_="quiet") if said else None
    return tag(
        "li",
        tag("span", plain(bar.label), note, blamed, class_="what"),
        tag("span", tag("span", style=position, class_=bar.kind), class_="track",
            aria_hidden="true"),
        tag("span", ms(bar.ns), class_="n"),
        class_=f"of-{bar.kind}",
    )  # fmt: skip


def _ledger(explained: Explained, who: Who) -> Markup | None:
    ledger = explained.ledger
    if ledger is None:
        return None
    rows = [
        (
            plain(entry.state.value) + (f": {plain(entry.reason).lower()}" if entry.reason else ""),
            part(entry.part),
            _payer(entry.payer, entry.part, who),
            ms(entry.ns),
            percent(entry.ns, explained.e2e_ns),
        )
        for entry in sorted(ledger.entries, key=lambda one: -one.ns)
    ]
    scope = scope_of(ledger, explained.e2e_ns)
    caption = f"The parts sum to {ledger.sum_ns:,} ns, {ledger.residue_ns} ns off"
    caption += f"; {scope}" if scope else ""
    shown = table(caption, ("state", "part", "by", "time", "share"), rows, numbers={3, 4})
    return tag("details", tag("summary", f"Exact ledger: {len(rows)} parts"), shown, class_="card")


def _payer(payer: str | None, of: Part, who: Who) -> Markup | str:
    if payer is None:
        return NOTHING
    return payer if of is Part.HOST_STALL else who(payer)


def unknown(request_id: str, index: RequestIndex) -> Markup:
    """What is still known of a request that the server has forgotten, or never had."""
    line = index.get(request_id)
    text = f"The server does not know {request_id}, or has forgotten it (--timeline-memory)."
    known = (
        None if line is None else tag("p", f"It took {ms(line.e2e_ns)} and ended: {line.reason}.")
    )
    return tag("div", tag("p", text, class_="lead"), known,
               tag("p", link("/requests", "Search requests")))  # fmt: skip
