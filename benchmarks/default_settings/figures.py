"""From a run of the load generator to the figures of a cell, in ms and tokens/s."""

from __future__ import annotations

from benchmarks.default_settings.loads import (
    BATCH,
    BATCH_PROMPT,
    BATCH_USERS,
    CHAT,
    INJECTED,
    STREAMS,
    VICTIM,
    VOICE,
    VOICE_LENGTHS,
    batch_pause_s,
    mean_output_tokens,
    targets,
)
from benchmarks.peers.workloads import problems_of
from benchmarks.samples import least_count
from lab.load.result import BenchResult, ClassResult, Latency
from lab.load.spec import ClassSpec, Fixed, Lengths
from telemetry.numbers.hdr import LOW_US, decode

Figures = dict[str, float | list[float] | None]
"""Lists are of all values of a cell, for what only all rounds have enough of."""


def class_of(result: BenchResult, name: str) -> ClassResult:
    return next(one for one in result.classes if one.name == name)


def problems(result: BenchResult, classes: tuple[ClassSpec, ...], errors_count: bool) -> list[str]:
    """Why the cell does not count. Where errors are counted as not good they are no reason."""
    found: list[str] = []
    for asked, one in zip(classes, result.classes, strict=True):
        if isinstance(asked.lengths, Fixed) and not errors_count:
            found += problems_of(one, asked.lengths)
        elif one.cached_tokens:
            found.append(f"{one.name}: {one.cached_tokens} prompt tokens came from a cache")
    return found


def mix(result: BenchResult) -> Figures:
    """Time between tokens is the streams', time to the first token the injected prompts'."""
    streams, injected = class_of(result, STREAMS), class_of(result, INJECTED)
    return {
        "itl_p50_ms": _ms(streams.itl, "p50"),
        "itl_p99_ms": _ms(streams.itl, "p99"),
        "tokens_per_s": streams.throughput.output_tokens_per_s,
        "ttft_p50_ms": _ms(injected.ttft, "p50"),
    }


def alone(result: BenchResult) -> Figures:
    streams = class_of(result, STREAMS)
    return {"itl_p50_ms": _ms(streams.itl, "p50"), "itl_p99_ms": _ms(streams.itl, "p99")}


def capacity(result: BenchResult, lengths: Lengths) -> Figures:
    """Requests/s by the tokens that flowed: replies that end in a short window are few."""
    return {"requests_per_s": _flow(class_of(result, CHAT), lengths)}


def goodput(result: BenchResult) -> Figures:
    chat = class_of(result, CHAT)
    return {
        "counted": chat.counted,
        "good": chat.slo_met,
        "offered_per_s": chat.offered_per_s,
        "good_per_s": chat.goodput.requests_per_s,
        "ttft_p50_ms": _ms(chat.ttft, "p50"),
        "ttft_p99_ms": _ms(chat.ttft, "p99"),
        "itl_p99_ms": _ms(chat.itl, "p99"),
    }


def closed(result: BenchResult) -> Figures:
    (one,) = result.classes
    return {
        "tokens_per_s": one.throughput.output_tokens_per_s,
        "ttft_p50_ms": _ms(one.ttft, "p50"),
        "itl_p50_ms": _ms(one.itl, "p50"),
    }


def tenants(quiet: BenchResult, flooded: BenchResult) -> Figures:
    """The times to first token of B, alone and beside A: so few that a p95 is of all rounds
    together."""
    before, beside = class_of(quiet, VICTIM), class_of(flooded, VICTIM)
    return {
        "alone_requests": before.counted,
        "alone_ttft_ms": _each_ms(before.ttft),
        "requests": beside.counted,
        "ttft_p50_ms": _ms(beside.ttft, "p50"),
        "ttft_ms": _each_ms(beside.ttft),
    }


def voice_capacity(short: BenchResult, long: BenchResult) -> Figures:
    """Voice requests/s alone, and how long one batch prompt takes alone."""
    batch_ms = _mean_ms(class_of(long, BATCH).e2e)
    return {
        "requests_per_s": _flow(class_of(short, VOICE), VOICE_LENGTHS),
        "batch_s": None if batch_ms is None else batch_ms / 1e3,
    }


def voice(result: BenchResult, batch_s: float) -> Figures:
    """Batch throughput by Little's law: clients by the mean time of a cycle. Prompts are so long
    that the number of those that end in a window is too coarse a measure."""
    short, long = class_of(result, VOICE), class_of(result, BATCH)
    slo = targets(VOICE)
    assert slo.ttft_ms is not None
    batch_ms = _mean_ms(long.e2e)
    cycle_s = None if batch_ms is None else batch_ms / 1e3 + batch_pause_s(batch_s)
    return {
        "counted": short.counted,
        "in_time": at_most(short.ttft, slo.ttft_ms),
        "good": short.slo_met,
        "ttft_p50_ms": _ms(short.ttft, "p50"),
        "ttft_p95_ms": _ms(short.ttft, "p95"),
        "batch_requests": long.counted,
        "batch_e2e_mean_ms": batch_ms,
        "batch_tokens_per_s": None if cycle_s is None else BATCH_USERS * BATCH_PROMPT / cycle_s,
    }


def _flow(one: ClassResult, lengths: Lengths) -> float:
    """Requests/s, from tokens/s."""
    return one.throughput.output_tokens_per_s / mean_output_tokens(lengths)


def at_most(latency: Latency | None, limit_ms: float) -> int:
    """How many values are within a limit."""
    if latency is None:
        return 0
    values = decode(latency.hdr, 0, round(latency.max_ms * 1e6))
    return values.at_most([round(limit_ms * 1e6)])[0]


def rounded(figures: Figures) -> Figures:
    """Four digits: the file is read by people and compared in versions."""

    def digits(value: float | list[float] | None) -> float | list[float] | None:
        if isinstance(value, list):
            return [float(f"{one:.4g}") for one in value]
        return value if value is None or isinstance(value, int) else float(f"{value:.4g}")

    return {name: digits(value) for name, value in figures.items()}


def _ms(latency: Latency | None, quantile: str) -> float | None:
    """Such as p95; None of too few."""
    enough = least_count(int(quantile.removeprefix("p")) / 100)
    return None if latency is None or latency.count < enough else getattr(latency, f"{quantile}_ms")


def _each_ms(latency: Latency | None) -> list[float]:
    """All values, to the histogram's 0.1 %."""
    if latency is None:
        return []
    values = decode(latency.hdr, 0, round(latency.max_ms * 1e6))
    lows = zip(LOW_US[values.indices].tolist(), values.counts.tolist(), strict=True)
    return [low / 1e3 for low, count in lows for _ in range(count)]


def _mean_ms(latency: Latency | None) -> float | None:
    return None if latency is None else latency.mean_ms
