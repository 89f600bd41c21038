"""The ledger of a real server: sums, late tokens that name their culprit, `phasescope explain`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.servers.otlp_receiver import OtlpReceiver
from tests.support.servers.otlp_trees import attribute
from tests.support.servers.perfetto_check import checked
from tests.support.servers.server import Server


def explain(server: Server, request_id: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli.main", "explain", request_id, server.url]
    command += flags
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def recount(facts: dict[str, Any]) -> int:
    return sum(entry["ns"] for entry in facts["ledger"]["entries"])


@pytest.fixture(scope="module")
def late(shared_server: Server) -> tuple[str, str]:
    """Ids of a stream and of the long prompt that came in the middle of it."""
    body = {"prompt": "Once", "max_tokens": 240, "ignore_eos": True, "stream": True}
    begun = threading.Event()

    def read() -> str:
        with httpx.stream(
            "POST", f"{shared_server.url}/v1/completions", json=body, timeout=120
        ) as answer:
            for count, _ in enumerate(answer.iter_lines()):
                if count == 10:
                    begun.set()
            return answer.headers["x-request-id"]

    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(read)
        assert begun.wait(60)
        prompt = [5000 + index % 900 for index in range(1500)]  # no other test begins so
        with shared_server.fixed_budget(512):  # which delays tokens; the default does not
            long = shared_server.completion(prompt=prompt, max_tokens=1)
        return stream.result(), long.headers["x-request-id"]


def test_the_parts_of_a_real_request_sum_to_its_time_exactly(
    server: Server, late: tuple[str, str]
) -> None:
    for request_id in late:
        facts = server.facts_of(request_id)
        assert recount(facts) == facts["e2e_ns"] == facts["ledger"]["sum_ns"]
        assert facts["ledger"]["residue_ns"] == 0
        assert all(entry["ns"] > 0 for entry in facts["ledger"]["entries"])


def test_a_refused_request_has_a_ledger_too(server: Server) -> None:
    answer = server.client.post("/v1/completions", content=b"{not json")
    facts = server.facts_of(answer.headers["x-request-id"])
    assert [e["part"] for e in facts["ledger"]["entries"]] == ["accept", "parse"]
    assert recount(facts) == facts["e2e_ns"]


def test_a_late_token_names_the_long_prompt_and_its_span_links_to_the_chunk(
    server: Server, receiver: OtlpReceiver, late: tuple[str, str]
) -> None:
    """1,500 tokens in chunks of 512 delay the stream's tokens by far more than 100 ms."""
    stream_id, long_id = late
    stalls = server.facts_of(stream_id)["stalls"]
    culprits = [stall.get("culprit_request_id") for stall in stalls]
    assert long_id in culprits
    victim, culprit = receiver.tree_of(stream_id), receiver.tree_of(long_id)
    victim.check()
    culprit.check()
    chunks = {span.span_id for span in culprit.named("prefill.chunk")}
    blaming = [
        span
        for span in victim.named("stall")
        if attribute(span, "phasescope.culprit.request_id") == long_id
    ]
    assert blaming
    for span in blaming:
        (link,) = span.links
        assert link.trace_id.hex() == culprit.trace_id
        assert link.span_id in chunks
        assert attribute(span, "phasescope.stall.part") == "co_prefill"


def test_the_harm_ledger_names_the_long_prompt(server: Server, late: tuple[str, str]) -> None:
    for request_id in late:
        server.facts_of(request_id)
    harm = server.client.get("/debug/harm").json()
    assert harm["by_request_ns"][late[1]] > 0
    assert harm["total_ns"] == sum(harm["by_part_ns"].values())


def test_explain_prints_phases_ledger_and_culprits(server: Server, late: tuple[str, str]) -> None:
    stream_id, long_id = late
    server.facts_of(stream_id)
    shown = explain(server, stream_id)
    assert shown.returncode == 0, shown.stderr
    for word in ("decode", "0 ns off", "co_prefill", "late tokens", stream_id):
        assert word in shown.stdout
    told = json.loads(explain(server, stream_id, "--json").stdout)
    assert told["ledger"]["residue_ns"] == 0
    assert long_id in {stall.get("culprit_request_id") for stall in told["stalls"]}


def test_explain_of_an_unknown_request_is_one_line_of_error(server: Server) -> None:
    missing = explain(server, "nobody")
    assert missing.returncode == 1
    assert "unknown" in missing.stderr
    assert len(missing.stderr.strip().splitlines()) == 1


def test_a_timeline_has_an_arrow_from_the_long_prompt_to_the_late_token(
    server: Server, late: tuple[str, str], tmp_path: Path
) -> None:
    """As the command exports it from the running server, and structurally valid."""
    stream_id, _ = late
    culprits = [s.get("culprit_request_id") for s in server.facts_of(stream_id)["stalls"]]
    out = tmp_path / "run.json.gz"
    command = [sys.executable, "-m", "service.cli.main", "timeline", server.url, "-o", str(out)]
    subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    arrows = checked(out).phase("s")
    assert len(arrows) >= sum(culprit is not None for culprit in culprits) > 0
