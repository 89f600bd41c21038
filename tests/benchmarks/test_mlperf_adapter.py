"""MLPerf's LoadGen and our own numbers: definitions, logs, and a short real run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.mlperf.compare import (
    LogUnreadable,
    TracedSample,
    compare,
    join,
    loadgen_percentile,
    read_detail,
    read_folder,
    read_trace,
    reported,
)
from benchmarks.mlperf.loadgen import STAMPS_FILE, Task
from benchmarks.mlperf.samples import LEAST_OUTPUT_TOKENS, Sample, make_samples
from benchmarks.mlperf.streams import Connection, Stamps, StreamFailed, Watcher
from tests.support.servers.server import Server

MS = 1_000_000
QUERIES = 30


def detail_line(key: str, value: Any) -> str:
    entry = {"key": key, "value": value, "time_ms": 1.0, "namespace": "mlperf::logging"}
    return f":::MLLOG {json.dumps(entry)}"


def stamp(number: int, issued_ns: int) -> dict[str, Any]:
    """A request of eleven tokens: sent after 1 ms, first token after 30, last after 130."""
    return {
        "request_id": f"mlperf-{number}",
        "issued_ns": issued_ns,
        "sent_ns": issued_ns + 1 * MS,
        "first_ns": issued_ns + 30 * MS,
        "last_ns": issued_ns + 130 * MS,
        "tokens": 11,
    }


def fact(accepted_ns: int, output_tokens: int = 11) -> dict[str, Any]:
    return {
        "outcome": "finished",
        "output_tokens": output_tokens,
        "accepted_ns": accepted_ns,
        "ttft_ns": 27 * MS,
        "tpot_ns": 10 * MS,
    }


def test_a_percentile_is_the_value_at_the_rounded_down_place() -> None:
    """Of 100 values the 50th percentile is the 51st, unlike the nearest rank's 50th."""
    values = list(range(100, 0, -1))

    assert [loadgen_percentile(values, p) for p in (0.5, 0.97, 0.99)] == [51, 98, 100]
    assert loadgen_percentile([7], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        loadgen_percentile([], 0.5)


def test_the_detail_log_gives_both_metrics_and_says_what_it_lacks() -> None:
    text = "\n".join(
        [
            "a line of something else",
            detail_line("result_first_token_97.00_percentile_latency_ns", 5 * MS),
            detail_line("result_time_per_output_token_97.00_percentile_ns", 2 * MS),
        ]
    )
    detail = read_detail(text)

    assert (reported(detail, 0.97).ttft_ns, reported(detail, 0.97).tpot_ns) == (5 * MS, 2 * MS)
    with pytest.raises(LogUnreadable, match=r"lacks result_first_token_50\.00"):
        reported(detail, 0.50)
    with pytest.raises(LogUnreadable, match="no line"):
        read_detail("nothing of ours\n")


def test_the_trace_gives_queries_in_the_order_of_their_issue() -> None:
    def line(sequence: int, issue_ns: int) -> str:
        args = {"sample_seq": sequence, "issue_start_ns": issue_ns, "complete_ns": 9 * MS}
        return json.dumps({"name": "Sample", "ph": "b", "args": args}) + ","

    text = "\n".join(['{"traceEvents":[', line(1, 20), '{"name":"Wait"},', line(0, 10), "]}"])

    assert read_trace(text) == [TracedSample(0, 10, 9 * MS), TracedSample(1, 20, 9 * MS)]


def test_all_three_sides_are_brought_to_loadgens_definition() -> None:
    """LoadGen's delay of 2 ms belongs to every TTFT, and the server's value lacks what comes
    before it was asked."""
    requests = join(
        [stamp(0, 500 * MS)], [TracedSample(0, 2 * MS, 0)], {"mlperf-0": fact(502 * MS)}
    )
    names = ("50.00", "90.00", "97.00", "99.00")
    detail = {f"result_first_token_{p}_percentile_latency_ns": 32 * MS for p in names}
    detail |= {f"result_time_per_output_token_{p}_percentile_ns": 10 * MS for p in names}
    ttft, tpot = compare(detail, requests)[0], compare(detail, requests)[4]

    assert (ttft.client_ns, ttft.server_ns, ttft.stated_ns) == (32 * MS, 30 * MS, 27 * MS)
    assert (ttft.client_difference, ttft.server_difference) == (0.0, -2 / 32)
    assert (tpot.metric, tpot.client_ns, tpot.server_ns, tpot.worst) == (
        "tpot",
        10 * MS,
        10 * MS,
        0,
    )
    assert sum(requests[0].parts_ns.values()) == ttft.client_ns


def test_a_side_that_counts_other_tokens_or_queries_is_an_error() -> None:
    stamps, trace = [stamp(0, 0)], [TracedSample(0, 0, 0)]

    with pytest.raises(LogUnreadable, match="10 tokens, the client 11"):
        join(stamps, trace, {"mlperf-0": fact(0, output_tokens=10)})
    with pytest.raises(LogUnreadable, match="has 0 queries, the adapter sent 1"):
        join(stamps, [], {})


def test_samples_keep_to_the_context_and_are_the_same_for_a_seed() -> None:
    samples = make_samples(200, scale=1.0, most_tokens=512, vocab=512, seed=3)
    lengths = [len(sample.prompt) + sample.output_tokens for sample in samples]

    assert samples == make_samples(200, scale=1.0, most_tokens=512, vocab=512, seed=3)
    assert max(lengths) == 512
    assert min(sample.output_tokens for sample in samples) >= LEAST_OUTPUT_TOKENS
    assert len(set(lengths)) > 100


def feed(pieces: list[bytes]) -> tuple[list[str], Stamps]:
    """What a watcher hears when a connection reads `pieces`."""
    heard: list[str] = []

    def failed(error: StreamFailed) -> None:
        heard.append(f"failed: {error}")

    class Nowhere(asyncio.Transport):
        def write(self, data: Any) -> None: ...
        def close(self) -> None: ...

    connection = Connection()
    connection.connection_made(Nowhere())
    watcher = Watcher(
        lambda: heard.append("first"), lambda: heard.append("last"),
        lambda: heard.append("ended"), failed,
    )  # fmt: skip
    connection.send(b"{}", Stamps("r", 0), watcher)
    for piece in pieces:
        connection.data_received(piece)
    connection.connection_lost(None)
    return heard, connection.stamps


def answer(events: list[bytes]) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    bodies = [b"data: " + event + b"\n\n" for event in events]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(b), b) for b in bodies) + b"0\r\n\r\n"


TOKEN = b'{"choices":[{"text":"a","logprobs":{"tokens":["a"]},"finish_reason":null}]}'
LAST = b'{"choices":[{"text":"b","logprobs":{"tokens":["b"]},"finish_reason":"length"}]}'
USAGE = b'{"choices":[],"usage":{"completion_tokens":3}}'


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_first_and_last_token_are_told_once_however_the_bytes_are_cut(size: int) -> None:
    whole = answer([TOKEN, TOKEN, LAST, USAGE, b"[DONE]"])
    heard, stamps = feed([whole[i : i + size] for i in range(0, len(whole), size)])

    assert heard == ["first", "last", "ended"]
    assert stamps.tokens == 3
    assert stamps.sent_ns <= stamps.first_ns <= stamps.last_ns


def test_a_stream_that_breaks_off_is_a_failure_and_never_a_sample() -> None:
    cut, _ = feed([answer([TOKEN])[:-5]])
    refused, _ = feed([b"HTTP/1.1 429 Busy\r\ncontent-length: 4\r\n\r\nfull"])

    assert cut == ["first", "failed: request r: the connection ended early (closed)"]
    assert refused == ["failed: request r: the server answered 429: full"]


@pytest.fixture(scope="module")
def tiny() -> Iterator[Server]:
    """A server for LoadGen, where LoadGen is installed."""
    pytest.importorskip("mlperf_loadgen", reason="mlcommons-loadgen is missing: see [dev]")
    with Server("--model", "dummy:tiny", "--no-prefix-cache", "--threads", "1") as running:
        yield running


def run_adapter(
    server: Server, samples: list[Sample], folder: Path
) -> subprocess.CompletedProcess[str]:
    """LoadGen's process, a few seconds of load."""
    task = Task(
        port=server.port, samples=samples, rate_per_s=10.0, min_duration_s=2.0,
        min_queries=QUERIES, ttft_ms=2000, tpot_ms=200, seed=1, folder=str(folder),
    )  # fmt: skip
    path = folder / "task.json"
    path.write_bytes(msgspec.json.encode(task))
    command = [sys.executable, "-m", "benchmarks.mlperf.loadgen", str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_loadgen_drives_a_server_and_its_percentiles_are_ours(tiny: Server, tmp_path: Path) -> None:
    """LoadGen's logged percentiles are exactly what our rule gives for its own trace, and both
    sides saw the same requests with the same tokens."""
    samples = make_samples(64, scale=0.1, most_tokens=256, vocab=512)
    ended = run_adapter(tiny, samples, tmp_path)
    assert ended.returncode == 0, ended.stderr
    stamps = msgspec.json.decode((tmp_path / STAMPS_FILE).read_bytes())
    facts = {s["request_id"]: tiny.facts_of(s["request_id"]) for s in stamps}
    detail, trace = read_folder(tmp_path)
    requests = join(stamps, trace, facts)
    whole = [traced.complete_ns for traced in trace]

    assert len(requests) == detail["result_query_count"] >= QUERIES
    assert detail["num_errors"] == 0
    assert detail["result_97.00_percentile_latency_ns"] == loadgen_percentile(whole, 0.97)
    # a fast server's first and last token may come in one read
    assert all(r.sent_ns <= r.accepted_ns < r.first_ns <= r.last_ns for r in requests)
    assert any(r.first_ns < r.last_ns for r in requests)
    for row in compare(detail, requests)[:4]:
        # what is told to LoadGen is told after it was stamped
        assert (row.metric, row.client_ns <= row.loadgen_ns) == ("ttft", True)


def test_a_refused_request_ends_the_run_with_one_line(tiny: Server, tmp_path: Path) -> None:
    """LoadGen would wait for ever for a query that nobody completes."""
    samples = make_samples(8, scale=0.1, most_tokens=256, vocab=512)
    wrong = [Sample([9999], sample.output_tokens) for sample in samples]
    ended = run_adapter(tiny, wrong, tmp_path)

    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "the server answered 400" in ended.stderr
