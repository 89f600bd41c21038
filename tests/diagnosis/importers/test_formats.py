"""Each documented format becomes requests or steps; what cannot be read is counted, and texts are
never kept."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from diagnosis.importers.kinds import KINDS, Kind, Seen
from diagnosis.importers.quantities import Imported as Q
from diagnosis.importers.reading import NotImportable, Tally
from tests.diagnosis.importers.written import (
    Line,
    diagnose,
    dynamo_request,
    forward_pass,
    llama_answer,
    read,
    sglang_request,
    trt_iteration,
    write,
)

WRITTEN: dict[Kind, list[Line]] = {
    Kind.DYNAMO_FPM: [forward_pass(number, 20 * number, 20) for number in range(100)],
    Kind.DYNAMO_TRACE: [dynamo_request(500 * number) for number in range(60)],
    Kind.SGLANG_REQUESTS: [sglang_request(0.5 * number) for number in range(60)],
    Kind.LLAMACPP_TIMINGS: [llama_answer() for _ in range(60)],
    Kind.TRTLLM_METRICS: [trt_iteration(12, 10) for _ in range(100)],
}
DOCUMENTED = list(WRITTEN.items())


@pytest.mark.parametrize(("kind", "lines"), DOCUMENTED)
def test_a_full_record_holds_what_its_kind_promises(
    kind: Kind, lines: list[Line], tmp_path: Path
) -> None:
    tally = Tally()
    record = read(kind, write(tmp_path / "record.jsonl.gz", lines), tally)

    assert (record.count, tally.unread) == (len(lines), 0)
    assert record.seen == KINDS[kind].seen


@pytest.mark.parametrize(("kind", "lines"), DOCUMENTED)
def test_a_steady_record_has_nothing_to_find(kind: Kind, lines: list[Line], tmp_path: Path) -> None:
    found = diagnose(kind, write(tmp_path / "record.jsonl", lines))

    assert not found.findings
    assert not found.undecided
    assert found.verdict in ("nothing_found", "abstains")


@pytest.mark.parametrize(("kind", "lines"), DOCUMENTED)
def test_lines_that_cannot_be_read_are_counted(
    kind: Kind, lines: list[Line], tmp_path: Path
) -> None:
    path = write(tmp_path / "record.jsonl", lines)
    path.write_bytes(b'{"half\n' + path.read_bytes() + b"\xff\xfe\n[1, 2\n")

    found = diagnose(kind, path)

    assert (found.records, found.unread) == (len(lines), 3)
    assert any("3 of" in note for note in found.notes)


@pytest.mark.parametrize(("kind", "lines"), DOCUMENTED)
def test_no_text_of_a_request_is_in_what_is_said(
    kind: Kind, lines: list[Line], tmp_path: Path
) -> None:
    found = diagnose(kind, write(tmp_path / "record.jsonl", lines))

    assert b"secret" not in msgspec.json.encode(found)


def test_the_envelope_of_a_dynamo_file_is_optional(tmp_path: Path) -> None:
    """Its documentation takes it off with jq."""
    bare = [line["event"] for line in WRITTEN[Kind.DYNAMO_FPM]]
    packed = [{"timestamp": 5, "event": line} for line in WRITTEN[Kind.DYNAMO_TRACE]]

    steps = read(Kind.DYNAMO_FPM, write(tmp_path / "fpm.jsonl", bare))
    requests = read(Kind.DYNAMO_TRACE, write(tmp_path / "trace.jsonl", packed))

    assert (steps.count, requests.count) == (100, 60)


def test_compact_dynamo_rows_have_no_times_and_say_so(tmp_path: Path) -> None:
    """Rows without a session hold lengths alone: nothing can be late in them."""
    lines = []
    for number in range(40):
        line = dynamo_request(500 * number)
        kept = ("request_id", "request_received_ms", "output_tokens")
        line["request"] = {name: line["request"][name] for name in kept}
        line["request"]["replay"] = {"trace_block_size": 64, "input_length": 128}
        lines.append(line)

    found = diagnose(Kind.DYNAMO_TRACE, write(tmp_path / "trace.jsonl", lines))

    assert not found.findings
    assert all(one.certainty is None for one in found.causes)
    assert any(Seen.QUEUE_TIME.value in note for note in found.notes)


def test_dynamo_tool_and_payload_records_are_passed_over(tmp_path: Path) -> None:
    tool = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {}}
    lines = [*WRITTEN[Kind.DYNAMO_TRACE], tool]

    found = diagnose(Kind.DYNAMO_TRACE, write(tmp_path / "trace.jsonl", lines))

    assert (found.records, found.skipped, found.unread) == (60, 1, 0)


def test_the_last_piece_of_a_saved_llama_stream_counts(tmp_path: Path) -> None:
    """With `timings_per_token` every piece has timings."""
    piece = llama_answer()
    piece["choices"] = [{"finish_reason": None, "index": 0, "delta": {"content": "x"}}]
    stream = [piece, llama_answer(), llama_answer()]
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in stream) + "data: [DONE]\n"
    path = tmp_path / "stream.txt"
    path.write_text(text)
    tally = Tally()

    record = read(Kind.LLAMACPP_TIMINGS, path, tally)

    assert (record.count, tally.skipped, tally.unread) == (2, 1, 0)


def test_an_indented_answer_of_trtllm_is_one_array(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(WRITTEN[Kind.TRTLLM_METRICS], indent=1))
    tally = Tally()

    record = read(Kind.TRTLLM_METRICS, path, tally)

    assert (record.count, tally.unread) == (100, 0)


def test_times_of_requests_are_taken_apart(tmp_path: Path) -> None:
    """Front end, queue, prefill and tokens of SGLang add up to what it says of the whole."""
    line = sglang_request(0, front_s=0.01, queue_s=0.2, prefill_s=0.3, token_s=0.02)
    record = read(Kind.SGLANG_REQUESTS, write(tmp_path / "r.log", [line, line]))

    measured = record.measure([record.span])

    assert measured[Q.FRONT_EACH] == pytest.approx(10, abs=0.01)
    assert measured[Q.QUEUE_EACH] == pytest.approx(200)
    assert measured[Q.PREFILL_EACH] == pytest.approx(300, abs=0.01)
    assert measured[Q.TOKEN_EACH] == pytest.approx(20, abs=0.01)
    assert measured[Q.HIT_SHARE] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("kind", "text", "advice"),
    [
        (Kind.VLLM_METRICS, "vllm:num_requests_running 1\n", "# scrape"),
        (Kind.VLLM_METRICS, "# scrape 5\nother:metric 1\n", "docs/importers.md"),
        (Kind.SGLANG_REQUESTS, '{"id": "x", "prompt_tokens": 5}\n', "--enable-metrics"),
        (Kind.DYNAMO_FPM, '{"schema": "dynamo.request.trace.v1"}\n', "dynamo.fpm.trace.v1"),
        (Kind.VLLM_OTLP, "", "docs/importers.md"),
        (Kind.LLAMACPP_TIMINGS, "{}\n", "docs/importers.md"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_advice(
    kind: Kind, text: str, advice: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text(text)

    with pytest.raises(NotImportable, match=advice):
        diagnose(kind, path)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_missing_file_is_one_clear_line(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(NotImportable, match="No such file"):
        diagnose(kind, tmp_path / "nowhere")


def test_a_gzip_file_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """As of a worker that was killed."""
    lines: Iterable[Line] = (forward_pass(number, 20 * number, 20 + number % 7)
                             for number in range(4000))  # fmt: skip
    path = write(tmp_path / "fpm.jsonl.gz", lines)
    path.write_bytes(path.read_bytes()[:-2000])
    tally = Tally()

    record = read(Kind.DYNAMO_FPM, path, tally)

    assert 0 < record.count < 4000
    assert tally.unread
