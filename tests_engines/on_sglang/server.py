"""A server of SGLang on the CPU with the adapter in it, and the socket that gets its facts."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from service.attach.wire import Batch, Hello, Message, Role, SequenceName, Submitted, decoder
from telemetry.facts.framing import Unframer
from telemetry.facts.records import Fact
from tests_engines.on_sglang.environment import MODEL, environment, python

_START_S, _TICK_S, _WAIT_S = 900.0, 0.5, 600.0
FLAGS = (
    "--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32",
    "--disable-cuda-graph", "--max-total-tokens", "1024", "--max-running-requests", "4",
    "--chunked-prefill-size", "64",
)  # fmt: skip


class Listener:
    """Accepts any number of connections, and keeps every message by the role of its sender."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(8)
        self._lock = threading.Lock()
        self._messages: dict[Role, list[Message]] = {role: [] for role in Role}
        threading.Thread(target=self._accept, daemon=True).start()

    def messages(self, role: Role) -> list[Message]:
        with self._lock:
            return list(self._messages[role])

    def facts(self, role: Role) -> list[Fact]:
        return [fact for one in self._batches(role) for fact in one.facts]

    def names(self) -> list[SequenceName]:
        return [name for one in self._batches(Role.ENGINE_CORE) for name in one.names]

    def submitted(self) -> list[Submitted]:
        return [name for one in self._batches(Role.FRONT_END) for name in one.submitted]

    def _batches(self, role: Role) -> list[Batch]:
        return [one for one in self.messages(role) if isinstance(one, Batch)]

    def _accept(self) -> None:
        while True:
            found, _ = self._socket.accept()
            threading.Thread(target=self._read, args=(found,), daemon=True).start()

    def _read(self, found: socket.socket) -> None:
        unframer, role = Unframer(), Role.FRONT_END
        while data := found.recv(65536):
            for payload in unframer.feed(data):
                message = decoder.decode(payload)
                if isinstance(message, Hello):
                    role = message.role
                with self._lock:
                    self._messages[role].append(message)


class Server:
    """`facts` are what its adapter sends."""

    def __init__(self, facts: Listener, port: int) -> None:
        self.facts, self._port = facts, port

    def post(self, path: str, body: dict[str, Any], **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_WAIT_S)
        self._send(connection, path, body, headers)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def leave(self, path: str, body: dict[str, Any], **headers: str) -> None:
        """A client that goes away after the first content of its stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_WAIT_S)
        self._send(connection, path, {**body, "stream": True}, headers)
        connection.getresponse().readline()
        connection.close()

    def wait_for(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + _WAIT_S
        while not what():
            assert time.monotonic() < end, "it did not come"
            time.sleep(_TICK_S)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        path: str,
        body: dict[str, Any],
        headers: dict[str, str],
    ) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named["content-type"] = "application/json"
        connection.request("POST", path, json.dumps(body), named)


@contextlib.contextmanager
def serving(version: str, folder: Path, **more: str) -> Iterator[Server]:
    """`more` are environment variables of SGLang's own, for its tests."""
    address, log = folder / "attach.sock", folder / "server.log"
    listener, port = Listener(address), _free_port()
    command = [
        str(python()), "-m", "sglang.launch_server", "--model-path", str(MODEL),
        "--served-model-name", "small", "--port", str(port), *FLAGS,
    ]  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            env={**environment(version, address), **more},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + _START_S
        while "ready to roll" not in log.read_text():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, "the server does not start"
            time.sleep(_TICK_S)
        yield Server(listener, port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
