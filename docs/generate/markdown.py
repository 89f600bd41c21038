"""Tables and cells of generated pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table; a cell may have any text on one line."""
    return [_row(head), "|" + "---|" * len(head), *(_row(row) for row in rows)]


def code(text: str) -> str:
    """The text as code in Markdown; nothing stays nothing."""
    return f"`{text}`" if text else ""


def one_line(text: str | None) -> str:
    """A docstring or help text without its line breaks."""
    return " ".join((text or "").split())


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|") or "-"
