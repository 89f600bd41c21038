"""A terminal for what is drawn from the words of a journal or a server, which may hold anything."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from dashboards.printable import printable


def terminal(width: int | None = None, height: int | None = None) -> Console:
    """A console that takes words as they are: `[red]` is no colour and `:x:` no emoji."""
    return Console(width=width, height=height, markup=False, emoji=False)


class Plain:
    """A renderable without the characters that a terminal would obey. They take no cell, so that
    leaving them out moves nothing."""

    def __init__(self, drawn: RenderableType) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._drawn, options):
            if segment.control:
                yield segment
            else:
                lines = (printable(line, instead="") for line in segment.text.split("\n"))
                yield Segment("\n".join(lines), segment.style)
