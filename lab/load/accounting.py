"""Accounting of one run: which requests count, when the window opens and closes, when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lab.load.aggregator import Aggregator, Ended, Window
from lab.load.parse import arrivals_text, lengths_text
from lab.load.result import ClassResult, ErrorKind
from lab.load.spec import BenchSpec, Slo, Trace
from lab.load.stream import Reply

OnEnded = Callable[[Ended], None]


class Accounting:
    """Owns all counts of a run. `interrupted` is set once, by the first SIGINT."""

    def __init__(self, spec: BenchSpec, on_ended: OnEnded | None = None) -> None:
        self._spec, self._on_ended = spec, on_ended
        self.window = Window()
        self._aggregators = [Aggregator(self.window) for _ in spec.classes]
        self._total = Aggregator(self.window)
        self._counted = [0] * len(spec.classes)
        self._last_end_ns = 0
        self.sent = self.ok = self.failed = self.chunks = 0
        self.warmup_requests = self.warmup_errors = 0
        self.interrupted = False

    def begin(self, now_ns: int) -> None:
        """Open the window, unless the warm-up is a number of requests."""
        if not self._spec.warmup_requests:
            self._open_window(now_ns + round(self._spec.warmup_s * 1e9))

    def count(self, class_index: int, intended_ns: int) -> bool:
        """A request is about to be sent: whether it counts."""
        self.sent += 1
        window = self.window
        if window.start_ns is None and self.sent > self._spec.warmup_requests:
            self._open_window(intended_ns + round(self._spec.warmup_s * 1e9))
        if window.start_ns is None or intended_ns < window.start_ns:
            self.warmup_requests += 1
            return False
        self._counted[class_index] += 1
        return True

    def account(self, class_index: int, ended: Ended) -> None:
        """A request has ended, with a reply or an error."""
        reply = ended.reply
        failed = reply.error_kind is not None
        self.failed += failed
        self.ok += not failed
        self.chunks += len(reply.chunk_ns)
        self.warmup_errors += failed and not ended.counted and not self.interrupted
        self._last_end_ns = max(self._last_end_ns, reply.end_ns)
        slo = self._spec.classes[class_index].slo
        self._aggregators[class_index].add(ended, slo)
        self._total.add(ended, slo)
        if self._on_ended is not None:
            self._on_ended(ended)

    def is_interrupted(self, reply: Reply) -> bool:
        """Whether a request has no reply because of the SIGINT."""
        return self.interrupted and reply.error_kind is ErrorKind.UNFINISHED

    def is_class_done(self, class_index: int) -> bool:
        limit = self._spec.classes[class_index].requests
        return limit is not None and self._counted[class_index] >= limit

    def is_done(self, classes: Sequence[int], now_ns: int) -> bool:
        """Whether these classes have nothing more to send."""
        end_ns = self.window.end_ns
        return self.all_sent(classes) or (end_ns is not None and now_ns >= end_ns)

    def all_sent(self, classes: Sequence[int]) -> bool:
        """Whether they have sent the number of requests that was wanted, whatever the time is."""
        limit = self._spec.requests
        return (
            self.interrupted
            or (limit is not None and sum(self._counted) >= limit)
            or all(self.is_class_done(index) for index in classes)
        )

    def close(self, now_ns: int) -> None:
        """Close the window, after the last reply."""
        window = self.window
        if window.start_ns is None:
            return
        if window.end_ns is None:
            window.end_ns = now_ns if self.interrupted else self._last_end_ns + 1
        elif self.interrupted:
            window.end_ns = min(window.end_ns, now_ns)

    def results(self, cache_off: bool) -> tuple[ClassResult, tuple[ClassResult, ...]]:
        """The total and each class."""
        by_time = self._spec.duration_s is not None
        classes = tuple(
            self._class_result(index, cache_off, by_time)
            for index in range(len(self._spec.classes))
        )
        total = self._total.result("total", "all", "all", Slo(), cache_off, by_time)
        return total, classes

    def _class_result(self, index: int, cache_off: bool, by_time: bool) -> ClassResult:
        one = self._spec.classes[index]
        arrivals = one.arrivals or self._spec.arrivals
        assert arrivals is not None, "a valid spec has arrivals for every class"
        arrivals_shown = arrivals_text(arrivals)
        if one.arrivals is None and len(self._spec.classes) > 1:
            arrivals_shown += f", weight {one.weight:g}"
        lengths = "trace" if isinstance(arrivals, Trace) else lengths_text(one.lengths)
        return self._aggregators[index].result(
            one.name, arrivals_shown, lengths, one.slo, cache_off, by_time
        )

    def _open_window(self, start_ns: int) -> None:
        self.window.start_ns = start_ns
        if self._spec.duration_s is not None:
            self.window.end_ns = start_ns + round(self._spec.duration_s * 1e9)
