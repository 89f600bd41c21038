"""Dynamo's forward-pass metrics, `dynamo.fpm.trace.v1`: a step a line, with or without the envelope
of its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from diagnosis.importers.formats.json_lines import (
    count_of,
    decoded,
    ns_of_ms,
    ns_of_unix_ms,
    sure_count,
)
from diagnosis.importers.of_steps import StepRecord
from diagnosis.importers.reading import Newest, Progress, Tally
from diagnosis.importers.records import StepSeen

SCHEMA = "dynamo.fpm.trace.v1"


class _Scheduled(msgspec.Struct, frozen=True):
    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    num_decode_requests: int = 0


class _Queued(msgspec.Struct, frozen=True):
    num_prefill_requests: int = 0
    num_decode_requests: int = 0


class _Pass(msgspec.Struct, frozen=True):
    wall_time: float
    worker_id: str = ""
    dp_rank: int = 0
    counter_id: int = 0
    scheduled_requests: _Scheduled = _Scheduled()
    queued_requests: _Queued = _Queued()


class _Source(msgspec.Struct, frozen=True):
    producer_id: str = ""


class _Line(msgspec.Struct, frozen=True):
    schema: str = ""
    event: _Line | None = None
    source: _Source = _Source()
    capture_mode: str = ""
    observed_at_unix_ms: float | None = None
    fpm: _Pass | None = None


def read(paths: Sequence[Path], tally: Tally, progress: Progress) -> StepRecord:
    """Raises NotImportable."""
    kept: Newest[StepSeen] = Newest()
    is_whole = True
    for line in decoded(paths, _Line, tally, progress):
        event = line.event or line
        if event.schema != SCHEMA or event.fpm is None:
            tally.refuse(f"schema {event.schema[:40]!r} is not {SCHEMA}")
            continue
        is_whole = is_whole and event.capture_mode == "full"
        try:
            kept.add(_step(event, event.fpm))
        except ValueError as error:
            tally.refuse(str(error))
        else:
            tally.read += 1
    tally.dropped = kept.dropped
    return StepRecord(kept.all(), is_whole=is_whole)


def _step(event: _Line, one: _Pass) -> StepSeen:
    """Heartbeats of an idle engine are steps of no length: they keep the numbers whole. Raises
    ValueError."""
    length_ns = ns_of_ms(one.wall_time * 1e3, "wall_time") or 0
    scheduled, queued = one.scheduled_requests, one.queued_requests
    return StepSeen(
        at_ns=ns_of_unix_ms(event.observed_at_unix_ms, "observed_at_unix_ms"),
        length_ns=length_ns,
        prompt_rows=sure_count(scheduled.num_prefill_requests, "num_prefill_requests"),
        prompt_tokens=sure_count(scheduled.sum_prefill_tokens, "sum_prefill_tokens"),
        decode_rows=sure_count(scheduled.num_decode_requests, "num_decode_requests"),
        waiting=sure_count(queued.num_prefill_requests, "queued num_prefill_requests"),
        preempted=sure_count(queued.num_decode_requests, "queued num_decode_requests"),
        worker=f"{event.source.producer_id}/{one.worker_id}/{one.dp_rank}",
        number=count_of(one.counter_id, "counter_id"),
    )
