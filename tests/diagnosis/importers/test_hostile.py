"""Files and servers that are made to hurt: a diagnosis or the typed error, after bounded work."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from diagnosis.importers.formats.vllm_otlp import SPAN
from diagnosis.importers.kinds import Kind
from diagnosis.importers.reading import NotImportable, Tally, lines
from diagnosis.importers.registry import diagnose_vllm
from telemetry.facts.clock import ManualClock
from tests.diagnosis.importers.test_cli import serving
from tests.diagnosis.importers.written import diagnose, read, silent, trt_iteration, write

MIB = 1 << 20
LONG = "a" * 20_000
SCRAPE = "# HELP x y\nvllm:num_requests_running 1\nvllm:generation_tokens_total 5\n"


def test_a_sample_of_some_kib_is_not_parsed(tmp_path: Path) -> None:
    """Its labels might be anything. The one beside it is read."""
    path = tmp_path / "scrapes.prom"
    path.write_text(
        f"# scrape 1\nvllm:num_requests_waiting{{{LONG}}} 1\nvllm:num_requests_running 1\n"
    )
    tally = Tally()

    record = read(Kind.VLLM_METRICS, path, tally)

    assert (record.count, tally.unread) == (1, 1)
    assert "KiB" in tally.first_unread


def test_labels_of_a_metric_that_is_not_needed_are_not_read(tmp_path: Path) -> None:
    """However many there are, and whatever is in them, it is as if it were not there."""
    path = tmp_path / "scrapes.prom"
    path.write_text(f"# scrape 1\nvllm:cache_config_info{{{LONG}\nvllm:num_requests_running 1\n")
    tally = Tally()

    assert read(Kind.VLLM_METRICS, path, tally).count == 1
    assert (tally.unread, tally.skipped) == (0, 0)


@pytest.mark.parametrize("labels", ["a" * 5000, 'a="\\"' * 1000, "a " * 2000, 'a="b"c="d"'])
def test_what_is_no_label_is_a_sample_that_is_not_read(labels: str, tmp_path: Path) -> None:
    path = tmp_path / "scrapes.prom"
    path.write_text(
        f"# scrape 1\nvllm:num_requests_waiting{{{labels}}} 1\nvllm:num_requests_running 1\n"
    )
    tally = Tally()

    assert read(Kind.VLLM_METRICS, path, tally).count == 1
    assert tally.unread == 1


def test_a_server_that_answers_with_such_a_sample_is_judged_by_the_rest() -> None:
    clock = ManualClock(1)
    scrape = f"{SCRAPE}vllm:num_requests_waiting{{{LONG}}} 1\n"

    with serving([scrape, scrape]) as url:
        found = diagnose_vllm(url, 1, silent, clock, clock.advance)

    assert (found.records, found.unread) == (2, 2)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("place", [12, 200])
def test_a_gzip_file_that_is_damaged_is_the_typed_error(
    kind: Kind, place: int, tmp_path: Path
) -> None:
    """Wherever the damage is: in the head that says which format it is, or behind."""
    text = b"".join(b'{"data": [%d]}\n' % number for number in range(5000))
    damaged = bytearray(gzip.compress(text, mtime=0))
    damaged[place : place + 40] = b"\xff" * 40
    path = tmp_path / "file.gz"
    path.write_bytes(damaged)

    with pytest.raises(NotImportable, match=r"file\.gz"):
        diagnose(kind, path)


def test_a_tag_of_jaeger_with_hundreds_of_digits_is_no_number(tmp_path: Path) -> None:
    """The span is read without it."""
    tag = {"key": "gen_ai.usage.prompt_tokens", "type": "int64", "value": 10**400}
    span = {"operationName": SPAN, "startTime": 1, "tags": [tag]}
    path = write(tmp_path / "jaeger.json", [{"data": [{"spans": [span]}]}])
    tally = Tally()

    record = read(Kind.VLLM_OTLP, path, tally)

    assert (record.count, tally.unread) == (1, 0)


def test_blocks_with_hundreds_of_digits_are_an_iteration_that_is_not_read(tmp_path: Path) -> None:
    line = trt_iteration(12, 10)
    huge = json.loads(json.dumps(line))
    huge["kvCacheStats"]["usedNumBlocks"] = 10**400
    tally = Tally()

    record = read(Kind.TRTLLM_METRICS, write(tmp_path / "m.jsonl", [line, huge]), tally)

    assert (record.count, tally.unread) == (1, 1)


def test_a_line_without_an_end_counts_towards_the_bound_on_all_text(tmp_path: Path) -> None:
    """A small gzip file can hold any number of bytes without a line break."""
    path = tmp_path / "endless.gz"
    path.write_bytes(gzip.compress(bytes(48 * MIB), 1, mtime=0))

    with pytest.raises(NotImportable, match="GiB of text"):
        list(lines([path], Tally(), silent, most_bytes=32 * MIB))
