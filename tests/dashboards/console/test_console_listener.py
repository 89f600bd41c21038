"""The console's port: it is had before anything is said of it."""

from __future__ import annotations

import socket
import subprocess

import pytest

from dashboards.console.web.listener import CannotListen, listener
from tests.dashboards.console.running import TOKEN
from tests.support.servers.server import spawn


def test_a_port_in_use_is_one_line_and_no_claim() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = spawn(
            "console", "http://127.0.0.1:1", "--port", str(port),
            env={"PHASESCOPE_CONSOLE_TOKEN": TOKEN},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        _, errors = process.communicate(timeout=120)

    said = errors.decode()
    assert process.returncode == 2, said
    assert said.startswith(f"phasescope: the console cannot listen on 127.0.0.1 port {port}: ")
    assert "--port" in said
    assert said.count("\n") == 1


def test_who_connects_before_the_pages_are_there_waits_for_them() -> None:
    with (
        listener("localhost", 0) as bound,
        socket.create_connection(bound.getsockname()) as client,
    ):
        accepted, _ = bound.accept()
        with accepted:
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"


def test_a_name_that_is_no_address_is_one_line() -> None:
    with pytest.raises(CannotListen, match=r"^--host a\.\.b: ") as caught:
        listener("a..b", 0)

    assert "\n" not in str(caught.value)
