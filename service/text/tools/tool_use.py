"""What a request with tools needs until its answer is complete."""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.text.tools.dialect import FORMATS
from service.text.tools.tool_format import ToolFormat, ToolFormatName


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """`names` may be called; `schemas[i]` is the client's schema of `names[i]`, as JSON text, which
    calls are checked against. `grammar` is the text of the grammar that holds the output to the
    format. `mark_ids` are special tokens that are a part of it. `needed`: the answer is nothing but
    calls.
    """

    format: ToolFormatName
    names: tuple[str, ...]
    schemas: tuple[str, ...]
    grammar: str
    mark_ids: tuple[int, ...] = ()
    needed: bool = False
    marker_needed: bool = True

    @property
    def form(self) -> ToolFormat:
        """The format that the output is read with."""
        return replace(FORMATS[self.format], marker_needed=self.marker_needed)
