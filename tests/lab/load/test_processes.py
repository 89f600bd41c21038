"""Servers that a run starts end with it, whatever they do."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path

import pytest

from benchmarks import starter
from lab.load.processes import ended, free_ports, lives, tree_of

# deaf to SIGTERM, as is its child in a session of its own; `pids` has both
_DEAF_SERVER = """
import http.server, os, pathlib, signal, subprocess, sys
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
engine = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
pathlib.Path("pids").write_text(f"{os.getpid()} {engine.pid}")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_server_that_ignores_sigterm_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does what it has started, in a session of its own."""
    monkeypatch.setattr(starter, "STOP_WITHIN_S", 0.1)
    program = tmp_path / "service" / "cli" / "main.py"
    program.parent.mkdir(parents=True)
    for package in (program.parent, program.parent.parent):
        (package / "__init__.py").touch()
    program.write_text(_DEAF_SERVER)

    with starter.serving(checkout=tmp_path) as server:
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert tree_of(server.process.pid) == pids
        assert all(lives(pid) for pid in pids)

    assert [pid for pid in pids if lives(pid)] == []


def test_a_server_that_stands_still_ends() -> None:
    """It is continued first: nothing that is stopped can end by itself."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    process.send_signal(signal.SIGSTOP)

    assert ended(process) == -signal.SIGTERM
    assert ended(process) == -signal.SIGTERM


def test_what_a_process_has_left_in_its_group_ends_too() -> None:
    """Though the process itself has ended before."""
    process = subprocess.Popen(
        ["sh", "-c", "sleep 600 > /dev/null & echo $!"],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    said, _ = process.communicate()
    assert lives(int(said))

    assert ended(process) == 0
    until_gone(int(said))


def until_gone(pid: int) -> None:
    """It was killed; the signal takes a moment."""
    while lives(pid):
        threading.Event().wait(0.01)


def test_ports_that_are_chosen_together_differ() -> None:
    """All are held until the last is chosen."""
    assert len(set(free_ports(50))) == 50
