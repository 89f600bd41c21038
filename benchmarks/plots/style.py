"""How figures look, and how they are written so that the same results give the same bytes.

Text stays text and ids are seeded by the figure's name. Each file states the digests of the
results it was drawn from: a test compares them, so a figure cannot outlive its numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

RESULTS = Path(__file__).resolve().parents[1] / "results"

# Okabe and Ito's colours, which the colour-blind can tell apart
BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY, BLACK = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#222222",
)  # fmt: skip

_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure, the result files it is drawn from, and how: `draw` gets their contents in order."""

    name: str
    sources: tuple[str, ...]
    draw: Callable[..., Figure]


def panels(
    columns: int, width: float, height: float, rows: int = 1, **more: Any
) -> tuple[Figure, list[Axes]]:
    """Axes side by side, row by row; the size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **more)
    return figure, [one for row in axes for one in row]


def digest(path: Path) -> str:
    """What a figure says of a file that it was drawn from."""
    return f"benchmarks/results/{path.relative_to(RESULTS)} sha256:" + (
        hashlib.sha256(path.read_bytes()).hexdigest()
    )


def write(plot: Plot, folder: Path) -> Path:
    """Draw one figure into a folder."""
    paths = [RESULTS / source for source in plot.sources]
    out = folder / f"{plot.name}.svg"
    metadata = {
        "Date": None,
        "Creator": "python -m benchmarks.plots",
        "Source": "; ".join(digest(path) for path in paths),
    }
    with mpl.rc_context({**_STYLE, "svg.hashsalt": plot.name}):
        figure = plot.draw(*(json.loads(path.read_text()) for path in paths))
        figure.savefig(out, format="svg", metadata=metadata)
    lines = [line.rstrip() for line in out.read_text().splitlines()]
    out.write_text("\n".join(lines) + "\n")
    return out


def at(axis: Axis, values: Sequence[float]) -> None:
    """Ticks at these values and nowhere else: on a log scale there would be dozens."""
    axis.set_major_locator(FixedLocator(values))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,g}")


def labelled_bars(axes: Axes, names: Sequence[str], values: Sequence[float], form: str) -> None:
    """The value at the end of each horizontal bar, `names` from top to bottom."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    for place, value in enumerate(values):
        axes.annotate(
            form.format(value), (value, place), (3, 0), textcoords="offset points", va="center",
            fontsize=8,
        )  # fmt: skip
    axes.margins(x=0.15)
