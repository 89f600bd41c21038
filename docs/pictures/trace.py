"""Two traces as their receiver got them: a request that was late, and the one that made it so.

A row holds the spans of one name. Arrows are the links of `stall` spans, from the span that they
point to. Spans of less than a five hundredth of the whole have no row.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.pictures.svg import BAND, COLOURS, INK, PALE, arrow, axis, box, picture, text

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 960, 150, 850, 24, 76
_ORDER = (
    "gateway.accept", "gateway.parse", "tokenize", "queue", "prefill", "prefill.chunk", "decode",
    "stall", "detokenize", "deliver",
)  # fmt: skip
_SHOWN = 1 / 500

Span = dict[str, Any]


def draw(folder: Path) -> str:
    """The picture as SVG."""
    recorded = json.loads((folder / "spans.json").read_text())
    late, culprit = recorded["late"]["name"], recorded["late"]["culprit"]
    spans: list[Span] = recorded["spans"]
    victims = [span for span in spans if span["request_id"] == late]
    takers = [span for span in spans if span["request_id"] == culprit]
    drawing = _Drawing(victims, takers)
    body = [
        *drawing.trace(f"{late}: its tokens were late", victims),
        *drawing.trace(f"{culprit}: the culprit", takers),
        *drawing.links(victims, takers),
    ]
    bottom = drawing.y
    title = f"{late} waited for the prompt of {culprit}"
    words = "two OpenTelemetry traces; arrows are span links, from a prompt's chunk to the stall"
    head = [text(20, 26, title, INK, bold=True), text(20, 44, words, PALE)]
    ticks = axis(_LEFT, _RIGHT, _TOP - 6, bottom, drawing.length_ns / 1e9)
    return picture(_WIDTH, bottom + 14, [*head, *ticks, *body], f"{title}; {words}")


class _Drawing:
    """Rows from above to below; remembers where each span is."""

    def __init__(self, victims: list[Span], takers: list[Span]) -> None:
        spans = [*victims, *takers]
        self._begin_ns = min(span["start_ns"] for span in spans)
        self.length_ns = max(span["end_ns"] for span in spans) - self._begin_ns
        self.y: float = _TOP
        self._places: dict[str, float] = {}

    def trace(self, title: str, spans: list[Span]) -> list[str]:
        root = next(span for span in spans if span["name"] not in _ORDER)
        found = [box(10, self.y, _WIDTH - 20, _ROW - 2, BAND), text(20, self.y + 15, title)]
        self.y += _ROW
        for name in (root["name"], *_ORDER):
            row = [span for span in spans if span["name"] == name and self._is_shown(span)]
            if row:
                found += self._row("request" if name == root["name"] else name, row)
        self.y += 12
        return found

    def _row(self, name: str, spans: list[Span]) -> list[str]:
        colour = COLOURS.get(name, COLOURS["root" if name == "request" else "other"])
        found = [text(_LEFT - 10, self.y + 15, name, INK, "end")]
        for span in spans:
            left, right = self._x(span["start_ns"]), self._x(span["end_ns"])
            spent_ms = (span["end_ns"] - span["start_ns"]) / 1e6
            found.append(
                box(left, self.y + 3, right - left, _ROW - 8, colour, f"{name} {spent_ms:.1f} ms")
            )
            self._places[span["span_id"]] = self.y
            if right - left > 46 and name in ("stall", "prefill.chunk"):
                middle = (left + right) / 2
                found.append(text(middle, self.y + 15, f"{spent_ms:.0f} ms", "#ffffff", "middle"))
        total_ms = sum(span["end_ns"] - span["start_ns"] for span in spans) / 1e6
        found.append(text(_WIDTH - 16, self.y + 15, f"{total_ms:,.0f} ms", PALE, "end"))
        self.y += _ROW
        return found

    def links(self, victims: list[Span], takers: list[Span]) -> list[str]:
        chunks = {span["span_id"]: span for span in takers}
        found: list[str] = []
        for stall in victims:
            for link in stall["links"]:
                chunk = chunks.get(link["span_id"])
                if chunk is not None and stall["span_id"] in self._places:
                    found.append(self._link(chunk, stall))
        return found

    def _link(self, chunk: Span, stall: Span) -> str:
        begin = self._x((chunk["start_ns"] + chunk["end_ns"]) // 2)
        end = self._x((stall["start_ns"] + stall["end_ns"]) // 2)
        below, above = self._places[chunk["span_id"]] + 2, self._places[stall["span_id"]] + _ROW - 4
        return arrow(begin, below, end, above, COLOURS["stall"], bend=40)

    def _is_shown(self, span: Span) -> bool:
        return bool(span["end_ns"] - span["start_ns"] >= _SHOWN * self.length_ns)

    def _x(self, at_ns: int) -> float:
        return float(_LEFT + (_RIGHT - _LEFT) * (at_ns - self._begin_ns) / self.length_ns)
