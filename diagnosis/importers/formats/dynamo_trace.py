"""Dynamo's request traces, `dynamo.request.trace.v1`: a `request_end` record for each request, with
or without the envelope of its files. Payload and tool records are passed over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from diagnosis.importers.formats.json_lines import count_of, decoded, ns_of_ms, ns_of_unix_ms
from diagnosis.importers.kinds import Seen
from diagnosis.importers.of_requests import RequestRecord
from diagnosis.importers.reading import Newest, Progress, Tally
from diagnosis.importers.records import RequestSeen

SCHEMA, ENDED = "dynamo.request.trace.v1", "request_end"


class _Replay(msgspec.Struct, frozen=True):
    input_length: int | None = None


class _Finish(msgspec.Struct, frozen=True):
    finish_reason: str | None = None


class _Request(msgspec.Struct, frozen=True):
    request_received_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    prefill_wait_time_ms: float | None = None
    prefill_time_ms: float | None = None
    ttft_ms: float | None = None
    total_time_ms: float | None = None
    kv_hit_rate: float | None = None
    replay: _Replay | None = None
    finish_reason_metadata: _Finish | None = None


class _Line(msgspec.Struct, frozen=True):
    schema: str = ""
    event_type: str = ""
    event: _Line | None = None
    request: _Request | None = None


def read(paths: Sequence[Path], tally: Tally, progress: Progress) -> RequestRecord:
    """Raises NotImportable."""
    kept: Newest[RequestSeen] = Newest()
    has_reasons = False
    for line in decoded(paths, _Line, tally, progress):
        event = line.event or line
        if event.schema != SCHEMA:
            tally.refuse(f"schema {event.schema[:40]!r} is not {SCHEMA}")
        elif event.event_type != ENDED:
            tally.skipped += 1
        elif event.request is None:
            tally.refuse(f"{ENDED} without a request")
        else:
            has_reasons = has_reasons or event.request.finish_reason_metadata is not None
            _add(event.request, kept, tally)
    tally.dropped = kept.dropped
    also = frozenset({Seen.FAILURES}) if has_reasons else frozenset[Seen]()
    return RequestRecord(kept.all(), also=also)


def _add(one: _Request, kept: Newest[RequestSeen], tally: Tally) -> None:
    try:
        kept.add(_request(one))
    except ValueError as error:
        tally.refuse(str(error))
    else:
        tally.read += 1


def _request(one: _Request) -> RequestSeen:
    """Raises ValueError."""
    prompt = one.input_tokens
    if prompt is None and one.replay is not None:
        prompt = one.replay.input_length
    prompt = count_of(prompt, "input_tokens")
    cached = count_of(one.cached_tokens, "cached_tokens")
    if cached is None and one.kv_hit_rate is not None and prompt is not None:
        if not 0 <= one.kv_hit_rate <= 1:
            raise ValueError(f"kv_hit_rate is {one.kv_hit_rate}")
        cached = round(one.kv_hit_rate * prompt)
    first, total = ns_of_ms(one.ttft_ms, "ttft_ms"), ns_of_ms(one.total_time_ms, "total_time_ms")
    decode = None if first is None or total is None else max(0, total - first)
    finish = one.finish_reason_metadata
    return RequestSeen(
        at_ns=ns_of_unix_ms(one.request_received_ms, "request_received_ms"),
        queue_ns=ns_of_ms(one.prefill_wait_time_ms, "prefill_wait_time_ms"),
        prefill_ns=ns_of_ms(one.prefill_time_ms, "prefill_time_ms"),
        decode_ns=decode,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=count_of(one.output_tokens, "output_tokens"),
        failed=finish is not None and finish.finish_reason == "error",
    )
