"""When the device did what, by its own clock and without waiting for it.

Marks are made once and used again in turns. Whoever collects a step has waited for its last mark
because its tokens lie before that; reading the others then costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.device.cuda.runtime import Mark, Runtime
from telemetry.facts.step_parts import DeviceTimes

_PAIRS = 64


@dataclass(slots=True)
class PhaseMarks:
    """Marks within a captured step: where it begins, before and after each attention, where the
    logits are there, and where it ends."""

    runtime: Runtime
    marks: list[Mark] = field(default_factory=list)
    _next: int = 0

    def begin(self) -> None:
        """Once more from the first: a graph's function runs several times before it is captured."""
        self._next = 0
        self.mark()

    def mark(self) -> None:
        if self._next == len(self.marks):
            self.marks.append(self.runtime.mark(in_graph=True))
        self.marks[self._next].record()
        self._next += 1

    def times(self, busy_ns: int, bubble_ns: int | None) -> DeviceTimes:
        """Of the last replay, which has ended."""
        *_, logits, end = self.marks
        whole_ns = logits.after_ns(self.marks[0])
        inner = self.marks[1:-2]
        pairs = zip(inner[::2], inner[1::2], strict=True)
        attention_ns = sum(after.after_ns(before) for before, after in pairs)
        return DeviceTimes(
            busy_ns,
            bubble_ns,
            attention_ns,
            max(0, whole_ns - attention_ns),
            end.after_ns(logits),
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Of one step."""

    begun: Mark
    done: Mark


class DeviceClock:
    """Hands out spans and reads them, in the order in which steps are collected."""

    def __init__(self, runtime: Runtime) -> None:
        self._spans = [Span(runtime.mark(), runtime.mark()) for _ in range(_PAIRS)]
        self._next = 0
        self._last: Span | None = None

    def begin(self) -> Span:
        span = self._spans[self._next]
        self._next = (self._next + 1) % _PAIRS
        span.begun.record()
        return span

    def read(self, span: Span, phases: PhaseMarks | None = None) -> DeviceTimes:
        """Waits for the span's end."""
        span.done.wait()
        busy_ns = span.done.after_ns(span.begun)
        last, self._last = self._last, span
        bubble_ns = None if last is None else max(0, span.begun.after_ns(last.done))
        if phases is None:
            return DeviceTimes(busy_ns, bubble_ns)
        return phases.times(busy_ns, bubble_ns)

    def skip(self) -> None:
        """A step failed: nothing is known of when it ended."""
        self._last = None
