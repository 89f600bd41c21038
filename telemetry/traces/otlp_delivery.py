"""Delivers one chunk of spans: tries until the receiver takes it, refuses it, or time is up.

Waits can be cut short from another thread: after `hurry` there is one more attempt, after `stop`
none. That, a wait as long as the receiver asks for, and an outage of a minute are more than the
retries inside the official exporter can do.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan

from telemetry.facts.clock import Clock
from telemetry.traces.otlp_exporters import Answer, Exporter
from telemetry.traces.tracing_view import DropReason

log = logging.getLogger("phasescope.otlp")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries of a chunk. An attempt of the exporter takes at most `attempt_s`; None: what
    OTEL_EXPORTER_OTLP_TIMEOUT says, else ten seconds. Waits begin at `first_s` and double up to
    `longest_s`; a longer one that the receiver asks for is at most `longest_asked_s`. A chunk is
    given up when the next attempt would begin more than `give_up_s` after the first."""

    attempt_s: float | None = None
    first_s: float = 0.5
    longest_s: float = 5.0
    longest_asked_s: float = 30.0
    give_up_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Lost:
    """The chunk was not delivered."""

    reason: DropReason
    error: str


class Delivery:
    """One exporter with retries. `on_attempt` is called after every attempt."""

    def __init__(
        self,
        exporter: Exporter,
        clock: Clock,
        target: str,
        retry: RetryPolicy,
        on_attempt: Callable[[Answer], None],
    ) -> None:
        self.close = exporter.close
        self._exporter = exporter
        self._clock = clock
        self._target = target
        self._retry = retry
        self._on_attempt = on_attempt
        self._reachable = True
        self._hurry = threading.Event()
        self._stop = threading.Event()

    @property
    def hurried(self) -> bool:
        return self._hurry.is_set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def hurry(self) -> None:
        """From now on do not wait, and stop at the first failure."""
        self._hurry.set()

    def stop(self) -> None:
        """No more attempts."""
        self._stop.set()
        self._hurry.set()

    def deliver(self, spans: Sequence[ReadableSpan]) -> Answer | Lost | None:
        """Deliver a chunk; the answer that took it. None when it was stopped before there was a
        result."""
        first_ns, wait_s = self._clock.now_ns(), self._retry.first_s
        while not self.stopped:
            answer = self._attempt(spans)
            if answer.error is None:
                return answer
            if self._stop.is_set():
                break  # it may have failed because it was closed
            if not answer.sent:
                log.error("a chunk of spans could not be encoded: %s", answer.error)
                return Lost(DropReason.BUILD_ERROR, f"encoding spans: {answer.error}")
            if not answer.retryable:
                return Lost(DropReason.REJECTED, answer.error)
            if self.hurried:
                self.stop()  # the receiver does not answer: later chunks would fail too
                break
            pause_s = self._pause_s(answer, wait_s)
            if (self._clock.now_ns() - first_ns) / 1e9 + pause_s > self._retry.give_up_s:
                return Lost(DropReason.EXPORT_FAILED, answer.error)
            self._hurry.wait(pause_s)
            wait_s = min(2 * wait_s, self._retry.longest_s)
        return None

    def _attempt(self, spans: Sequence[ReadableSpan]) -> Answer:
        """One attempt. Logs once when the receiver becomes unreachable and once when it is back."""
        answer = self._exporter.export(spans)
        if not answer.sent:
            return answer
        self._on_attempt(answer)
        taken = answer.error is None
        if taken and not self._reachable:
            log.warning("spans reach %s again", self._target)
        if not taken and self._reachable:
            log.warning("spans do not reach %s (%s); serving goes on", self._target, answer.error)
        self._reachable = taken
        return answer

    def _pause_s(self, answer: Answer, wait_s: float) -> float:
        """Ours plus or minus a fifth, so that a fleet does not retry all at once, or the wait that
        the receiver asks for if that is longer: one that asks for none gets no flood."""
        ours_s = wait_s * (0.8 + secrets.randbelow(401) / 1000)
        return max(ours_s, min(answer.retry_after_s or 0.0, self._retry.longest_asked_s))
