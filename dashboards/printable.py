"""Words for a terminal. Those of a journal or a server may come from anyone, and a terminal obeys
control characters: they could hide a line, forge one, or set the clipboard."""

from __future__ import annotations


def printable(text: str, instead: str = "?") -> str:
    """`text` with `instead` for each character that is not printable: line ends too, as layout is
    ours."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else instead for one in text)
