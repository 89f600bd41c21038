"""The `gen_ai.server.*` latencies, as the GenAI semantic conventions define them.

They differ from ours. The duration is that of every request, with `error.type` if it did not
finish. The time per output token is (duration - TTFT) / (output tokens - 1), so it includes the
delivery. They are kept by operation, not by workload class.
"""

from __future__ import annotations

from enum import StrEnum

from telemetry.facts.reasons import Outcome
from telemetry.numbers.hdr import Distribution
from telemetry.requests.phases import RequestTimeline
from telemetry.stats.histograms import LatencyHistogram


class GenAiMeasure(StrEnum):
    """The latencies that the conventions define."""

    DURATION = "request.duration"
    TTFT = "time_to_first_token"
    TPOT = "time_per_output_token"


class GenAiFold:
    """A listener of the phase fold.

    Operations and error types (the end reasons other than success) are closed sets.
    """

    def __init__(self) -> None:
        self._histograms: dict[tuple[GenAiMeasure, str, str], LatencyHistogram] = {}

    def on_timeline(self, timeline: RequestTimeline) -> None:
        if timeline.outcome is Outcome.LOST or timeline.is_incomplete:
            return  # its duration is not known
        if timeline.outcome is not Outcome.FINISHED:
            reason = timeline.ended.reason.value
            self._record(GenAiMeasure.DURATION, timeline, timeline.e2e_ns, reason)
            return
        self._record(GenAiMeasure.DURATION, timeline, timeline.e2e_ns)
        ttft_ns = timeline.ttft_ns
        if ttft_ns is None:
            return
        self._record(GenAiMeasure.TTFT, timeline, ttft_ns)
        tokens = max(len(sequence.token_ns) for sequence in timeline.sequences)
        if tokens > 1:
            per_token_ns = (timeline.e2e_ns - ttft_ns) // (tokens - 1)
            self._record(GenAiMeasure.TPOT, timeline, per_token_ns)

    def of(self, measure: GenAiMeasure) -> dict[tuple[str, str], Distribution]:
        """Since the start, by operation and error type ("" for none)."""
        return {
            (operation, error): histogram.total()
            for (m, operation, error), histogram in sorted(self._histograms.items())
            if m is measure
        }

    def _record(
        self, measure: GenAiMeasure, timeline: RequestTimeline, value_ns: int, error: str = ""
    ) -> None:
        key = (measure, timeline.accepted.operation, error)
        histogram = self._histograms.get(key)
        if histogram is None:
            histogram = self._histograms[key] = LatencyHistogram()
        histogram.record(value_ns, timeline.ended.at_ns)
