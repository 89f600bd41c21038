"""What a command says to people: lines whose words may come from a journal or a server."""

from __future__ import annotations

import sys

from dashboards.printable import printable


def say(*lines: str) -> None:
    """Each on a line of its own, on standard output."""
    for line in lines:
        print(printable(line))


def in_one_line(error: OSError) -> str:
    """The file, where it is known, and what is wrong."""
    said = error.strerror or str(error) or type(error).__name__
    return said if error.filename is None else f"{error.filename}: {said}"


def complain(said: object) -> None:
    """One line on standard error."""
    print(f"phasescope: {printable(str(said))}", file=sys.stderr, flush=True)
