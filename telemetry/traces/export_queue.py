"""The traces that the exporter has not delivered: deferred, queued, being built, in flight.

Plain containers without a lock of their own: the exporter's lock guards them.
"""

from __future__ import annotations

from collections import deque

from telemetry.requests.phases import RequestTimeline
from telemetry.traces.sampling import NotSampledReason, Sampled

QUEUE_TIMELINES = 2048
QUEUE_STAMPS = 1_000_000  # of tokens and chunks, of all queued traces: some 64 MiB
_DEFERRED_TIMELINES = 512
_DEFERRED_STAMPS = 500_000

SampledTrace = tuple[RequestTimeline, Sampled]
NotSampled = tuple[RequestTimeline, NotSampledReason]


class DeferredTraces:
    """Requests that are not sampled as far as is known but may become culprits. Bounded by number
    and by stamps (`RequestTimeline.stamps`)."""

    def __init__(self) -> None:
        self._traces: deque[NotSampled] = deque()
        self._stamps = 0

    def __len__(self) -> int:
        return len(self._traces)

    def add(self, trace: NotSampled) -> bool:
        """False when it is full."""
        if len(self._traces) >= _DEFERRED_TIMELINES or self._stamps >= _DEFERRED_STAMPS:
            return False
        self._traces.append(trace)
        self._stamps += trace[0].stamps
        return True

    def pop_ended_before(self, at_ns: int | None) -> NotSampled | None:
        """The oldest trace if its request had ended by `at_ns`, or whatever its age if that is
        None; None if there is no such trace."""
        if not self._traces:
            return None
        if at_ns is not None and self._traces[0][0].ended.at_ns > at_ns:
            return None
        trace = self._traces.popleft()
        self._stamps -= trace[0].stamps
        return trace

    def drain(self) -> list[NotSampled]:
        traces = list(self._traces)
        self._traces.clear()
        self._stamps = 0
        return traces


class TraceQueue:
    """Sampled traces whose spans are not built, bounded by number and by stamps.

    `building` is the one whose spans are being built; it counts neither in `len` nor against the
    bounds. Postponed traces wait until `requeue_postponed`.
    """

    def __init__(self, capacity: int = QUEUE_TIMELINES) -> None:
        self.building: SampledTrace | None = None
        self._capacity = capacity
        self._queue: deque[SampledTrace] = deque()
        self._postponed: deque[SampledTrace] = deque()
        self._stamps = 0

    def __len__(self) -> int:
        return len(self._queue) + len(self._postponed)

    @property
    def has_queued(self) -> bool:
        """Whether `take` has a trace."""
        return bool(self._queue)

    def has_room_for(self, timeline: RequestTimeline) -> bool:
        """A single trace always fits."""
        if len(self) >= self._capacity:
            return False
        return not len(self) or self._stamps + timeline.stamps <= QUEUE_STAMPS

    def add(self, trace: SampledTrace) -> None:
        self._queue.append(trace)
        self._stamps += trace[0].stamps

    def take(self) -> SampledTrace | None:
        """The next trace; `begin_building` or `postpone` it."""
        return self._queue.popleft() if self._queue else None

    def begin_building(self, trace: SampledTrace) -> None:
        self.building = trace
        self._stamps -= trace[0].stamps

    def postpone(self, trace: SampledTrace) -> None:
        self._postponed.append(trace)

    def requeue_postponed(self) -> None:
        """Put them before all others, in their order."""
        self._queue.extendleft(reversed(self._postponed))
        self._postponed.clear()

    def oldest_end_ns(self) -> int | None:
        """When the oldest request ended; the one that is being built included."""
        building = [] if self.building is None else [self.building]
        heads = (queue[0] for queue in (building, self._postponed, self._queue) if queue)
        return min((timeline.ended.at_ns for timeline, _ in heads), default=None)

    def drain(self) -> list[SampledTrace]:
        """Everything, the one that is being built first."""
        building = [] if self.building is None else [self.building]
        traces = [*building, *self._queue, *self._postponed]
        self._queue.clear()
        self._postponed.clear()
        self._stamps = 0
        self.building = None
        return traces


class TracesInFlight:
    """Traces whose spans are built and not all sent, in order."""

    def __init__(self) -> None:
        self._traces: deque[tuple[int, int]] = deque()  # (end of the request in ns, spans left)

    def __len__(self) -> int:
        return len(self._traces)

    def add(self, ended_ns: int, spans: int) -> None:
        self._traces.append((ended_ns, spans))

    def remove_spans(self, spans: int) -> None:
        """The oldest `spans` spans are delivered or lost."""
        while spans:
            ended_ns, left = self._traces.popleft()
            if left > spans:
                self._traces.appendleft((ended_ns, left - spans))
            spans -= min(left, spans)

    def oldest_end_ns(self) -> int | None:
        return self._traces[0][0] if self._traces else None

    def drain(self) -> tuple[int, int]:
        """Forget all; how many traces and spans they were."""
        found = len(self._traces), sum(spans for _, spans in self._traces)
        self._traces.clear()
        return found
