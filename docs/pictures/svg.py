"""The few shapes that the pictures are made of, and their colours."""

from __future__ import annotations

from html import escape

FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
INK, PALE, GRID, PAPER, BAND = "#24292f", "#6e7781", "#d8dee4", "#ffffff", "#f6f8fa"
COLOURS = {
    "root": "#57606a",
    "queue": "#d4a72c",
    "prefill": "#54aeff",
    "prefill.chunk": "#0969da",
    "decode": "#4ac26b",
    "stall": "#cf222e",
    "other": "#afb8c1",
}


def picture(width: float, height: float, body: list[str], about: str) -> str:
    """The whole file; `about` is read out to those who do not see it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'font-family="{FONTS}" font-size="12" role="img" aria-label="{escape(about)}">',
            f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAPER}" stroke="{GRID}"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def box(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    told = f"<title>{escape(title)}</title>" if title else ""
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.8):.1f}" height="{height:g}"'
    return (
        f'<rect {shape} rx="1.5" fill="{fill}">{told}</rect>'
        if told
        else (f'<rect {shape} fill="{fill}"/>')
    )


def text(
    x: float, y: float, words: str, fill: str = INK, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    at = f'x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}"'
    return f"<text {at}{weight}>{escape(words)}</text>"


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str, bend: float = 24) -> str:
    """A curve that ends in a head."""
    down = 1 if y2 > y1 else -1
    path = f"M{x1:.1f} {y1:.1f} C{x1:.1f} {y1 + down * bend:.1f} {x2:.1f} {y2 - down * bend:.1f}"
    line = f'<path d="{path} {x2:.1f} {y2:.1f}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
    tip = y2 - down * 6
    head = f"M{x2:.1f} {y2:.1f} L{x2 - 3.5:.1f} {tip:.1f} L{x2 + 3.5:.1f} {tip:.1f} Z"
    return f'{line}<path d="{head}" fill="{colour}"/>'


def axis(left: float, right: float, top: float, bottom: float, length_s: float) -> list[str]:
    """Seconds along the top, a line down from each."""
    step_s = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if length_s / s <= 12)
    found: list[str] = []
    for number in range(int(length_s / step_s) + 1):
        x = left + (right - left) * number * step_s / length_s
        found.append(
            f'<line x1="{x:.1f}" y1="{top:g}" x2="{x:.1f}" y2="{bottom:g}" stroke="{GRID}"/>'
        )
        found.append(text(x, top - 5, f"{number * step_s:g} s", PALE, "middle"))
    return found
