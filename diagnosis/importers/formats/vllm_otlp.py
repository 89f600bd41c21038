"""vLLM's `llm_request` spans: OTLP JSON lines, OTLP protobuf, or Jaeger's JSON export.

The collector's file exporter writes a request of an exporter a line, or as protobuf with its length
in four bytes before it. Only names, times and numeric attributes are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from diagnosis.importers.formats.json_lines import MOST
from diagnosis.importers.of_requests import RequestRecord
from diagnosis.importers.reading import (
    MAX_LINE_BYTES,
    Newest,
    NotImportable,
    Progress,
    Tally,
    first_bytes,
    lines,
    whole,
)
from diagnosis.importers.records import RequestSeen

SPAN = "llm_request"
_LATENCY = "gen_ai.latency."
_FIRST, _QUEUE = f"{_LATENCY}time_to_first_token", f"{_LATENCY}time_in_queue"
_PREFILL, _DECODE = f"{_LATENCY}time_in_model_prefill", f"{_LATENCY}time_in_model_decode"
_PROMPT, _OUTPUT = "gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"
_LENGTH_BYTES, _HEAD_BYTES = 4, 1024
_LONGEST_S = 1e6
LATEST_NS = 1 << 63


class _Value(msgspec.Struct, frozen=True):
    doubleValue: float | None = None  # noqa: N815
    intValue: int | str | None = None  # noqa: N815


class _Attribute(msgspec.Struct, frozen=True):
    key: str = ""
    value: _Value = _Value()


class _Span(msgspec.Struct, frozen=True):
    name: str = ""
    startTimeUnixNano: int | str = 0  # noqa: N815
    attributes: list[_Attribute] = []


class _Scope(msgspec.Struct, frozen=True):
    spans: list[_Span] = []


class _Group(msgspec.Struct, frozen=True):
    scopeSpans: list[_Scope] = []  # noqa: N815


class _Message(msgspec.Struct, frozen=True):
    resourceSpans: list[_Group]  # noqa: N815


class _Tag(msgspec.Struct, frozen=True):
    key: str = ""
    type: str = ""
    value: Any = None


class _JaegerSpan(msgspec.Struct, frozen=True):
    operationName: str = ""  # noqa: N815
    startTime: int = 0  # noqa: N815
    tags: list[_Tag] = []


class _JaegerTrace(msgspec.Struct, frozen=True):
    spans: list[_JaegerSpan] = []


class _JaegerExport(msgspec.Struct, frozen=True):
    data: list[_JaegerTrace]


_MESSAGE, _JAEGER = msgspec.json.Decoder(_Message), msgspec.json.Decoder(_JaegerExport)


def read(paths: Sequence[Path], tally: Tally, progress: Progress) -> RequestRecord:
    """Raises NotImportable."""
    kept: Newest[RequestSeen] = Newest()
    for path in paths:
        head = first_bytes(path, _HEAD_BYTES)
        if head.lstrip()[:1] not in (b"{", b""):
            _read_protobuf(path, kept, tally)
        elif b'"data"' in head and b'"resourceSpans"' not in head:
            _read_jaeger(path, kept, tally)
        else:
            for line in lines([path], tally, progress):
                _read_message(line, kept, tally)
    tally.dropped = kept.dropped
    return RequestRecord(kept.all())


def _read_message(line: bytes, kept: Newest[RequestSeen], tally: Tally) -> None:
    try:
        message = _MESSAGE.decode(line)
        spans = [
            span for group in message.resourceSpans for scope in group.scopeSpans
            for span in scope.spans
        ]  # fmt: skip
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        tally.refuse(f"no OTLP message: {error}")
        return
    for span in spans:
        if span.name != SPAN:
            tally.skipped += 1
            continue
        values = {one.key: _number(one.value) for one in span.attributes}
        _add(kept, tally, span.startTimeUnixNano, values)


def _read_jaeger(path: Path, kept: Newest[RequestSeen], tally: Tally) -> None:
    """One object in the whole file."""
    try:
        export = _JAEGER.decode(whole(path))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotImportable(f"{path} is not an export of Jaeger: {error}") from error
    for span in (span for trace in export.data for span in trace.spans):
        if span.operationName != SPAN:
            tally.skipped += 1
            continue
        values = {
            tag.key: _float(tag.value) for tag in span.tags if isinstance(tag.value, int | float)
        }
        _add(kept, tally, span.startTime * 1000, values)


def _read_protobuf(path: Path, kept: Newest[RequestSeen], tally: Tally) -> None:
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    for data in _framed(path):
        try:
            message = TracesData.FromString(data)
        except DecodeError as error:
            tally.refuse(f"no OTLP message: {error}")
            continue
        spans = (
            span for group in message.resource_spans for scope in group.scope_spans
            for span in scope.spans
        )  # fmt: skip
        for span in spans:
            if span.name != SPAN:
                tally.skipped += 1
                continue
            values = {one.key: _protobuf_number(one.value) for one in span.attributes}
            _add(kept, tally, span.start_time_unix_nano, values)


def _framed(path: Path) -> Iterator[bytes]:
    """Messages with their length before them, or the whole file as one."""
    data = whole(path)
    place, found = 0, []
    while place + _LENGTH_BYTES <= len(data):
        length = int.from_bytes(data[place : place + _LENGTH_BYTES], "big")
        end = place + _LENGTH_BYTES + length
        if not 0 < length <= MAX_LINE_BYTES or end > len(data):
            break
        found.append(data[place + _LENGTH_BYTES : end])
        place = end
    yield from found if found and place == len(data) else [data]


def _number(value: _Value) -> float | None:
    if value.doubleValue is not None:
        return value.doubleValue
    return None if value.intValue is None else _float(value.intValue)


def _float(value: float | str) -> float | None:
    """The value as a float; None for what no float holds, as an integer of 400 digits."""
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _protobuf_number(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    return float(getattr(value, kind)) if kind in ("double_value", "int_value") else None


def _add(
    kept: Newest[RequestSeen],
    tally: Tally,
    begin_ns: int | str,
    values: Mapping[str, float | None],
) -> None:
    try:
        kept.add(_request_of(int(begin_ns), values))
    except (ValueError, OverflowError) as error:
        tally.refuse(f"{SPAN}: {error}")
    else:
        tally.read += 1


def _request_of(begin_ns: int, values: Mapping[str, float | None]) -> RequestSeen:
    """Raises ValueError, OverflowError."""
    if not 0 < begin_ns < LATEST_NS:
        raise ValueError("no time of its begin")
    first, queue = _ns(values, _FIRST), _ns(values, _QUEUE)
    prefill, decode = _ns(values, _PREFILL), _ns(values, _DECODE)
    front = None
    if first is not None and queue is not None and prefill is not None:
        front = max(0, first - queue - prefill)
    return RequestSeen(
        at_ns=begin_ns,
        front_ns=front,
        queue_ns=queue,
        prefill_ns=prefill,
        decode_ns=decode,
        prompt_tokens=_count(values, _PROMPT),
        output_tokens=_count(values, _OUTPUT),
    )


def _ns(values: Mapping[str, float | None], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if not math.isfinite(value) or not 0 <= value <= _LONGEST_S:
        raise ValueError(f"{name} is {value:g} s")
    return round(value * 1e9)


def _count(values: Mapping[str, float | None], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if not 0 <= value < MOST:
        raise ValueError(f"{name} is {value:g}")
    return int(value)
