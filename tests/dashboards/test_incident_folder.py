"""A real server writes a folder at a verdict, and no text of a client is in any byte of it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec

from telemetry.facts.records import Fact
from telemetry.journal.journal_reader import open_journal
from tests.support.servers.server import Server, eventually

HOOKS = Path(__file__).parents[1] / "support" / "hooks"
CANARY = "xylographic quetzalcoatl"
TOKEN_IDS = [201, 55, 178, 93, 240, 17, 132, 89]
FILES = {"report.html", "stacks.txt", "incident.journal"}


def test_an_incident_has_a_folder_without_prompts_outputs_or_token_ids(tmp_path: Path) -> None:
    """The engine is stopped before a request comes, which waits for it, and goes on after the
    verdict."""
    reports = tmp_path / "incidents"
    args = ("--model", "dummy:tiny", "--report-dir", str(reports), "--no-root-cause")
    folders = os.pathsep.join(filter(None, (str(HOOKS), os.environ.get("PYTHONPATH"))))
    env = {"PHASESCOPE_SAME_PRIORITY": "1", "PYTHONPATH": folders}
    with Server(*args, env=env) as server:
        done = server.completion(prompt=f"{CANARY} one", max_tokens=24, ignore_eos=True)
        output = done.json()["choices"][0]["text"]
        server.completion(prompt=TOKEN_IDS, max_tokens=4, ignore_eos=True).raise_for_status()
        folder = _incident(server, reports)
        metrics = server.client.get("/metrics").text
    texts = {path.name: path.read_bytes() for path in folder.iterdir()}
    facts = list(open_journal(folder / "incident.journal").facts())

    assert set(texts) == FILES
    assert folder.name.endswith("-engine_hung")
    assert "phasescope_reports_total 1" in metrics
    page, stacks = texts["report.html"].decode(), texts["stacks.txt"].decode()
    assert "Engine hung" in page
    assert "the-canary-request" in page
    assert stacks.count("\ngateway\n") == stacks.count("\nengine\n") == 2
    assert "phasescope-reports" in stacks
    assert "stacks by faulthandler" in stacks
    for text in (CANARY, output):
        assert len(text) >= 8
        for name, data in texts.items():
            assert text.encode() not in data, name
    _without_texts(facts, output)


def _ask_in_background(server: Server) -> threading.Thread:
    """A request that a stopped engine cannot end: it is in flight during the incident."""

    def ask() -> None:
        body = {"prompt": f"{CANARY} two", "max_tokens": 64, "ignore_eos": True}
        server.client.post(
            "/v1/completions", json=body, headers={"x-request-id": "the-canary-request"}
        )

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def _incident(server: Server, reports: Path) -> Path:
    pid = server.snapshot()["engine_pid"]
    os.kill(pid, signal.SIGSTOP)
    asking = _ask_in_background(server)
    try:
        eventually(lambda: _verdict(server) == "fault", "the verdict")
    finally:
        os.kill(pid, signal.SIGCONT)
    asking.join(30)

    def whole() -> Path | None:
        found = [path for path in reports.iterdir() if path.suffix != ".partial"]
        return found[0] if found else None

    folder: Path = eventually(whole, "the folder", 60)
    return folder


def _verdict(server: Server) -> str:
    verdict: str = server.client.get("/debug/diagnosis").json()["verdict"]
    return verdict


def _without_texts(facts: list[Fact], output: str) -> None:
    """Unpacked: no text, and no list of numbers that is the prompt."""
    assert facts
    found = msgspec.to_builtins(facts)
    encoded = msgspec.json.encode(found).decode()
    assert CANARY not in encoded
    assert output not in encoded
    for numbers in _lists(found):
        for first in range(len(numbers) - len(TOKEN_IDS) + 1):
            assert numbers[first : first + len(TOKEN_IDS)] != TOKEN_IDS


def _lists(value: Any) -> list[list[Any]]:
    if isinstance(value, dict):
        return [one for part in value.values() for one in _lists(part)]
    if isinstance(value, list | tuple):
        return [list(value), *(one for part in value for one in _lists(part))]
    return []
