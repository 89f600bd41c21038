"""The sockets of a server with several gateway processes, made before any process is started."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from service.config.settings import ConfigError, GatewayConfig
from service.gateway.http.listener import bind, port_of, release

_BACKLOG = 256


@dataclass(frozen=True, slots=True)
class Sockets:
    """`public` has a listener for each gateway process, all of the same address: the kernel spreads
    connections over them (SO_REUSEPORT). A unix socket is one listener that they share. In the
    private `folder`, which only this user may enter, gateway processes reach the engine and the
    main process; it is None with one gateway process, which needs neither."""

    public: tuple[socket.socket, ...]
    folder: Path | None = None
    engine: socket.socket | None = None
    main: socket.socket | None = None

    @property
    def engine_path(self) -> str:
        return _at(self.folder, "engine")

    @property
    def main_path(self) -> str:
        return _at(self.folder, "main")

    def close(self, config: GatewayConfig) -> None:
        """Close all of them, and remove the paths."""
        for listener in self.public:
            release(listener, config)
        for private in (self.engine, self.main):
            if private is not None:
                private.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def open_sockets(config: GatewayConfig) -> Sockets:
    """Bind all of them. Raises ConfigError with the remedy."""
    if config.gateways == 1:
        return Sockets((bind(config),))
    with contextlib.ExitStack() as on_error:
        # not shared: another server that shares its port must be noticed
        first = bind(config)
        on_error.callback(release, first, config)
        public = [first] * config.gateways
        if config.http.uds is None:
            port = port_of(first)
            first.close()
            public = []
            for _ in range(config.gateways):
                public.append(bind(config, port, shares_port=True))
                on_error.callback(public[-1].close)
        try:
            folder = Path(tempfile.mkdtemp(prefix="phasescope-"))
            on_error.callback(shutil.rmtree, folder, ignore_errors=True)
            engine, main = _listening(_at(folder, "engine")), _listening(_at(folder, "main"))
        except OSError as error:
            raise ConfigError(
                f"--gateways {config.gateways}: cannot make sockets in {tempfile.gettempdir()}: "
                f"{error.strerror}; set TMPDIR to a folder with a short path"
            ) from error
        on_error.pop_all()
    return Sockets(tuple(public), folder, engine, main)


def _at(folder: Path | None, name: str) -> str:
    assert folder is not None
    return str(folder / f"{name}.sock")


def _listening(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(_BACKLOG)
    return listener
