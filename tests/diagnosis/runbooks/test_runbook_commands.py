"""Commands of the runbooks' sections for the night are run against a real server."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from diagnosis.symptoms import Symptom
from diagnosis.verdicts.runbook import runbook_path
from service.cli.main import main
from tests.diagnosis.test_runbooks import first_command, sections, spans
from tests.support.servers.server import Server, eventually

NIGHT = ("Mitigate now", "Is it over?")
LIVE = "night-shift"
NOBODY = "http://127.0.0.1:9"  # traces that nobody takes can be changed all the same

# what would harm this machine, or needs one that has it: only the shell reads these
NOT_RUN = {
    "kill -STOP PID": "PID is another process of the machine",
    "kill -9 PID": "it ends the engine that all these commands share",
    "renice -n 19 -p PID": "PID is another process of the machine",
    "systemctl set-property --runtime UNIT CPUQuota=": "there is no unit to change",
    "curl -X POST URL/v1/unload_lora_adapter -H 'content-type: application/json' "
    '-d \'{"lora_name": "NAME"}\'': "there is no adapter",
    "kubectl rollout undo deployment/phasescope": "there is no cluster",
}
_LIVE_NAMES = re.compile(r"\b(CULPRIT|REQUEST|VICTIM)\b")
_OURS = re.compile(r"phasescope ((limits|diagnose) URL|top URL --once|explain REQUEST URL)|curl ")


def commands() -> list[str]:
    """The first of each section, and those in its text that ask a server and end by themselves."""
    found: list[str] = []
    for symptom in Symptom:
        page = runbook_path(symptom)
        night = [sections(page)[title] for title in NIGHT]
        text = " ".join("\n".join(night).split())
        found += map(first_command, night)
        found += [one for one in spans(page) if one in text and _OURS.match(one)]
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all of them; small, since they ask it for little."""
    with Server("--model", "dummy:tiny", "--otlp-endpoint", NOBODY) as running:
        yield running


@contextmanager
def live_request(server: Server) -> Iterator[None]:
    """A stream that goes on until it is ended."""
    body = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=body, headers={"x-request-id": LIVE}
    ) as answer:
        assert answer.status_code == 200, answer.read()
        yield


@pytest.fixture
def unchanged(server: Server) -> Iterator[None]:
    """Limits and tracing are afterwards what they were at the start."""
    yield
    view = server.client.get("/debug/limits").json()["limits"]
    values = {name: one["at_start"] for name, one in view.items() if one["changed"]}
    values.pop("max_auto_tokens", None)
    if values:
        server.client.put("/debug/limits", json=values).raise_for_status()
    server.client.put("/debug/tracing", json={"mode": "full"}).raise_for_status()
    eventually(server.is_empty, "an empty engine after the command")


def run(command: str, server: Server) -> tuple[int, str]:
    """Exit status, and what was printed; our own commands without a new interpreter each."""
    command = _LIVE_NAMES.sub(LIVE, command).replace("URL", server.url)
    command = command.replace("PID", str(server.snapshot()["engine_pid"]))
    if command.startswith("phasescope "):
        return main(shlex.split(command)[1:]), ""
    command = re.sub(r"^curl ", "curl -sS --fail-with-body ", command)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_night_works_as_it_stands(
    command: str, server: Server, unchanged: None
) -> None:
    """With the server's URL, and a live request where it names one."""
    if command in NOT_RUN:
        assert subprocess.run(["bash", "-n", "-c", command]).returncode == 0
        return
    if _LIVE_NAMES.search(command):
        with live_request(server):
            code, said = run(command, server)
    else:
        code, said = run(command, server)

    assert code == 0, said


def test_what_is_not_run_is_in_a_runbook() -> None:
    """So that the list does not outlive the pages."""
    assert set(NOT_RUN) <= set(commands())


def test_commands_that_change_a_limit_can_be_taken_back(server: Server, unchanged: None) -> None:
    """With the words that the pages give for it."""
    told = {span for symptom in Symptom for span in spans(runbook_path(symptom))}
    back = {one for one in told if re.fullmatch(r"(\w+=(off|none) ?)+", one)}
    assert "refuse_late=off" in back

    for words in sorted(back):
        assert main(["limits", server.url, *words.split()]) == 0, words
