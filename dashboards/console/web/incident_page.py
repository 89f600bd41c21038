"""The page of incidents: the last minutes as a strip, a slider, and the server as it was then."""

from __future__ import annotations

from markupsafe import Markup
from nicegui import ui

from dashboards.console.markup import incidents as markup
from dashboards.console.markup.findings import who_of
from dashboards.console.markup.html import tag
from dashboards.console.markup.words import Clock
from dashboards.console.model.incidents import incidents_of
from dashboards.console.model.moments import Moment
from dashboards.console.web.parts import Frame
from dashboards.console.web.poller import Poller

_SECOND_NS = 1_000_000_000
_LONGEST_S = 900
_THROTTLE_S = 0.1


class _Chosen:
    """The chosen time: `ago_s` seconds before now, or a fixed stamp that an address named."""

    def __init__(self, poller: Poller, at: str) -> None:
        self._poller = poller
        self._at_ns = int(at) if at.isdecimal() else None

    @property
    def is_now(self) -> bool:
        return self._at_ns is None

    def choose(self, ago_s: float) -> None:
        newest = self._poller.known.moment
        is_now = newest is None or ago_s <= 0
        self._at_ns = None if is_now or newest is None else newest.at_ns - int(ago_s * _SECOND_NS)

    def ago_s(self) -> int:
        newest = self._poller.known.moment
        if self._at_ns is None or newest is None:
            return 0
        return min(_LONGEST_S, max(0, (newest.at_ns - self._at_ns) // _SECOND_NS))

    def moment(self) -> Moment | None:
        known = self._poller.known
        return known.moment if self._at_ns is None else known.history.at(self._at_ns)


def incident_page(poller: Poller, at: str) -> None:
    """`at` is a stamp of the server's clock, or empty for now."""
    known, chosen = poller.known, _Chosen(poller, at)
    frame = Frame(poller, "incidents", "Incidents")

    def clock() -> Clock:
        return known.clock(poller.clock.now_ns())

    def strip() -> Markup:
        moment = chosen.moment()
        if moment is None or len(known.history) < 2:
            return tag("p", "Too few moments are known yet.", class_="quiet")
        found = incidents_of(known.history.moments)
        return markup.strip(known.history, found, moment.at_ns)

    def when() -> Markup:
        moment = chosen.moment()
        return tag("p", "" if moment is None else markup.when(moment, clock()), role="status",
                   class_="lead")  # fmt: skip

    def state() -> Markup:
        moment = chosen.moment()
        if moment is None:
            return tag("p", "Nothing is known yet.")
        root = known.root if chosen.is_now else None
        return markup.state(moment, root, who_of(known.index), clock())

    def listing() -> Markup:
        newest = known.moment
        if newest is None:
            return tag("p", "Nothing is known yet.")
        found = incidents_of(known.history.moments)
        return markup.listing(found, clock(), who_of(known.index), newest.at_ns)

    with frame.main:
        frame.keep(strip)
        with ui.element("div").classes("strip-row"):
            ui.html("Time", sanitize=False, tag="span")
            slider = _slider(frame, chosen)
        frame.keep(when)
        frame.keep(lambda: _bounds(slider, poller, chosen))
        frame.keep(listing)
        frame.keep(state)


def _slider(frame: Frame, chosen: _Chosen) -> ui.element:
    """A range of seconds before now; the newest is at the right."""
    slider = ui.element("input").props(
        f'type=range min=-60 max=0 step=1 value={-chosen.ago_s()} aria-label="time, in seconds '
        'before now" name=time'
    )

    def moved(value: object) -> None:
        chosen.choose(-float(str(value)))
        frame.redraw(force=True)

    slider.on("input", lambda event: moved(event.args), throttle=_THROTTLE_S,
              js_handler="(event) => emit(event.target.value)")  # fmt: skip
    return slider


def _bounds(slider: ui.element, poller: Poller, chosen: _Chosen) -> Markup:
    """Keep the slider's range that of the known minutes; what is drawn is nothing."""
    moments = poller.known.history.moments
    if moments:
        known_s = max(1, (moments[-1].at_ns - moments[0].at_ns) // _SECOND_NS)
        if slider.props.get("min") != str(-known_s):
            slider.props(f"min={-known_s} value={-chosen.ago_s()}")
    return Markup("")
