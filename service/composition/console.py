"""The web console as a child process of the server.

It is started once the server is ready, and ends when its standard input does: also after a kill of
the server. The server's key and the token of its pages go to it in its environment, never in its
arguments. It says its link itself, on the standard error that both have: only it knows whether the
token may be said there.
"""

from __future__ import annotations

import os
import subprocess
import sys

from service.config.settings import ANY_ADDRESS, ObserverConfig

_KEY = "PHASESCOPE_DEBUG_KEY"
_END_S = 5.0


class ConsoleProcess:
    """The web console's child process; it does nothing unless --console is set."""

    def __init__(self, config: ObserverConfig, port: int) -> None:
        self._config = config
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises OSError."""
        if not self._config.console.enabled:
            return
        host = self._config.gateway.host
        url = f"http://{'127.0.0.1' if host in ANY_ADDRESS else host}:{self._port}"
        words = ("console", url, "--port", str(self._config.console.port), "--with-parent")
        self._process = subprocess.Popen(
            (sys.executable, "-m", "service.cli.main", *words),
            stdin=subprocess.PIPE,
            env=self._environment(),
            start_new_session=True,  # signals to our group are for us: we drain first
        )

    def stop(self) -> None:
        """End it; it is killed if it does not end in time."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name != _KEY}
        gateway = self._config.gateway
        key = gateway.debug_key or gateway.api_key  # where there is no debug key, changes need it
        return environment if key is None else {**environment, _KEY: key}
