"""A real server that has missed its SLO since it started says so, and says it of its dump too."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from diagnosis.promises.thresholds import LEAST_REQUESTS
from diagnosis.verdicts.offline import diagnose_journal
from service.cli.main import main
from telemetry.journal.journal_reader import open_journal
from tests.support.servers.server import Server, eventually

WITHIN_S = 20.0


def promise_of(server: Server) -> dict[str, Any] | None:
    said = server.client.get("/debug/diagnosis").json()
    for finding in said["findings"]:
        if finding["symptom"] == "slo_missed":
            assert said["verdict"] == "fault"
            found: dict[str, Any] = finding
            return found
    return None


def test_steady_misses_since_the_start_are_named_within_twenty_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sequence runs at a time, eight clients want answers within half a second. The class that
    has time enough is met. No baseline exists, and none could: the server was never better."""
    path = tmp_path / "slo.json"
    classes = {
        "chat": {"ttft_ms": 40, "itl_ms": 5_000},
        "batch": {"ttft_ms": 60_000, "itl_ms": 60_000},
    }
    path.write_text(json.dumps({"classes": classes}))
    flags = ("--model", "dummy:tiny", "--max-num-seqs", "1", "--slo-file", str(path))
    with Server(*flags) as server, ThreadPoolExecutor(9) as clients:
        begun_s = time.monotonic()

        def ask(number: int) -> None:
            while time.monotonic() < begun_s + 2 * WITHIN_S and not found:
                name = "batch" if number == 8 else "chat"
                server.client.post(
                    "/v1/completions",
                    json={"prompt": "Once", "max_tokens": 60, "ignore_eos": True},
                    headers={"x-slo-class": name},
                )

        found: list[dict[str, Any]] = []
        asking = [clients.submit(ask, number) for number in range(9)]
        eventually(lambda: promise_of(server), "the missed promise", 2 * WITHIN_S)
        named_s = time.monotonic() - begun_s
        finding = promise_of(server)
        metrics = server.client.get("/metrics").text
        journal = tmp_path / "now.journal"
        journal.write_bytes(server.client.get("/debug/journal").content)
        assert finding is not None
        found.append(finding)
        victim = server.facts_of(finding["victims"][-1])
        assert main(["explain", victim["request_id"], server.url]) == 0
        explained = capsys.readouterr().out
        for one in asking:
            one.result()

    (promise,) = finding["promises"]
    assert named_s < WITHIN_S
    assert promise["slo_class"] == "chat"
    assert promise["requests"] >= LEAST_REQUESTS
    assert promise["form"] in ("misconfigured", "one_class")  # by how many of batch have ended
    assert promise["late_first_tokens"] == promise["missed"] > 0
    assert promise["setting"] == "max_num_seqs"
    assert finding["runbook"] == "runbooks/slo_missed.md"
    assert 'phasescope_finding{symptom="slo_missed"} 1' in metrics
    assert victim["slo"]["verdict"] == "late_first_token"
    told = " ".join(explained.split())
    assert "SLO of class chat (TTFT 40.000 ms, ITL 5,000.000 ms): late_first_token" in told
    offline = diagnose_journal(open_journal(journal))
    assert [one.slo_class for f in offline.findings for one in f.promises] == ["chat"]


def test_a_server_that_keeps_its_promise_is_healthy(tmp_path: Path) -> None:
    """The same requests, with targets that it meets."""
    path = tmp_path / "slo.json"
    path.write_text(json.dumps({"classes": {"chat": {"ttft_ms": 20_000, "itl_ms": 5_000}}}))
    flags = ("--model", "dummy:tiny", "--max-num-seqs", "1", "--slo-file", str(path))
    with Server(*flags) as server:
        for _ in range(3 * LEAST_REQUESTS):
            server.completion(max_tokens=8)
        time.sleep(1.5)

        assert promise_of(server) is None
        assert server.client.get("/debug/diagnosis").json()["verdict"] == "healthy"
