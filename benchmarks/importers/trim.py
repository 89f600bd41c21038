"""Cuts recordings of `record_vllm` into small files for the tests: for each fault the sound time
before it and the fault, without ids, names of models and paths.

    python -m benchmarks.importers.trim build/importers tests/diagnosis/importers/recorded
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from diagnosis.importers.formats.exposition import sample_of
from diagnosis.importers.formats.vllm_metrics import MARK, PREFIX, is_needed
from diagnosis.importers.formats.vllm_otlp import SPAN

_LABELS = ("engine", "finished_reason")
_ID = "gen_ai.request.id"
_IDS = ("traceId", "spanId", "parentSpanId")
_BATCH = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("recorded", type=Path, help="the folder that record_vllm wrote")
    parser.add_argument("out", type=Path, help="the folder for the fixtures")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found = sorted(args.recorded.glob("*.phases.json"))
    if not found:
        print(f"trim: {args.recorded}: no recordings; run record_vllm first", file=sys.stderr)
        return 1
    for path in found:
        run = path.name.removesuffix(".phases.json")
        for name, begin_s, end_s in _stretches(json.loads(path.read_text())):
            spans = list(_spans(args.recorded / f"{run}.otlp.jsonl", begin_s, end_s))
            _write(args.out / f"vllm_{run}_{name}.otlp.jsonl.gz", _messages(spans))
            scrapes = _scrapes(args.recorded / f"{run}.prom", begin_s, end_s)
            _write(args.out / f"vllm_{run}_{name}.prom.gz", scrapes)
            print(f"{run} {name}: {len(spans)} spans, {end_s - begin_s:.0f} s", flush=True)
    return 0


def _stretches(phases: list[dict[str, Any]]) -> Iterator[tuple[str, float, float]]:
    """Each sound phase by itself, and each fault with the sound phase before it."""
    for before, phase in pairwise(phases):
        if not phase["label"]:
            yield f"sound_{phases.index(phase)}", phase["begin_s"], phase["end_s"]
        elif not before["label"]:
            yield phase["label"], before["begin_s"], phase["end_s"]


def _spans(path: Path, begin_s: float, end_s: float) -> Iterator[dict[str, Any]]:
    """Requests that came in this time, by numbers instead of ids."""
    found = [
        span
        for line in path.read_text().splitlines()
        for group in json.loads(line)["resourceSpans"]
        for scope in group["scopeSpans"]
        for span in scope["spans"]
        if span["name"] == SPAN and begin_s <= int(span["startTimeUnixNano"]) / 1e9 < end_s
    ]
    for number, span in enumerate(sorted(found, key=lambda one: int(one["startTimeUnixNano"])), 1):
        for name in _IDS:
            span.pop(name, None)
        span["traceId"], span["spanId"] = f"{number:032x}", f"{number:016x}"
        span["attributes"] = [one for one in span["attributes"] if one["key"] != _ID]
        yield span


def _messages(spans: list[dict[str, Any]]) -> Iterator[str]:
    for first in range(0, len(spans), _BATCH):
        scope = {"scope": {"name": "vllm.llm_engine"}, "spans": spans[first : first + _BATCH]}
        yield json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [scope]}]})


def _scrapes(path: Path, begin_s: float, end_s: float) -> Iterator[str]:
    """Each line that is read, with the labels that matter."""
    is_within = False
    for line in path.read_text().splitlines():
        if line.startswith(MARK):
            is_within = begin_s <= float(line.removeprefix(MARK)) < end_s
            if is_within:
                yield line
            continue
        sample = sample_of(line, PREFIX, is_needed) if is_within else None
        if sample is not None:
            labels = ",".join(f'{key}="{sample.labels[key]}"' for key in _LABELS
                              if key in sample.labels)  # fmt: skip
            yield f"{PREFIX}{sample.name}{{{labels}}} {sample.value}"


def _write(path: Path, lines: Iterator[str]) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    sys.exit(main())
