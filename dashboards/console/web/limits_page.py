"""The page of limits: what is in force, and a form that changes one."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup
from nicegui import ui

from dashboards.console.markup import limits as markup
from dashboards.console.markup.html import tag
from dashboards.console.web.parts import Frame, Live
from dashboards.console.web.poller import Poller
from dashboards.monitor.client import Unreachable
from dashboards.monitor.limit_values import limit_value

_VALUE = "(event) => emit(event.target.value)"


def limits_page(poller: Poller) -> None:
    known = poller.known
    frame = Frame(poller, "limits", "Limits")
    form: _Form | None = None

    def table() -> Markup:
        if known.limits is None:
            return tag("p", known.limits_error or "Asking the server for its limits.")
        if form is not None:
            form.offer(known.limits.limits)
        pilot = known.moment.snapshot.autopilot if known.moment else None
        return markup.render(known.limits, pilot)

    with frame.main:
        if poller.may_change:
            form = _Form(poller, frame)
        else:
            text = "This console listens on more than this machine, so it changes no limits."
            frame.keep(lambda: tag("p", text, class_="quiet"))
        frame.keep(table)


class _Form:
    """Name, value and reason of one change."""

    def __init__(self, poller: Poller, frame: Frame) -> None:
        self._poller = poller
        self._frame = frame
        self._given = {"name": "", "value": "", "why": ""}
        self._said = ""
        self._offered = False
        form = ui.element("form").classes("change").props("action=#")
        with form:
            self._choice = ui.element("label")
            with self._choice:
                ui.html("limit", sanitize=False, tag="span")
            self._choice.on("change", lambda event: self._take("name", event.args),
                            js_handler=_VALUE)  # fmt: skip
            self._field("value", "new value", "as in 16, auto, none, on, a:2,b:0.5")
            self._field("why", "reason, which is recorded", "what you saw")
            with ui.element("button").props("type=submit"):
                ui.html("Change the limit", sanitize=False, tag="span")
        form.on("submit.prevent", self._change)
        frame.keep(lambda: tag("p", self._said, role="status", class_="lead"))

    def offer(self, names: Iterable[str]) -> None:
        """The limits that can be chosen. The choice is made once they are known, all at once: the
        browser then shows the first, which chooses none."""
        if self._offered:
            return
        self._offered = True
        with self._choice:
            Live(markup.choice(names))

    def _field(self, name: str, title: str, placeholder: str) -> None:
        with ui.element("label"):
            ui.html(title, sanitize=False, tag="span")
            field = ui.element("input").props(
                f'type=text name={name} autocomplete=off placeholder="{placeholder}"'
            )
        field.on("input", lambda event: self._take(name, event.args), js_handler=_VALUE)

    def _take(self, name: str, value: object) -> None:
        self._given[name] = str(value)

    async def _change(self) -> None:
        name, text = self._given["name"], self._given["value"]
        if not name or not text.strip():
            self._say("Choose a limit and give its new value.")
            return
        try:
            await self._poller.set_limit(name, limit_value(name, text), self._given["why"])
        except (Unreachable, ValueError) as error:
            self._say(f"Not changed: {error}")
        else:
            self._say(f"{name} is in force.")

    def _say(self, text: str) -> None:
        self._said = text
        self._frame.redraw(force=True)
