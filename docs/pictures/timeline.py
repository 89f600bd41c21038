"""Some seconds of a timeline file, as `phasescope timeline` wrote it for Perfetto.

Drawn from the file's own events; Perfetto shows the same rows with more in them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.pictures.svg import BAND, COLOURS, INK, PALE, arrow, axis, box, picture, text

_WIDTH, _LEFT, _RIGHT, _TOP = 960, 110, 940, 100
_STEP_ROW, _REQUEST_ROW, _SECONDS = 34, 38, 5.0
_ENGINE, _REQUESTS = 1, 2
_PARTS = {"forward": "#8250df", "sample": "#bf8700"}
_KINDS = {"decode step": COLOURS["decode"]}

Event = dict[str, Any]


def draw(folder: Path) -> str:
    """The picture as SVG."""
    events: list[Event] = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    late = json.loads((folder / "spans.json").read_text())["late"]["name"]
    drawing = _Drawing(_begin_us(events, late))
    body = [*drawing.steps(events), *drawing.requests(events), *drawing.arrows(events)]
    title = "Steps of the engine above, requests below, arrows from culprits to late tokens"
    head = [
        text(20, 26, title, INK, bold=True),
        text(20, 44, f"{_SECONDS:g} s of a file that phasescope timeline wrote", PALE),
        *_legend(),
    ]
    ticks = axis(_LEFT, _RIGHT, _TOP - 6, drawing.y, _SECONDS)
    return picture(_WIDTH, drawing.y + 12, [*head, *ticks, *body], title)


def _begin_us(events: list[Event], late: str) -> float:
    """So that the worst of the late request's stalls lies in the second half."""
    request = next(e for e in events if e.get("cat") == "request" and e["name"] == late)
    stalls = [
        e
        for e in events
        if e.get("cat") == "stall" and e["ph"] == "X" and e["tid"] == request["tid"]
        and request["ts"] <= e["ts"] < request["ts"] + request["dur"]
    ]  # fmt: skip
    worst = max(stalls, key=lambda e: float(e["dur"]))
    return float(worst["ts"] + worst["dur"] - 0.7 * _SECONDS * 1e6)


def _legend() -> list[str]:
    shown = {
        "decode step": _KINDS["decode step"],
        "step with a prompt": COLOURS["prefill.chunk"],
        **_PARTS,
        "queue": COLOURS["queue"],
        "prefill": COLOURS["prefill"],
        "decode": COLOURS["decode"],
        "stall": COLOURS["stall"],
    }
    found: list[str] = []
    x = 110.0
    for name, colour in shown.items():
        found += [box(x, 53, 10, 10, colour), text(x + 14, 62, name, PALE)]
        x += 14 + 7.3 * len(name) + 18
    return found


class _Drawing:
    def __init__(self, begin_us: float) -> None:
        self._begin_us = begin_us
        self.y: float = _TOP
        self._rows: dict[int, float] = {}

    def steps(self, events: list[Event]) -> list[str]:
        found = [text(_LEFT - 10, self.y + 20, "steps", INK, "end")]
        for event in events:
            if event["ph"] != "X" or event["pid"] != _ENGINE or not self._is_seen(event):
                continue
            if event.get("cat") == "step":
                colour = _KINDS.get(event["name"], COLOURS["prefill.chunk"])
                found.append(self._box(event, self.y, 16, colour))
            elif event["name"] in _PARTS:
                found.append(self._box(event, self.y + 17, 8, _PARTS[event["name"]]))
        self.y += _STEP_ROW
        return found

    def requests(self, events: list[Event]) -> list[str]:
        seen = [
            e for e in events if e["ph"] == "X" and e["pid"] == _REQUESTS and self._is_seen(e)
        ]  # fmt: skip
        found: list[str] = []
        for number in sorted({event["tid"] for event in seen}):
            row = [event for event in seen if event["tid"] == number]
            self._rows[number] = self.y
            found.append(box(10, self.y, _WIDTH - 20, _REQUEST_ROW - 3, BAND))
            found.append(text(_LEFT - 10, self.y + 20, f"requests {number}", INK, "end"))
            for event in row:
                found += self._request(event)
            self.y += _REQUEST_ROW
        return found

    def _request(self, event: Event) -> list[str]:
        if event["cat"] == "request":
            left = max(_LEFT, self._x(event["ts"]))
            right = min(_RIGHT, self._x(event["ts"] + event["dur"]))
            fits = right - left > 7.3 * len(event["name"]) + 4
            return [text(left + 2, self.y + 11, event["name"])] if fits else []
        if event["cat"] == "phase":
            colour = COLOURS.get(event["name"], COLOURS["other"])
            return [self._box(event, self.y + 14, 9, colour)]
        if event["cat"] in ("chunk", "stall"):
            colour = COLOURS["stall" if event["cat"] == "stall" else "prefill.chunk"]
            return [self._box(event, self.y + 24, 8, colour)]
        return []

    def arrows(self, events: list[Event]) -> list[str]:
        starts = {event["id"]: event for event in events if event["ph"] == "s"}
        found: list[str] = []
        for end in events:
            if end["ph"] != "f":
                continue
            start = starts[end["id"]]
            if self._is_inside(start["ts"]) and self._is_inside(end["ts"]):
                down = self._rows[end["tid"]] > self._rows[start["tid"]]
                y1 = self._rows[start["tid"]] + (32 if down else 24)
                y2 = self._rows[end["tid"]] + (24 if down else 32)
                x1, x2 = self._x(start["ts"]), self._x(end["ts"])
                found.append(arrow(x1, y1, x2, y2, COLOURS["stall"]))
        return found

    def _box(self, event: Event, y: float, height: float, colour: str) -> str:
        left = max(_LEFT, self._x(event["ts"]))
        right = min(_RIGHT, self._x(event["ts"] + event["dur"]))
        return box(left, y, right - left - 0.4, height, colour)

    def _is_seen(self, event: Event) -> bool:
        end_us = self._begin_us + _SECONDS * 1e6
        return bool(event["ts"] < end_us and event["ts"] + event["dur"] > self._begin_us)

    def _is_inside(self, at_us: float) -> bool:
        return self._begin_us <= at_us <= self._begin_us + _SECONDS * 1e6

    def _x(self, at_us: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (at_us - self._begin_us) / (_SECONDS * 1e6)
