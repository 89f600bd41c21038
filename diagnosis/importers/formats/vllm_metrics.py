"""vLLM's `/metrics`: scrapes in a file, or taken from a server for a while.

A file has a line `# scrape <unix seconds>` before each scrape. Of each scrape only the names that
are needed are kept.
"""

from __future__ import annotations

import math
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path

from diagnosis.importers.formats.exposition import Sample, is_exposition, sample_of
from diagnosis.importers.of_scrapes import GAUGES, ScrapeRecord
from diagnosis.importers.reading import Newest, NotImportable, Progress, Tally, lines
from diagnosis.importers.records import Scrape
from telemetry.facts.clock import Clock

PREFIX = "vllm:"
MARK = "# scrape "
LATEST_S = 1 << 33
MAX_SCRAPE_BYTES, MAX_SCRAPES = 16 << 20, 50_000
INTERVAL_NS = 1_000_000_000
_TIMEOUT_S = 10.0
_COUNTERS = (
    "num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
    "generation_tokens_total", "iteration_tokens_total_count",
)  # fmt: skip
_HISTOGRAMS = (
    "request_queue_time_seconds", "request_prefill_time_seconds", "inter_token_latency_seconds",
    "request_prompt_tokens", "request_generation_tokens", "e2e_request_latency_seconds",
    "request_inference_time_seconds",
)  # fmt: skip
_SUMMED = {*_COUNTERS, *(f"{name}_{part}" for name in _HISTOGRAMS for part in ("sum", "count"))}
_SHARE = "kv_cache_usage_perc"
_ENDED = "request_success_total"


def is_needed(name: str) -> bool:
    """Whether a metric is read at all; its name is without the prefix."""
    return name in _SUMMED or name in GAUGES or name == _ENDED


class _Values:
    """The values of one scrape."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self.samples = 0

    def add(self, sample: Sample) -> None:
        """Add a sample of a metric that is needed. Engines are summed; of shares the largest
        counts."""
        name, value = sample.name, sample.value
        self.samples += 1
        if name == _SHARE:
            self.found[name] = max(value, self.found.get(name, value))
        else:
            self.found[name] = self.found.get(name, 0.0) + value
        if name == _ENDED and sample.labels.get("finished_reason") == "error":
            failed = f"{_ENDED}{{error}}"
            self.found[failed] = self.found.get(failed, 0.0) + value


def read(paths: Sequence[Path], tally: Tally, progress: Progress) -> ScrapeRecord:
    """Scrapes of files. Raises NotImportable."""
    kept: Newest[Scrape] = Newest(MAX_SCRAPES)
    at_ns: int | None = None
    values = _Values()
    for line in lines(paths, tally, progress, must_end=True):
        text = line.decode(errors="replace")
        if text.startswith(MARK):
            _keep(kept, at_ns, values, tally)
            at_ns, values = _time_of(text, tally), _Values()
        else:
            _add_line(text, values, tally)
    if at_ns is None and values.found and not kept.all():
        raise NotImportable(
            f"{paths[0]}: one scrape without a time says only sums since the start; write a line "
            f"'{MARK}<unix seconds>' before each of several scrapes, or give the URL of the server"
        )
    _keep(kept, at_ns, values, tally)
    tally.dropped = kept.dropped
    return ScrapeRecord(kept.all())


def _add_line(text: str, values: _Values, tally: Tally) -> None:
    try:
        sample = sample_of(text, PREFIX, is_needed)
    except ValueError as error:
        tally.refuse(str(error))
        return
    if sample is not None:
        values.add(sample)


def _time_of(text: str, tally: Tally) -> int | None:
    try:
        at_s = float(text.removeprefix(MARK))
    except ValueError:
        at_s = math.nan
    if not math.isfinite(at_s) or not 0 <= at_s < LATEST_S:
        tally.refuse(f"no time: {text[:60]!r}")
        return None
    return round(at_s * 1e9)


def _keep(kept: Newest[Scrape], at_ns: int | None, values: _Values, tally: Tally) -> None:
    if at_ns is not None and values.found:
        kept.add(Scrape(at_ns, values.found, values.samples))
        tally.read += 1


def watch(
    url: str,
    seconds: float,
    tally: Tally,
    progress: Progress,
    clock: Clock,
    sleep: Callable[[int], None],
) -> ScrapeRecord:
    """Scrape a server once a second for so long. Raises NotImportable where it does not answer; a
    scrape that fails later is counted as unread."""
    base = url.rstrip("/")
    address = base if base.endswith("/metrics") else f"{base}/metrics"
    kept: Newest[Scrape] = Newest(MAX_SCRAPES)
    begin_ns, done = clock.now_ns(), 0
    while True:
        text = _scraped(address, tally, is_first=not done)
        at_ns, values = clock.now_ns(), _Values()
        for line in _whole_lines(text, tally):
            _add_line(line, values, tally)
        if not done and not values.found:
            raise NotImportable(
                f"{address} answers without a metric of vLLM ({PREFIX}...): is it a vLLM, with its "
                "statistics on (without --disable-log-stats)?"
            )
        _keep(kept, at_ns, values, tally)
        done += 1
        passed_s = (clock.now_ns() - begin_ns) / 1e9
        if passed_s >= seconds:
            return ScrapeRecord(kept.all())
        progress(f"{address}: {passed_s:.0f} of {seconds:.0f} s")
        sleep(max(0, begin_ns + done * INTERVAL_NS - clock.now_ns()))


def _whole_lines(text: str, tally: Tally) -> list[str]:
    """The lines of an answer; a last line without its line break was cut off."""
    found = text.splitlines(keepends=True)
    if found and not found[-1].endswith("\n"):
        found.pop()
        tally.refuse("a scrape ends in the middle of a line")
    return found


def _scraped(address: str, tally: Tally, *, is_first: bool) -> str:
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
            data: bytes = answer.read(MAX_SCRAPE_BYTES + 1)
    except (OSError, ValueError, HTTPException) as error:
        why = f"{address} cannot be read: {getattr(error, 'reason', error)}"
        if is_first or not isinstance(error, OSError | HTTPException):
            raise NotImportable(why) from error
        tally.refuse(why)
        return ""
    text = data[:MAX_SCRAPE_BYTES].decode(errors="replace")
    if is_first and not is_exposition(text):
        raise NotImportable(f"{address} answers, but not with metrics in Prometheus' text format")
    return text
