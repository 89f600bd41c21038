"""The flight recorder of a real server: dumps while things go wrong, the same numbers offline."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from service.cli.main import main
from telemetry.facts.engine_records import EngineStarted, StepRecorded
from telemetry.facts.records import EngineDied, Fact, RequestEnded, StallDetected
from telemetry.journal.journal_reader import Journal, open_journal
from telemetry.journal.replay import Replay
from telemetry.stats.histogram_report import TOTAL, distributions, report
from tests.support.servers.newcomers import metric
from tests.support.servers.perfetto_check import Trace, checked
from tests.support.servers.server import Server, eventually

SMALL = ("--model", "dummy:tiny", "--max-num-seqs", "8", "--max-batched-tokens", "64")


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    return tmp_path / "dumps"


@dataclass(frozen=True)
class Lived:
    """A server that has had mixed traffic, the ids of the requests, and where its dumps are."""

    server: Server
    ids: list[str]
    dumps: Path


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    folder = tmp_path_factory.mktemp("dumps")
    with Server(*SMALL, "--dump-dir", str(folder)) as running:
        yield Lived(running, mixed_traffic(running), folder)


@pytest.fixture
def recorded(dumps: Path) -> Iterator[Server]:
    with Server(*SMALL, "--dump-dir", str(dumps), "--stall-seconds", "1") as running:
        yield running


def stream(server: Server, request_id: str, **body: Any) -> threading.Thread:
    """A client on a thread; whatever ends its stream ends it."""

    def run() -> None:
        given = {"prompt": "a b c", "max_tokens": 400, "stream": True, "ignore_eos": True, **body}
        try:
            with httpx.stream(
                "POST",
                f"{server.url}/v1/completions",
                json=given,
                headers={"x-request-id": request_id},
                timeout=60,
            ) as answer:
                for _ in answer.iter_lines():
                    pass
        except httpx.HTTPError:
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def mixed_traffic(server: Server) -> list[str]:
    """Streams, whole answers, two choices, grammars, refusals, cancels, long prompts."""
    ids = [f"stream-{index}" for index in range(12)]
    streams = [
        stream(server, request_id, max_tokens=20 + 7 * index, prompt="x y " * (1 + index * 9))
        for index, request_id in enumerate(ids)
    ]
    doomed = [stream(server, f"doomed-{index}", max_tokens=1500) for index in range(3)]
    for body in (
        {"max_tokens": 12, "n": 2},
        {"max_tokens": 8, "prompt": "long " * 120},
        {"max_tokens": 0},
        {"max_tokens": 12, "prompt": "a" * 9000},
        {"max_tokens": 16, "extra_body": 1},
    ):
        name = f"whole-{len(ids)}"
        ids.append(name)
        body.setdefault("prompt", "tell me")
        server.client.post("/v1/completions", json=body, headers={"x-request-id": name})
    for index in range(len(doomed)):
        cancel(server, f"doomed-{index}")
        ids.append(f"doomed-{index}")
    for thread in (*streams, *doomed):
        thread.join(60)
    eventually(server.is_empty, "an empty engine")
    return ids


def cancel(server: Server, request_id: str) -> None:
    def is_deleted() -> bool:
        return server.client.delete(f"/v1/requests/{request_id}").status_code == 200

    eventually(is_deleted, f"a cancel of {request_id}")


def fetched(server: Server, folder: Path) -> Journal:
    path = folder / "fetched.journal"
    answer = server.client.get("/debug/journal")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/vnd.phasescope.journal"
    path.write_bytes(answer.content)
    return open_journal(path)


def facts_in(folder: Path, reason: str) -> list[Fact]:
    (path,) = folder.glob(f"*-{reason}.journal")
    return list(open_journal(path).facts())


def dumped(folder: Path, reason: str) -> Path | None:
    return next(iter(folder.glob(f"*-{reason}.journal")), None)


def test_a_journal_that_is_read_back_gives_the_answers_of_the_server(
    lived: Lived, tmp_path: Path
) -> None:
    """Every histogram of every class and every answer of /debug/requests, to the byte."""
    recorded, ids = lived.server, lived.ids
    live_histograms = recorded.client.get("/debug/histograms").json()
    live = {name: recorded.client.get(f"/debug/requests/{name}").content for name in ids}
    live_snapshot = recorded.snapshot()
    replay = Replay(fetched(recorded, tmp_path))
    snapshot = replay.window.snapshot(live_snapshot["at_ns"])
    at_ns = live_histograms["at_ns"]
    offline = report(distributions(replay.histograms, TOTAL, at_ns), TOTAL, at_ns)

    assert len(live_histograms["histograms"]) > 10
    assert msgspec.json.decode(msgspec.json.encode(offline)) == live_histograms
    answers = {name: replay.request(name) for name in ids}
    assert answers == live
    outcomes = {json.loads(body)["outcome"] for body in live.values()}
    assert outcomes >= {"finished", "cancelled", "rejected"}
    for counter in ("steps_total", "output_tokens_total", "requests_total", "totals"):
        found = getattr(snapshot, counter)
        plain = found if isinstance(found, int | dict) else vars_of(found)
        assert plain == live_snapshot[counter], counter


def vars_of(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def test_a_real_run_becomes_a_valid_trace(lived: Lived, tmp_path: Path) -> None:
    """From the server's URL, as the command does it."""
    out, url = tmp_path / "run.json.gz", lived.server.url
    command = [sys.executable, "-m", "service.cli.main", "timeline", url, "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    trace = checked(out)
    assert "open it at ui.perfetto.dev" in done.stdout
    assert {"stream-0", "stream-11", "doomed-1"} <= names_of(trace, "request")
    assert {"plan", "forward", "sample", "commit"} <= names_of(trace, "step.part")


def names_of(trace: Trace, category: str) -> set[str]:
    return {piece["name"] for piece in trace.phase("X") if piece["cat"] == category}


def test_a_stopped_engine_is_detected_and_dumped_within_a_second(
    recorded: Server, dumps: Path
) -> None:
    """SIGSTOP: the watchdog detects it, a dump is written; /ready fails, and recovers."""
    thread = stream(recorded, "stuck", max_tokens=1900)
    eventually(lambda: recorded.snapshot()["output_tokens_total"] > 5, "some tokens")
    pid = recorded.snapshot()["engine_pid"]
    os.kill(pid, signal.SIGSTOP)
    late = stream(recorded, "late", max_tokens=4)  # work, should "stuck" have ended
    try:
        answer = recorded.client.post("/debug/dump")
        assert answer.status_code == 200, answer.text
        dump = answer.json()
        eventually(lambda: dumped(dumps, "stall"), "a dump of the stall")
        eventually(lambda: not recorded.is_ready(), "unreadiness")
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(recorded.is_ready, "readiness again")
    for client in (thread, late):
        client.join(60)
    (stall,) = [fact for fact in facts_in(dumps, "stall") if isinstance(fact, StallDetected)]

    assert dump["took_ns"] < 1_000_000_000
    assert (dump["reason"], Path(dump["path"]).parent) == ("request", dumps)
    assert stat.S_IMODE(Path(dump["path"]).stat().st_mode) == 0o600
    assert any(isinstance(fact, StepRecorded) for fact in open_journal(Path(dump["path"])).facts())
    assert stall.engine_pid == pid
    assert stall.process_state == "T"
    assert stall.loop_silent_ns is not None
    assert stall.loop_silent_ns < 1_000_000_000
    # a busy machine can stall it once more after the dump
    assert metric(recorded, "phasescope_engine_stalls_total") >= 1
    assert metric(recorded, "phasescope_dumps_total", reason="stall") == 1


def test_a_second_dump_at_once_is_refused_with_a_time_to_wait(lived: Lived) -> None:
    def dumps_again() -> bool:
        return lived.server.client.post("/debug/dump").status_code == 200

    eventually(dumps_again, "a first dump")
    second = lived.server.client.post("/debug/dump")

    assert second.status_code == 429
    assert second.headers["retry-after"] == "1"
    assert second.json()["error"]["code"] == "dump_too_soon"


def test_a_signal_requests_a_dump(lived: Lived) -> None:
    def signalled() -> Path | None:
        """Too soon after another dump it is refused, as a request for one is."""
        lived.server.process.send_signal(signal.SIGUSR2)
        return dumped(lived.dumps, "signal")

    eventually(signalled, "a dump")
    facts = facts_in(lived.dumps, "signal")
    kinds = [type(fact) for fact in facts]
    assert kinds.index(EngineStarted) < kinds.index(StepRecorded)
    assert lived.server.is_ready()


def test_the_death_of_the_engine_is_dumped_and_the_record_goes_on(
    recorded: Server, dumps: Path, tmp_path: Path
) -> None:
    engine = recorded.snapshot()["engine_pid"]
    os.kill(engine, signal.SIGSTOP)  # so that the request cannot end before the engine does
    stream(recorded, "doomed")
    eventually(lambda: recorded.client.get("/debug/requests").json()["live"], "a live request")
    os.kill(engine, signal.SIGKILL)
    eventually(lambda: dumped(dumps, "engine_died"), "a dump")
    eventually(recorded.is_ready, "readiness again", 60)
    recorded.completion(max_tokens=4)

    facts = facts_in(dumps, "engine_died")
    assert sum(isinstance(fact, EngineDied) for fact in facts) == 1
    ends = [fact for fact in facts if isinstance(fact, RequestEnded)]
    assert [(end.request_id, end.reason) for end in ends] == [("doomed", "engine_died")]
    later = list(fetched(recorded, tmp_path).facts())
    assert sum(isinstance(fact, EngineStarted) for fact in later) == 2


def test_a_killed_gateway_leaves_its_journal_and_a_diagnosis_can_be_made_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL cannot be caught: what was written is on disk."""
    folder = tmp_path / "journal"
    with Server(*SMALL, "--journal-dir", str(folder)) as server:
        for index in range(5):
            server.client.post(
                "/v1/completions",
                json={"prompt": "a b c", "max_tokens": 20},
                headers={"x-request-id": f"known-{index}"},
            )
        eventually(lambda: len(requests_in(folder)) == 5, "the requests on disk")
        server.process.kill()
        server.process.wait()
    replay = Replay(open_journal(folder))
    last = json.loads(replay.request("known-4") or b"{}")
    code = main(["diagnose", str(folder)])

    assert last["outcome"] == "finished"
    assert code == 0
    assert "healthy" in capsys.readouterr().out


def requests_in(folder: Path) -> set[str]:
    if not list(folder.glob("*.journal")):
        return set()
    facts = open_journal(folder).facts()
    return {fact.request_id for fact in facts if isinstance(fact, RequestEnded)}


def test_without_journal_memory_there_is_no_recorder_and_a_signal_is_ignored() -> None:
    with Server("--model", "dummy:tiny", "--journal-memory", "0") as server:
        server.process.send_signal(signal.SIGUSR2)
        journal, dump = server.client.get("/debug/journal"), server.client.post("/debug/dump")

        assert (journal.status_code, dump.status_code) == (404, 404)
        assert dump.json()["error"]["code"] == "recorder_off"
        assert "phasescope_journal_bytes" not in server.client.get("/metrics").text
        assert server.is_ready()
