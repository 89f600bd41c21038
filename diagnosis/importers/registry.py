"""Which module reads which kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from diagnosis.importers.formats import (
    dynamo_fpm,
    dynamo_trace,
    llamacpp_timings,
    sglang_requests,
    trtllm_metrics,
    vllm_metrics,
    vllm_otlp,
)
from diagnosis.importers.judge import judge
from diagnosis.importers.kinds import Kind
from diagnosis.importers.reading import NotImportable, Progress, Tally
from diagnosis.importers.records import Record, Span
from diagnosis.importers.verdict import ImportedDiagnosis
from telemetry.facts.clock import Clock

Reader = Callable[[Sequence[Path], Tally, Progress], Record]

READERS: dict[Kind, Reader] = {
    Kind.VLLM_OTLP: vllm_otlp.read,
    Kind.VLLM_METRICS: vllm_metrics.read,
    Kind.DYNAMO_FPM: dynamo_fpm.read,
    Kind.DYNAMO_TRACE: dynamo_trace.read,
    Kind.SGLANG_REQUESTS: sglang_requests.read,
    Kind.LLAMACPP_TIMINGS: llamacpp_timings.read,
    Kind.TRTLLM_METRICS: trtllm_metrics.read,
}

RelativeSpans = tuple[tuple[float, float], tuple[float, float]]
"""The stretch to judge and the usual one, each in seconds before the end of the record."""


def diagnose_files(
    kind: Kind,
    paths: Sequence[Path],
    progress: Progress,
    given: RelativeSpans | None = None,
) -> ImportedDiagnosis:
    """Several files of one kind are one record. Raises NotImportable."""
    tally = Tally()
    record = READERS[kind](paths, tally, progress)
    if not record.count:
        seen = f"; {tally.text}" if tally.text else ""
        raise NotImportable(
            f"{paths[0]}: nothing in it is {kind.value}{seen}; see docs/importers.md for what each "
            "kind reads"
        )
    progress(f"{record.count:,} {record.noun} are compared")
    return _judged(kind, record, tally, given)


def diagnose_vllm(
    url: str,
    seconds: float,
    progress: Progress,
    clock: Clock,
    sleep: Callable[[int], None],
    given: RelativeSpans | None = None,
) -> ImportedDiagnosis:
    """Scrapes of a running vLLM. Raises NotImportable."""
    tally = Tally()
    record = vllm_metrics.watch(url, seconds, tally, progress, clock, sleep)
    return _judged(Kind.VLLM_METRICS, record, tally, given)


def _judged(
    kind: Kind, record: Record, tally: Tally, given: RelativeSpans | None
) -> ImportedDiagnosis:
    if given is None:
        return judge(kind, record, tally)
    now, usual = (_span(record, *one) for one in given)
    return judge(kind, record, tally, (now, usual))


def _span(record: Record, from_s: float, until_s: float) -> Span:
    end_ns = record.span.end_ns
    return Span(end_ns - round(from_s * 1e9), end_ns - round(until_s * 1e9) + 1)
