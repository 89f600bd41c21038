"""When the device did what, by its own clock and without waiting for it.

Marks are made once and used again in turns. Whoever collects a step has waited for its last mark
because its tokens lie before that; reading the others then costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.device.cuda.runtime import Mark, Runtime
from telemetry.facts.clock import Clock
from telemetry.facts.step_parts import DeviceTimes

_SPANS = 64


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


@dataclass(slots=True)
class Span:
    """Of one step: where it begins, where blocks have been copied for it if any are, where its
    logits are there, and where it ends."""

    begun: Mark
    copied: Mark
    logits: Mark
    done: Mark
    has_copies: bool = False


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A step by the device's own clock, and on the host's when the model began to run
    (`forward_ns`) and when its logits were there (`sample_ns`)."""

    device: DeviceTimes
    forward_ns: int
    sample_ns: int


class DeviceClock:
    """Hands out spans and reads them, in the order in which steps are collected.

    The host asks for a step long before the device computes it, so when that happened is only known
    by the device's clock. Where this lies on the host's clock is known anew whenever the host has
    to wait for a step's end. Where it comes later than the end, the device's clock is counted on
    from there, within causality: no step begins before the host began to ask for it, by more than
    the clocks have drifted apart since, and none ends after the host has seen its end.
    """

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self._clock = clock
        self._spans = [
            Span(
                begun=runtime.mark(),
                copied=runtime.mark(),
                logits=runtime.mark(),
                done=runtime.mark(),
            )
            for _ in range(_SPANS)
        ]
        self._next = 0
        self._last: Span | None = None
        self._last_done_ns = 0  # on the host's clock

    def begin(self) -> Span:
        span = self._spans[self._next]
        self._next = (self._next + 1) % _SPANS
        span.has_copies = False
        span.begun.record()
        return span

    def copied(self, span: Span) -> None:
        """What was asked for since it began were copies: the model runs from here on."""
        span.has_copies = True
        span.copied.record()

    def read(self, span: Span, asked_ns: int, phases: PhaseMarks | None = None) -> StepTimes:
        """Waits for the span's end. The host began to ask for the step at `asked_ns`."""
        is_late = span.done.is_reached()
        span.done.wait()
        seen_ns = self._clock.now_ns()
        busy_ns = span.done.after_ns(span.begun)
        last, self._last = self._last, span
        bubble_ns = None if last is None else max(0, span.begun.after_ns(last.done))
        begun_ns = seen_ns - busy_ns
        if is_late and bubble_ns is not None:
            begun_ns = min(begun_ns, max(asked_ns, self._last_done_ns + bubble_ns))
        self._last_done_ns = begun_ns + busy_ns
        device = DeviceTimes(busy_ns, bubble_ns)
        if phases is not None:
            device = phases.times(busy_ns, bubble_ns)
        copies_ns = span.copied.after_ns(span.begun) if span.has_copies else 0
        return StepTimes(device, begun_ns + copies_ns, begun_ns + span.logits.after_ns(span.begun))

    def skip(self) -> None:
        """A step failed: nothing is known of when it ended."""
        self._last = None
