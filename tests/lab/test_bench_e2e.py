"""`phasescope bench` against a real phasescope server of random weights."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from lab.load.plot import knee_text, sweep_html
from lab.load.report import render, render_sweep
from lab.load.result import BenchResult, CacheState, ErrorKind
from lab.load.run import run_bench
from lab.load.spec import (
    BenchSpec,
    ClassSpec,
    Fixed,
    Interval,
    Poisson,
    SharedPrefix,
    Slo,
    Users,
)
from lab.load.sweep import SweepResult
from service.cli.main import main
from service.cli.outputs import require_writable
from tests.support.servers.server import Server, eventually, spawn

KEY = "bench-key"


@pytest.fixture(scope="module")
def live() -> Iterator[Server]:
    """Four slots and a short queue, so that it can be overloaded; a key, so that it is used."""
    flags = ("--max-num-seqs", "4", "--queue-limit", "8", "--api-key", KEY)
    with Server("--model", "dummy:tiny", *flags) as running:
        running.client.headers["authorization"] = f"Bearer {KEY}"
        yield running
        eventually(running.is_empty, "an empty engine after the tests")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHASESCOPE_API_KEY", KEY)


def bench(*args: str) -> int:
    return main(["bench", *args])


def shown(rendered: Any) -> str:
    console = Console(width=120, file=io.StringIO())
    console.print(rendered)
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


def test_two_classes_at_once_and_the_table_says_what_the_json_says(
    live: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    code = bench(
        live.url, "--class", "steady:users=2,lengths=12/3,requests=6,itl_ms=60000",
        "--class", "inject:interval_s=0.1,lengths=200/2,requests=4,ttft_ms=60000",
        "--json", str(path),
    )  # fmt: skip

    result = msgspec.json.decode(path.read_bytes(), type=BenchResult)
    steady, inject = result.classes
    assert code == 0
    assert (steady.ok, inject.ok, result.total.ok) == (6, 4, 10)
    assert steady.prompt_seen == steady.prompt_asked
    assert steady.output_seen == steady.output_asked
    assert (inject.prompt_seen.mean if inject.prompt_seen else 0) == 200
    assert steady.offered_per_s is None
    assert inject.offered_per_s == pytest.approx(10)
    assert steady.slo_attained == 1.0
    assert result.total.chunk_tokens == 26
    assert steady.cache is CacheState.COLD
    assert result.server.model == "dummy:tiny"
    assert capsys.readouterr().out == shown(render(result))
    assert KEY not in path.read_text()


def test_an_open_loop_counts_what_comes_after_its_warm_up(live: Server) -> None:
    spec = BenchSpec(
        url=live.url,
        api_key=KEY,
        classes=(ClassSpec(lengths=Fixed(16, 4)),),
        arrivals=Poisson(20.0),
        requests=12,
        warmup_requests=4,
    )
    result = run_bench(spec)

    assert (result.total.ok, result.warmup_requests, result.partial) == (12, 4, False)
    for latency, count in ((result.total.ttft, 12), (result.total.e2e, 12)):
        assert latency is not None
        assert latency.count == count
        assert latency.p50_ms <= latency.p90_ms <= latency.p99_ms <= latency.max_ms


def test_a_shared_prefix_warms_the_cache_and_unique_prompts_do_not(live: Server) -> None:
    lengths = (SharedPrefix(64, 16, 2), Fixed(80, 2))
    warm, cold = (
        run_bench(
            BenchSpec(
                url=live.url,
                api_key=KEY,
                classes=(ClassSpec(lengths=one),),
                arrivals=Users(1),
                requests=5,
            )
        ).total
        for one in lengths
    )

    assert (warm.cache, warm.cached_tokens) == (CacheState.WARM, 4 * 64)
    assert (cold.cache, cold.cached_tokens) == (CacheState.COLD, 0)


def test_text_prompts_through_the_chat_route(
    live: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The template of the server adds its own tokens: what was asked and seen is both shown."""
    code = bench(
        live.url, "--endpoint", "chat", "--prompt-form", "text", "--tokenizer", "dummy:tiny",
        "--users", "1", "--requests", "2", "--lengths", "40/3",
    )  # fmt: skip

    assert code == 0
    assert re.search(r"prompt tokens requested 40, reported [56]\d", capsys.readouterr().out)


def test_overload_is_rejected_and_shows_in_goodput(live: Server) -> None:
    """Thirty at once for four slots and a queue of eight: the rest is a 429, counted as offered
    but not as good."""
    spec = BenchSpec(
        url=live.url,
        api_key=KEY,
        classes=(ClassSpec(lengths=Fixed(16, 200), slo=Slo(e2e_ms=600_000)),),
        arrivals=Interval(0.05, burst=30),
        requests=30,
    )
    result = run_bench(spec)

    total = result.total
    (refused,) = total.errors
    assert (refused.kind, refused.status) == (ErrorKind.STATUS, 429)
    assert total.ok + refused.count == 30
    assert total.slo_attained == total.ok / 30
    assert total.goodput.requests_per_s == pytest.approx(total.ok / result.window_s)
    assert total.goodput.output_tokens_per_s == pytest.approx(200 * total.ok / result.window_s)


def test_a_sweep_finds_a_knee_and_draws_it(
    live: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four slots and a queue of eight: eight users find room, sixteen do not."""
    page, path = tmp_path / "sweep.html", tmp_path / "sweep.json"
    code = bench(
        "sweep", "--over", "users", "--lengths", "8/200", "--slo", "e2e_ms=60000", live.url,
        "--from", "8", "--to", "32", "--bisections", "0", "--requests", "40", "--target", "0.99",
        "--html", str(page), "--json", str(path),
    )  # fmt: skip

    sweep = msgspec.json.decode(path.read_bytes(), type=SweepResult)
    assert code == 0
    assert [cell.value for cell in sweep.cells] == [8.0, 16.0]
    assert [cell.kept for cell in sweep.cells] == [True, False]
    assert (sweep.knee, sweep.bounded) == (8.0, True)
    html = page.read_text()
    assert html == sweep_html(sweep)
    assert html.count("<svg") == 3
    assert "knee 8" in html
    assert not re.search(r"<script|<link|@import|src=|url\(|https?://(?!127\.0\.0\.1)", html)
    assert shown(render_sweep(sweep)) in capsys.readouterr().out
    assert knee_text(sweep).startswith("knee: 8 users")


def test_an_interrupt_prints_what_there_is_and_says_that_it_is_partial(
    live: Server, tmp_path: Path
) -> None:
    path = tmp_path / "partial.json"
    process = spawn(
        "bench", live.url, "--users", "1", "--duration", "600", "--lengths", "8/4",
        "--json", str(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    assert b"measuring" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)

    result = json.loads(path.read_bytes())
    assert process.returncode == 130
    assert b"PARTIAL" in out
    assert (result["partial"], result["total"]["errors"]) == (True, [])
    assert result["total"]["ok"] >= 1


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--model", "nope"), "use --model"),
        (("--api-key", "wrong"), "--api-key"),
        (("--lengths", "4000/4"), "context is 2048"),
        (("--token-ids", "600:700"), "--token-ids"),
        (("--class", "nonsense"), "NAME:key=value"),
        (("--extra-body", "[1]"), "JSON object"),
        (("--extra-body", '{"nonsense": 1}'), "nonsense"),
        (("--warmup", "much"), "5s"),
        (("--json", "/nowhere/result.json"), "folder"),
        (("--json", "/"), "it is a folder"),
        (("--sweep",), "--over"),
    ],
)
def test_wrong_inputs_are_one_line_that_says_what_to_do(
    live: Server, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], word: str
) -> None:
    assert bench(live.url, "--users", "1", "--requests", "1", *args) in (1, 2)

    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert word in said[0]


def test_a_result_that_cannot_be_written_is_shown(
    live: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file beside it is written nevertheless, and the exit status says that one is missing."""
    page = tmp_path / "sweep.html"
    words = ("--users", "1", "--requests", "1", "--lengths", "8/2", "--json", "/dev/full")
    code = bench(live.url, *words)
    one = capsys.readouterr()
    swept = bench(
        live.url, "--sweep", "--over", "users", "--from", "1", "--to", "1", "--requests", "2",
        "--lengths", "8/2", "--slo", "e2e_ms=60000", "--html", str(page), "--json", "/dev/full",
    )  # fmt: skip
    several = capsys.readouterr()

    assert (code, swept) == (1, 1)
    said = "/dev/full: No space left on device; the result is only in the table"
    for shown in (one, several):
        assert shown.err.splitlines()[-1] == f"phasescope: {said}"
        assert len(shown.out.splitlines()) > 3
    assert "<svg" in page.read_text()


def test_a_folder_that_takes_no_file_is_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`sweep.html` goes into the working directory unless another file is named."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert bench("http://127.0.0.1:1", "--sweep", "--duration", "1") == 2
    said = capsys.readouterr().err
    assert said.startswith("phasescope: --html sweep.html: No such file")
    assert said.count("\n") == 1


def test_to_try_a_file_leaves_it_as_it_was(tmp_path: Path) -> None:
    old, link, new = tmp_path / "old.json", tmp_path / "link.json", tmp_path / "new.json"
    old.write_bytes(b"of the last run")
    link.symlink_to(old)
    for path in (old, link, new, Path("/dev/full"), None):
        require_writable("--json", path)

    assert old.read_bytes() == b"of the last run"
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "old.json"]


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("http://127.0.0.1:1", "--users", "1", "--requests", "1") == 1
    assert "cannot be reached" in capsys.readouterr().err
