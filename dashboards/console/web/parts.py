"""What every page has: the header with its views, the notices, and parts that are kept fresh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup
from nicegui import Client as Tab
from nicegui import ui
from nicegui.element import Element

from dashboards.console.markup.html import badge, join, link, tag
from dashboards.console.model.link import LinkState, notices
from dashboards.console.web.poller import Poller

VIEWS = {
    "overview": ("/", "Overview"),
    "batch": ("/batch", "Batch"),
    "requests": ("/requests", "Requests"),
    "incidents": ("/incidents", "Incidents"),
    "latency": ("/latency", "Latency"),
    "limits": ("/limits", "Limits"),
}
_REDRAW_S = 0.5
_HERE = Path(__file__).parent


class Live(Element, component="live.js"):
    """A part of a page that is drawn again where it has changed."""

    def __init__(self, markup: Markup | str = "") -> None:
        super().__init__()
        self._props["markup"] = str(markup)

    def show(self, markup: Markup | str) -> None:
        if self._props["markup"] != str(markup):
            self._props["markup"] = str(markup)
            self.update()


class Frame:
    """One page of one tab."""

    def __init__(self, poller: Poller, view: str, title: str) -> None:
        self._poller = poller
        self._view = view
        self._seen = -1
        self._parts: list[tuple[Live, Callable[[], Markup | str]]] = []
        ui.page_title(f"{title} - phasescope")
        with ui.element("header").classes("top"), ui.element("div"):
            Live(_first())
            self.keep(self._server)
            Live(_views(view))
        self.keep(self._notices)
        self._key_form()
        self.main = ui.element("div").props("id=main tabindex=-1")  # within the library's <main>
        with self.main:
            Live(tag("h1", title))
        tab: Tab = ui.context.client
        poller.watchers.enter(view)
        poller.wake()
        tab.on_delete(lambda: poller.watchers.leave(view))
        ui.timer(_REDRAW_S, self.redraw)
        ui.run_javascript("window.phasescopeTheme && window.phasescopeTheme()")

    def keep(self, render: Callable[[], Markup | str]) -> Live:
        """A part that is drawn now, and again after each poll."""
        part = Live(render())
        self._parts.append((part, render))
        return part

    def redraw(self, force: bool = False) -> None:
        known = self._poller.known
        self._key.set_visibility(known.link.state is LinkState.WANTS_KEY)
        if self._seen == known.version and known.link.state is LinkState.UP and not force:
            return
        self._seen = known.version
        for part, render in self._parts:
            part.show(render())

    def _notices(self) -> Markup:
        known = self._poller.known
        shown = notices(known.link, known.moment, self._poller.clock.now_ns(), known.reading)
        lines = [tag("p", one.text, class_=f"notice {one.level}", role="status") for one in shown]
        return join(lines)

    def _server(self) -> Markup:
        known = self._poller.known
        moment = known.moment
        words: list[Markup | str] = [tag("span", self._poller.client.name)]
        if moment is not None:
            one = moment.snapshot
            state = "ready" if one.ready else "not ready"
            state = state if known.link.state is LinkState.UP else "no answer"
            words += [" ", badge(state, "good" if state == "ready" else "bad")]
            words.append(f" {one.model or 'no engine'}")
            words.append(f" on {one.backend}" if one.backend else "")
            if one.engine_restarts:
                words += [" ", badge(f"{one.engine_restarts} engine restarts", "warn")]
        return tag("div", words, class_="server")

    def _key_form(self) -> None:
        """Shown while the server wants its debug key."""
        self._key = ui.element("form").classes("change key").props("action=#")
        with self._key:
            with ui.element("label"):
                ui.html("debug key", sanitize=False, tag="span")
                field = ui.element("input").props("type=password autocomplete=off name=debug-key")
            with ui.element("button").props("type=submit"):
                ui.html("Use this key", sanitize=False, tag="span")
        given = {"key": ""}
        field.on("input", lambda event: given.update(key=str(event.args)),
                 js_handler="(event) => emit(event.target.value)")  # fmt: skip

        def use() -> None:
            if given["key"]:
                self._poller.use_key(given["key"])

        self._key.on("submit.prevent", use)
        self._key.set_visibility(self._poller.known.link.state is LinkState.WANTS_KEY)


def _first() -> Markup:
    """The name, and the button of the colours."""
    theme = tag("button", "Colours: ", tag("span", "auto", id="theme-name"), id="theme",
                class_="plain", type="button")  # fmt: skip
    skip = link("#main", "Skip to the content", class_="skip")
    return tag("div", skip, link("/", "phasescope console", class_="name"), theme, class_="first")


def _views(current: str) -> Markup:
    links = [
        link(to, words, data_key=str(number),
             aria_current="page" if name == current else None)
        for number, (name, (to, words)) in enumerate(VIEWS.items(), start=1)
    ]  # fmt: skip
    return tag("nav", links, class_="views", aria_label="views")


def add_assets() -> None:
    """Style and keys of all pages; both are read once, and part of each page."""
    style = (_HERE / "style.css").read_text()
    keys = (_HERE / "keys.js").read_text()
    ui.add_head_html(f"<style>{style}</style><script>{keys}</script>", shared=True)
