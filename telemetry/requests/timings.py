"""The timings that a response carries on request, taken from its timeline."""

from __future__ import annotations

import msgspec

from telemetry.facts.reasons import Phase
from telemetry.requests.phases import RequestTimeline


class RequestTimings(msgspec.Struct, frozen=True, kw_only=True):
    """All in ms, as `telemetry.requests.phases` defines them; None is not measured.

    `generation_time_ms` is the decode phase: from the first token of the last choice to the last
    token of all. `tokens_per_second` is the inverse of `mean_itl_ms`, the speed of one choice.
    `total_time_ms` ends when the timings are written, so before the last byte.
    """

    tokenize_time_ms: float | None
    queue_time_ms: float | None
    prefill_time_ms: float | None
    time_to_first_token_ms: float | None
    generation_time_ms: float | None
    mean_itl_ms: float | None
    max_itl_ms: float | None
    tokens_per_second: float | None
    total_time_ms: float


def timings_of(timeline: RequestTimeline) -> RequestTimings:
    """The timings of a timeline that has ended or is about to."""
    tpot_ns = timeline.tpot_ns
    gaps = (
        b - a
        for sequence in timeline.sequences
        for a, b in zip(sequence.token_ns, sequence.token_ns[1:], strict=False)
    )
    return RequestTimings(
        tokenize_time_ms=_ms(timeline.phase_ns(Phase.TOKENIZE)),
        queue_time_ms=_ms(timeline.phase_ns(Phase.QUEUE)),
        prefill_time_ms=_ms(timeline.phase_ns(Phase.PREFILL)),
        time_to_first_token_ms=_ms(timeline.ttft_ns),
        generation_time_ms=_ms(timeline.phase_ns(Phase.DECODE)),
        mean_itl_ms=_ms(tpot_ns),
        max_itl_ms=_ms(max(gaps, default=None)),
        tokens_per_second=round(1e9 / tpot_ns, 3) if tpot_ns else None,
        total_time_ms=round(timeline.e2e_ns / 1e6, 3),
    )


def server_timing(timings: RequestTimings) -> str:
    """A `Server-Timing` header: queue, prefill, decode, total; what was not measured is absent."""
    parts = {
        "queue": timings.queue_time_ms,
        "prefill": timings.prefill_time_ms,
        "decode": timings.generation_time_ms,
        "total": timings.total_time_ms,
    }
    return ", ".join(f"{name};dur={ms:.3f}" for name, ms in parts.items() if ms is not None)


def _ms(value_ns: int | None) -> float | None:
    return None if value_ns is None else round(value_ns / 1e6, 3)
