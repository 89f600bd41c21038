"""Blocks by NIXL, with UCX below it: RDMA where a machine has it, else TCP of its own.

One agent a connection. UCX has no way to take back what a peer was told except to end the worker
that listens, and with the agent its worker ends: sockets closed, queue pairs destroyed. An agent
takes about 0.1 s to make, 14 descriptors and 5 MB.

No progress thread, which would keep a core busy; `progress` does its work. `cma` is left out of
what UCX may use, because it writes into another process by its number without asking it. Who sets
UCX_TLS or UCX_NET_DEVICES has the say.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
from collections.abc import Callable
from typing import Any

from service.fleet.transfer.movers.mover import MoverError, MoverKind
from service.fleet.transfer.movers.region import Region

_MODULES = ("nixl_cu12", "nixl_cu13")
"""Either moves memory of the host and needs no CUDA for it."""
_DEFAULTS = {
    "NIXL_LOG_LEVEL": "WARN",  # informs otherwise, on the standard output
    "UCX_LOG_LEVEL": "error",
    "UCX_LOG_FILE": "stderr",  # as our own log
    "UCX_HANDLE_ERRORS": "none",  # a crash is `faulthandler`'s, whose stacks are of Python too
}
NOT_INSTALLED = "NIXL is not installed: pip install 'phasescope[nixl]'"


def is_installed() -> bool:
    """Whether NIXL can be imported, as far as that is known without loading it."""
    return any(importlib.util.find_spec(name) is not None for name in _MODULES)


def nixl_kind() -> MoverKind:
    """Raises MoverError where NIXL cannot be loaded."""
    module = _loaded()
    return MoverKind("nixl", lambda region, is_loopback: NixlMover(module, region, is_loopback))


class NixlMover:
    """Implements `BlockMover`."""

    def __init__(self, nixl: Any, region: Region, is_loopback: bool) -> None:
        """Raises MoverError."""
        self._region = region
        self._peer: str | None = None
        self._writes: dict[int, Any] = {}
        self._ended: list[tuple[int, bool]] = []
        self._numbers = 0
        config = nixl.nixl_agent_config(backends=[], enable_prog_thread=False)
        where = [(region.address, region.size_bytes, 0, "")]
        self._agent: Any = _done(lambda: nixl.nixl_agent(secrets.token_hex(8), config))
        _done(lambda: self._agent.create_backend("UCX", _options(is_loopback)))
        self._registered = _done(lambda: self._agent.register_memory(where, "DRAM"))
        self._metadata: bytes = _done(self._agent.get_agent_metadata)

    @property
    def metadata(self) -> bytes:
        return self._metadata

    def connect(self, metadata: bytes) -> None:
        assert self._peer is None, "a mover has one peer"
        self._peer = _done(lambda: self._agent.add_remote_agent(metadata))

    def begin(self, offset_bytes: int, address: int, size_bytes: int) -> int:
        assert self._peer is not None, "nobody to write to"
        own = [(self._region.address + offset_bytes, size_bytes, 0)]
        write = _done(lambda: self._posted(own, [(address, size_bytes, 0)]))
        self._numbers += 1
        self._writes[self._numbers] = write
        return self._numbers

    def progress(self) -> list[tuple[int, bool]]:
        _done(self._agent.get_new_notifs)  # what a peer's writes need
        for number, write in list(self._writes.items()):
            try:
                state = self._agent.check_xfer_state(write)
            except Exception:  # NIXL's have no base of their own
                state = "ERR"
            if state != "PROC":
                del self._writes[number]
                _tried(write.release)
                self._ended.append((number, state == "DONE"))
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        agent, self._agent = self._agent, None
        if agent is None:
            return
        for write in self._writes.values():
            _tried(write.release)
        self._writes.clear()
        if self._peer is not None:
            _tried(lambda: agent.remove_remote_agent(self._peer))
        _tried(lambda: agent.deregister_memory(self._registered))
        self._registered = None

    def _posted(self, own: list[tuple[int, int, int]], there: list[tuple[int, int, int]]) -> Any:
        agent = self._agent
        sources, targets = (agent.get_xfer_descs(one, "DRAM") for one in (own, there))
        write = agent.initialize_xfer("WRITE", sources, targets, self._peer)
        agent.transfer(write)  # how that went is what `progress` asks
        return write


def _loaded() -> Any:
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    for module in _MODULES:
        if importlib.util.find_spec(module) is None:
            continue
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise MoverError(f"NIXL cannot be loaded: {error}") from error
    raise MoverError(NOT_INSTALLED)


def _options(is_loopback: bool) -> dict[str, str]:
    """What is said to UCX. Its ports know no key, so beside a connection over loopback they are on
    that device only."""
    chosen = {"TLS": "^cma"} | ({"NET_DEVICES": "lo"} if is_loopback else {})
    said = [f"{name}={value}" for name, value in chosen.items() if f"UCX_{name}" not in os.environ]
    return {"engine_config": ",".join(said)} if said else {}


def _done(call: Callable[[], Any]) -> Any:
    """What NIXL answers. Raises MoverError."""
    try:
        return call()
    except Exception as error:  # its exceptions have no base of their own
        raise MoverError(f"NIXL: {error}") from error


def _tried(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:  # the peer is gone already
        return
