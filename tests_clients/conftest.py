"""Servers that the clients talk to, and programs that run in a client's environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.clients.environments import environment
from tests.support.servers.server import Server

Program = Callable[..., dict[str, Any]]
PROGRAMS = Path(__file__).resolve().parent / "programs"
_PROGRAM_TIMEOUT_S = 300


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The default model, as a user gets it."""
    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def two_servers() -> Iterator[tuple[Server, Server]]:
    """Two servers of one model, with random weights: routers read no texts."""
    flags = ("--model", "dummy:tiny")
    with Server(*flags) as one, Server(*flags) as two:
        yield one, two


@pytest.fixture
def run_program() -> Program:
    """`run_program(CLIENT, FILE, *arguments)`: the JSON that a program of `programs/` prints when
    it has run in the client's environment."""

    def run(client: str, file: str, *arguments: str) -> dict[str, Any]:
        python = environment(client) / "bin" / "python"
        command = [str(python), str(PROGRAMS / file), *arguments]
        outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            command,
            env={**outside, "OPENAI_API_KEY": "none", "LANGSMITH_TRACING": "false"},
            capture_output=True,
            timeout=_PROGRAM_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run
