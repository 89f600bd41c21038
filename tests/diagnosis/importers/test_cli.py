"""`phasescope diagnose --from KIND`: text, JSON, exit status; and a server that is watched."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from diagnosis.importers.reading import NotImportable
from diagnosis.importers.registry import diagnose_vllm
from diagnosis.symptoms import Symptom
from service.cli.main import main
from telemetry.facts.clock import ManualClock
from tests.diagnosis.importers.written import RECORDED, sglang_request, silent, write

THRASH = str(RECORDED / "vllm_blocks_kv_thrash.prom.gz")


def diagnose(*words: str) -> int:
    return main(["diagnose", "--from", *words])


def test_text_says_the_finding_and_each_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose("vllm-metrics", THRASH) == 0

    said = capsys.readouterr().out
    assert "kv_thrash (counted)" in said
    assert "runbooks/kv_thrash.md" in said
    for symptom in Symptom:
        assert f"{symptom.value}: " in said
    assert "no; needs clocks, power and quota" in said


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose("vllm-metrics", THRASH, "--json") == 0

    said = json.loads(capsys.readouterr().out)
    assert {one["symptom"] for one in said["findings"]} == {"kv_exhaustion", "kv_thrash"}
    assert [one["symptom"] for one in said["causes"]] == [one.value for one in Symptom]


def test_several_files_are_one_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As SGLang writes one an hour."""
    paths = [
        write(tmp_path / f"r{hour}.log", [sglang_request(hour * 3600 + at) for at in range(20)])
        for hour in range(2)
    ]

    assert diagnose("sglang-requests", *map(str, paths)) == 0
    assert "40 requests" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["vllm-otlp", "nowhere.jsonl"], 1, "No such file"),
        (["vllm-otlp"], 2, "needs the files"),
        (["vllm-otlp", "http://127.0.0.1:1"], 2, "only --from vllm-metrics reads a URL"),
        (["vllm-metrics", THRASH, "--root"], 2, "--root needs a record of phasescope"),
        (["vllm-metrics", THRASH, "--window", "60:20"], 2, "give both or neither"),
        (["vllm-metrics", "http://127.0.0.1:1", "--seconds", "0"], 2, "above 0"),
        (["vllm-metrics", "http://127.0.0.1:1"], 1, "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diagnose(*words) == status

    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@contextmanager
def serving(scrapes: list[str]) -> Iterator[str]:
    """A server that answers with one scrape after another."""
    left = iter(scrapes)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = next(left, None)
            self.send_response(503 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_server_is_watched_for_the_time_that_was_asked_for() -> None:
    """Every second; its answers say what a file of them says."""
    text = gzip.decompress(Path(THRASH).read_bytes()).decode()
    scrapes = [f"# HELP x y\n{one}" for one in text.split("# scrape ")[1:]]
    clock, told = ManualClock(1), []

    with serving(scrapes) as url:
        found = diagnose_vllm(url, len(scrapes) - 1.0, told.append, clock, clock.advance)

    assert found.records == len(scrapes)
    assert Symptom.KV_THRASH in {one.symptom for one in found.findings}
    assert f"of {len(scrapes) - 1} s" in told[0]


def test_scrapes_that_fail_are_counted() -> None:
    metrics = "# HELP x y\nvllm:num_requests_running 1\nvllm:generation_tokens_total 5\n"
    clock = ManualClock(1)

    with serving([metrics, metrics]) as url:
        found = diagnose_vllm(url, 4, silent, clock, clock.advance)

    assert (found.records, found.unread) == (2, 3)


@pytest.mark.parametrize("text", ["hello", "# HELP x y\nother:metric 1\n"])
def test_another_server_is_refused(text: str) -> None:
    clock = ManualClock(1)

    with serving([text]) as url, pytest.raises(NotImportable, match="answers"):
        diagnose_vllm(url, 4, silent, clock, clock.advance)
