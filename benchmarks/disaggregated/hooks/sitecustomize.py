"""Tells a harness when a transfer comes into a state, and waits for its answer: loaded from outside
the product, by every Python process that has this folder on PYTHONPATH.

`PHASESCOPE_KV_STATES` names a unix socket. For each state that a side of a transfer comes into, the
engine's loop writes `<pid> <side> <state>` as a line and waits for a line: so it is in that state,
with nothing carried out of what follows, while the harness does what it likes to any process.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import socket
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_SOCKET = "PHASESCOPE_KV_STATES"
_CLASSES = {
    "service.fleet.transfer.decode_side": ("DecodeSide", "decode", ("start", "take", "tick")),
    "service.fleet.transfer.prefill_side": ("PrefillSide", "prefill", ("take", "tick")),
}


class _Watch:
    """The connection to the harness, and the states that it has heard of."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: socket.socket | None = None
        self._known: dict[tuple[str, int], str] = {}

    def look(self, side: str, transfers: dict[int, Any]) -> None:
        for epoch, one in list(transfers.items()):
            state = one.state.value
            if self._known.get((side, epoch)) != state:
                self._known[side, epoch] = state
                self._tell(f"{os.getpid()} {side} {state}\n")

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):
            if self._connection is None:
                self._connection = socket.socket(socket.AF_UNIX)
                self._connection.connect(self._path)
            self._connection.sendall(line.encode())
            self._connection.recv(1)


def _patched(module: ModuleType, watch: _Watch) -> None:
    name, side, methods = _CLASSES[module.__name__]
    owner = getattr(module, name)
    for method in methods:
        setattr(owner, method, _watched(getattr(owner, method), side, watch))


def _watched(original: Callable[..., Any], side: str, watch: _Watch) -> Callable[..., Any]:
    def call(self: Any, *args: Any) -> Any:
        actions = original(self, *args)
        watch.look(side, self.open)
        return actions

    return call


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the usual finders find, and patches what was loaded."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _CLASSES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            _patched(module, self._watch)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if _SOCKET in os.environ:
    sys.meta_path.insert(0, _Finder(_Watch(os.environ[_SOCKET])))
