"""Reads a trace that torch's profiler wrote."""

from __future__ import annotations

import re
from typing import Any

Event = dict[str, Any]


class KernelTrace:
    """A parsed trace; `about` is what phasescope says in it of itself."""

    def __init__(self, document: dict[str, Any]) -> None:
        events: list[Event] = document["traceEvents"]
        self.about: dict[str, Any] = document["phasescope"]
        self.slices = [event for event in events if event["ph"] == "X"]
        for piece in self.slices:
            assert piece["dur"] >= 0, piece
            assert piece["ts"] >= 0, piece
            assert piece["name"], piece
            assert {"pid", "tid"} <= set(piece), piece

    @property
    def operators(self) -> list[Event]:
        return [piece for piece in self.slices if piece["name"].startswith("aten::")]

    def spans(self, part: str) -> dict[int, Event]:
        """Of each step's launch, compute or collect."""
        found: dict[int, Event] = {}
        for piece in self.slices:
            named = re.fullmatch(rf"step (\d+) {part}", piece["name"])
            if named is not None:
                found[int(named[1])] = piece
        return found

    def within(self, span: Event) -> list[Event]:
        """Operators of the span's own thread that ran in it."""
        end = span["ts"] + span["dur"]
        return [
            one
            for one in self.operators
            if one["tid"] == span["tid"] and span["ts"] <= one["ts"] < end
        ]
