"""Answers of llama.cpp's server with `timings`: JSON lines, also those of a saved stream
(`data: ...`). Their texts are not decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from diagnosis.importers.formats.json_lines import count_of, ns_of_ms
from diagnosis.importers.of_requests import RequestRecord
from diagnosis.importers.reading import Newest, Progress, Tally, lines
from diagnosis.importers.records import RequestSeen

_STREAM, _DONE = b"data:", b"[DONE]"
_APART_NS = 1_000_000_000


class _Timings(msgspec.Struct, frozen=True):
    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None


class _Choice(msgspec.Struct, frozen=True):
    finish_reason: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    timings: _Timings | None = None
    stop: bool | None = None
    choices: list[_Choice] | None = None

    @property
    def is_last(self) -> bool:
        """Pieces of a stream have timings too, with `timings_per_token`."""
        if self.stop is not None:
            return self.stop
        return not self.choices or any(one.finish_reason for one in self.choices)


def read(paths: Sequence[Path], tally: Tally, progress: Progress) -> RequestRecord:
    """Raises NotImportable."""
    kept: Newest[RequestSeen] = Newest()
    for answer in _answers(paths, tally, progress):
        if answer.timings is None or not answer.is_last:
            tally.skipped += 1
            continue
        try:
            kept.add(_request(answer.timings, (tally.read + 1) * _APART_NS))
        except ValueError as error:
            tally.refuse(str(error))
        else:
            tally.read += 1
    tally.dropped = kept.dropped
    return RequestRecord(kept.all(), is_timed=False)


def _answers(paths: Sequence[Path], tally: Tally, progress: Progress) -> Iterator[_Answer]:
    decoder = msgspec.json.Decoder(_Answer)
    for line in lines(paths, tally, progress):
        text = line.removeprefix(_STREAM).strip()
        if not text or text == _DONE:
            continue
        try:
            yield decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            tally.refuse(str(error))


def _request(timings: _Timings, at_ns: int) -> RequestSeen:
    """Raises ValueError."""
    computed, cached = count_of(timings.prompt_n, "prompt_n"), count_of(timings.cache_n, "cache_n")
    return RequestSeen(
        at_ns=at_ns,
        prefill_ns=ns_of_ms(timings.prompt_ms, "prompt_ms"),
        decode_ns=ns_of_ms(timings.predicted_ms, "predicted_ms"),
        prompt_tokens=None if computed is None else computed + (cached or 0),
        cached_tokens=cached,
        output_tokens=count_of(timings.predicted_n, "predicted_n"),
    )
