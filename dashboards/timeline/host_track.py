"""Tracks of all other facts: host and device.

They are drawn by their fields, so that a new kind of fact needs no code here. A fact with
`begin_ns` and `end_ns` is a slice, on a row for its kind, process and cause. A fact whose type name
ends in `Sampled` is a counter for each of its numbers. Any other fact is an instant.
"""

from __future__ import annotations

import msgspec

from dashboards.timeline.trace import Args, Row, Slice, TraceWriter
from telemetry.facts.records import Fact, fact_ns

PID = 3
_ROW_FIELDS = ("process", "cause")
_SAMPLED = "Sampled"


class HostTrack:
    """Creates a row with the first fact of its kind."""

    def __init__(self, trace: TraceWriter) -> None:
        self._trace = trace
        self._is_named = False
        self._rows: dict[str, Row] = {}
        self._last_ns: dict[str, int] = {}

    def on_fact(self, fact: Fact) -> None:
        kind, at_ns, args = type(fact).__name__, fact_ns(fact), _args(fact)
        if not self._is_named:
            self._is_named = True
            self._trace.process(PID, "host and device")
        if kind.endswith(_SAMPLED):
            self._count(kind.removesuffix(_SAMPLED).lower(), at_ns, args)
            return
        name = " ".join([kind, *(str(args[part]) for part in _ROW_FIELDS if part in args)])
        begin_ns, end_ns = args.get("begin_ns"), args.get("end_ns")
        if isinstance(begin_ns, int) and isinstance(end_ns, int):
            self._draw(name, begin_ns, end_ns, args)
        else:
            self._trace.instant(self._row(name), kind, at_ns, "t", args)

    def _draw(self, name: str, begin_ns: int, end_ns: int, args: Args) -> None:
        """Cut the begin off where it overlaps the slice before: slices of a row must nest."""
        start_ns = max(begin_ns, self._last_ns.get(name, 0), self._trace.origin_ns)
        if start_ns < end_ns:
            self._last_ns[name] = end_ns
            self._trace.slice(self._row(name), Slice(name, "host", start_ns, end_ns, args))

    def _count(self, kind: str, at_ns: int, args: Args) -> None:
        """A value that was not measured (None) gets no point; it is not zero."""
        at_ns = self._last_ns[kind] = max(at_ns, self._last_ns.get(kind, 0))
        for field, value in args.items():
            if field != "at_ns" and isinstance(value, int | float):
                self._trace.counter(PID, f"{kind} {field}", at_ns, {"value": value})

    def _row(self, name: str) -> Row:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = Row(PID, len(self._rows) + 1)
            self._trace.row(row, name)
        return row


def _args(fact: Fact) -> Args:
    """Field names with plain values: facts are encoded as arrays, which have none."""
    names = [field.name for field in msgspec.structs.fields(fact)]
    plain = msgspec.to_builtins([getattr(fact, name) for name in names])
    return dict(zip(names, plain, strict=True))
