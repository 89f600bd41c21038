"""Screens of the terminal, drawn by the code that draws them there."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, RenderableType

from dashboards.explain import Explained, render
from dashboards.monitor.screen import screen
from diagnosis.verdicts.classifier import Diagnosis
from telemetry.stats.snapshot import Snapshot

_FONT_FACE = re.compile(r"\s*@font-face \{\{.*?\}\}\n", re.DOTALL)
_FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_WIDTH, _HEIGHT = 112, 32


def explain(folder: Path) -> str:
    """`phasescope explain` of the request that was made latest."""
    explained = msgspec.json.decode((folder / "explained.json").read_bytes(), type=Explained)
    return _svg(render(explained), f"phasescope explain {explained.request_id}", 100)


def monitor(folder: Path) -> str:
    """`phasescope top` at the worst moment."""
    snapshot = msgspec.json.decode((folder / "snapshot.json").read_bytes(), type=Snapshot)
    diagnosis = msgspec.json.decode((folder / "diagnosis.json").read_bytes(), type=Diagnosis)
    shown = screen(snapshot, diagnosis, "http://127.0.0.1:8000", _WIDTH, _HEIGHT)
    return _svg(shown, "phasescope top", _WIDTH)


def _svg(shown: RenderableType, title: str, width: int) -> str:
    """Without the font that rich would have fetched from elsewhere."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(shown)
    form = _FONT_FACE.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code, monospace", _FONTS)
    return console.export_svg(title=title, code_format=form, unique_id="t")
