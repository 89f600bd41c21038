"""Reads a trace file back and checks what Perfetto's importer needs but does not complain of."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Key = tuple[int, int]


@dataclass(frozen=True)
class Trace:
    """A checked trace: slices by row, in order of time."""

    events: list[Event]
    slices: dict[Key, list[Event]]
    other: Event

    def phase(self, letter: str) -> list[Event]:
        return [event for event in self.events if event["ph"] == letter]

    def at(self, key: Key, ts_ns: int) -> list[Event]:
        """Slices of a row that are open at a moment, outermost first."""
        return [s for s in self.slices[key] if start_ns(s) <= ts_ns < end_ns(s)]


def ns(us: float) -> int:
    return round(us * 1000)


def start_ns(event: Event) -> int:
    return ns(event["ts"])


def end_ns(event: Event) -> int:
    return start_ns(event) + ns(event["dur"])


def checked(path: Path) -> Trace:
    """Raises AssertionError with what is wrong."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(data)
    assert set(document) == {"displayTimeUnit", "traceEvents", "otherData"}
    events: list[Event] = document["traceEvents"]
    assert {event["ph"] for event in events} <= set("MXCisf")
    slices: dict[Key, list[Event]] = defaultdict(list)
    for event in events:
        assert event["ph"] == "M" or event["ts"] >= 0, event
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append(event)
    trace = Trace(events, slices, document["otherData"])
    check_names(trace)
    check_nesting(trace)
    check_counters(trace)
    check_flows(trace)
    return trace


def check_names(trace: Trace) -> None:
    """Every process and row has one name."""
    processes = [e["pid"] for e in trace.phase("M") if e["name"] == "process_name"]
    rows = [(e["pid"], e["tid"]) for e in trace.phase("M") if e["name"] == "thread_name"]
    assert len(set(processes)) == len(processes)
    assert len(set(rows)) == len(rows)
    used = {(e["pid"], e["tid"]) for e in trace.events if e["ph"] in "Xisf"}
    assert used <= set(rows)
    assert {e["pid"] for e in trace.events if e["ph"] != "M"} <= set(processes)


def check_nesting(trace: Trace) -> None:
    """On one row a slice lies within the one that is open, or after it."""
    for key, slices in trace.slices.items():
        open_slices: list[Event] = []
        ordered = sorted(slices, key=lambda s: (start_ns(s), -end_ns(s)))
        for piece in ordered:
            assert ns(piece["dur"]) > 0, piece
            while open_slices and end_ns(open_slices[-1]) <= start_ns(piece):
                open_slices.pop()
            assert not open_slices or end_ns(piece) <= end_ns(open_slices[-1]), (key, piece)
            open_slices.append(piece)


def check_counters(trace: Trace) -> None:
    """Each counter goes forward in time and keeps its series."""
    last: dict[tuple[int, str], float] = {}
    series: dict[tuple[int, str], set[str]] = {}
    for event in trace.phase("C"):
        key = (event["pid"], event["name"])
        assert event["ts"] >= last.get(key, 0.0), event
        last[key] = event["ts"]
        assert all(value >= 0 for value in event["args"].values()), event
        assert series.setdefault(key, set(event["args"])) == set(event["args"]), event


def check_flows(trace: Trace) -> None:
    """Each arrow has one start and one later end, both on a slice."""
    starts = {event["id"]: event for event in trace.phase("s")}
    ends = {event["id"]: event for event in trace.phase("f")}
    assert len(starts) == len(trace.phase("s"))
    assert len(ends) == len(trace.phase("f"))
    assert set(starts) == set(ends)
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert start["ts"] <= end["ts"], (start, end)
        chunk = trace.at((start["pid"], start["tid"]), start_ns(start))
        assert chunk, start
        assert chunk[-1]["cat"] == "chunk", (start, chunk[-1])
        victim = trace.at((end["pid"], end["tid"]), start_ns(end))
        assert "stall" in {piece["cat"] for piece in victim}, (end, victim)
