"""SGLang's request files (`--export-metrics-to-file`): a line for each request. Its parameters,
which may hold a prompt, are not decoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from diagnosis.importers.formats.json_lines import count_of, decoded, ns_of_ms, ns_of_unix_ms
from diagnosis.importers.kinds import Seen
from diagnosis.importers.of_requests import RequestRecord
from diagnosis.importers.reading import Newest, Progress, Tally
from diagnosis.importers.records import RequestSeen

_SERVER_ERROR = 500


class _Finish(msgspec.Struct, frozen=True):
    type: str = ""
    status_code: int | None = None


class _Line(msgspec.Struct, frozen=True):
    """Times of day in seconds, lengths in seconds."""

    request_received_ts: float | None = None
    api_server_dispatch_finish_ts: float | None = None
    forward_entry_time: float | None = None
    prefill_finished_time: float | None = None
    request_finished_ts: float | None = None
    first_token_latency: float | None = None
    queue_time: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    num_retractions: int | None = None
    finish_reason: _Finish | None = None


def read(paths: Sequence[Path], tally: Tally, progress: Progress) -> RequestRecord:
    """Raises NotImportable."""
    kept: Newest[RequestSeen] = Newest()
    for line in decoded(paths, _Line, tally, progress):
        try:
            kept.add(_request(line))
        except ValueError as error:
            tally.refuse(str(error))
        else:
            tally.read += 1
    tally.dropped = kept.dropped
    return RequestRecord(kept.all(), also=frozenset({Seen.FAILURES}))


def _request(line: _Line) -> RequestSeen:
    """Raises ValueError."""
    if line.request_received_ts is None:
        raise ValueError("no request_received_ts: SGLang writes it with --enable-metrics")
    at_ns = ns_of_unix_ms(line.request_received_ts * 1e3, "request_received_ts")
    first = _ns(line.first_token_latency, "first_token_latency")
    finish = line.finish_reason
    return RequestSeen(
        at_ns=at_ns,
        front_ns=_between(line.request_received_ts, line.api_server_dispatch_finish_ts),
        queue_ns=_ns(line.queue_time, "queue_time"),
        prefill_ns=_between(line.forward_entry_time, line.prefill_finished_time),
        decode_ns=_decode(line, first),
        prompt_tokens=count_of(line.prompt_tokens, "prompt_tokens"),
        cached_tokens=count_of(line.cached_tokens, "cached_tokens"),
        output_tokens=count_of(line.completion_tokens, "completion_tokens"),
        preempted=count_of(line.num_retractions, "num_retractions"),
        failed=finish is not None and (finish.status_code or 0) >= _SERVER_ERROR,
    )


def _decode(line: _Line, first_ns: int | None) -> int | None:
    """From the first token to the end."""
    total = _between(line.request_received_ts, line.request_finished_ts)
    if total is None or first_ns is None:
        return _between(line.prefill_finished_time, line.request_finished_ts)
    return max(0, total - first_ns)


def _ns(seconds: float | None, name: str) -> int | None:
    return None if seconds is None else ns_of_ms(seconds * 1e3, name)


def _between(begin_s: float | None, end_s: float | None) -> int | None:
    """The ns between two stamps; None where either is unknown. Clocks that are read twice may
    differ by less than nothing."""
    if begin_s is None or end_s is None:
        return None
    return ns_of_ms(max(0.0, (end_s - begin_s) * 1e3), "a time between two stamps")
