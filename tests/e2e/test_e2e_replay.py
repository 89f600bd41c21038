"""A real server's journal carries all that its scheduler decided by."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dashboards.source import journal_of
from diagnosis.root_cause.whatif import identities_of, replay_journal
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import SequenceAdmitted, SequenceEnded, StepRecorded
from telemetry.facts.reasons import EndReason
from tests.support.servers.server import Server, eventually

TIGHT = (
    "--model", "dummy:tiny", "--max-num-seqs", "10", "--max-batched-tokens", "48",
    "--max-model-len", "384", "--fairness", "vtc", "--queue-limit", "12",
)  # fmt: skip
SHARED = [20 + index % 97 for index in range(96)]


@pytest.fixture(scope="module", params=[1, 2], ids=["depth-1", "depth-2"])
def lived(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that has been through preemption, reuse, refusal, grammars, scores and
    disconnects."""
    with Server(*TIGHT, "--kv-memory", "160KiB", "--pipeline-depth", str(request.param)) as server:
        clients = [threading.Thread(target=client, args=(server, number)) for number in range(10)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        eventually(server.is_empty, "an empty engine")
        yield server


def client(server: Server, number: int) -> None:
    """Four requests one after the other. Only who hangs up streams: reading costs so much that
    ten readers on a busy machine would keep the engine from filling up."""
    headers = {"x-tenant": "abc"[number % 3]}
    for turn in range(4):
        own = [20 + (number * 31 + turn * 7 + index) % 200 for index in range(20 * (turn + 1))]
        body = {
            "prompt": [*SHARED, *own] if number % 2 else own,
            "max_tokens": 120 + 10 * turn,
            "ignore_eos": True,
            "temperature": 0,
        }
        if number == 7:
            body |= {"prompt_logprobs": 2}
        if number == 4:
            body |= {"response_format": {"type": "json_object"}, "ignore_eos": False}
        url = f"{server.url}/v1/completions"
        if number in (2, 5, 8):
            # not done before the server hears of it, as far as the context allows
            body |= {"stream": True, "prompt": own, "max_tokens": 384 - len(own)}
            with httpx.stream("POST", url, json=body, headers=headers, timeout=60):
                pass  # it hangs up as soon as the answer begins
        else:
            httpx.post(url, json=body, headers=headers, timeout=60)


def test_every_decision_of_a_real_run_is_repeated(lived: Server) -> None:
    with journal_of(lived.url) as journal:
        (identity,) = identities_of(journal)
        facts = list(journal.facts())
    assert identity.difference is None
    steps = [fact for fact in facts if isinstance(fact, StepRecorded)]
    ends = {fact.reason for fact in facts if isinstance(fact, SequenceEnded)}
    assert identity.steps == len(steps) > 100
    assert identity.preempted > 0
    assert sum(f.hit_tokens for f in facts if isinstance(f, SequenceAdmitted)) > 0
    assert EndReason.DISCONNECT in ends


def test_a_real_run_replays_by_its_fitted_cost(lived: Server) -> None:
    """That it is near is measured in the benchmarks; here, that all of it is there."""
    with journal_of(lived.url) as journal:
        report, _ = replay_journal(journal, MonotonicClock(), ["max_num_seqs=3"])
    assert report.changed is not None
    was, found = report.recorded.classes["chat"], report.replayed.classes["chat"]
    assert found.requests == was.requests
    assert found.latency.keys() == was.latency.keys()


def test_the_command_replays_a_running_servers_journal(lived: Server, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "service.cli.main", "replay", lived.url, "--exact"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "decisions were repeated" in done.stdout
