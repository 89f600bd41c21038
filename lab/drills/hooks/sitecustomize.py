"""Faults that can only be injected inside a process, loaded from outside the product.

Python imports this in every process that has this folder on PYTHONPATH. On a signal the main
thread reads an order, a JSON object, from `PHASESCOPE_DRILL/<pid>.order`, carries it out and
writes the order's number to `<pid>.done`, followed by the reason where it could not. Until then
nothing is changed, and telemetry never records the order: a diagnosis sees only the effects of a
fault.

In the engine:
    heap ms=N                 a heap whose full collection takes N ms
    stall kind=gc|write|regex ms=N every_ms=M
                              every M ms, before the loop reads its commands: that collection,
                              synchronous writes for N ms, or regular expressions that
                              backtrack for N ms
    deadlock                  before its loop reads its commands the engine waits, in native code
                              that keeps the interpreter lock, for a lock that is never released
    memory above_tokens=N     a step of more than N tokens runs out of memory
    kernel share=S            that share of the steps calls a torch operation that fails
    drop_facts share=S        that share of the steps' facts is never written
In the gateway:
    leak how=all|siblings|share
                              sequences of clients that disconnect are not cancelled: all of them,
                              all but the first choice of each, or a `share`
An order with `off` set ends that fault.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import re
import signal
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_FOLDER = "PHASESCOPE_DRILL"
SIGNAL = signal.SIGRTMIN + 6
_WRITE_BYTES = 1 << 20
_CONTAINERS_A_MS = 8_000

Order = dict[str, Any]
_active: dict[str, Order] = {}
_heap: list[list[int]] = []
_originals: dict[str, Callable[..., Any]] = {}  # replaced functions, by name


def _replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
             ) -> None:  # fmt: skip
    """Replace a function by one that `make` makes of it, once."""
    key = f"{owner.__name__}.{name}"
    if key not in _originals:
        _originals[key] = getattr(owner, name)
        setattr(owner, name, make(_originals[key]))


# --- the engine ----------------------------------------------------------------------------


def _grow_heap(order: Order) -> None:
    """Frozen, so that only the collections of this fault go through it."""
    gc.disable()
    missing_ms = order["ms"]
    while missing_ms > 0.1 * order["ms"]:
        _heap.extend([] for _ in range(int(missing_ms * _CONTAINERS_A_MS)))
        begin_s = time.process_time()
        _collect()
        missing_ms = order["ms"] - 1e3 * (time.process_time() - begin_s)
    gc.enable()


def _collect() -> None:
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _write(length_ms: float) -> None:
    """Block as a write to a log on a slow disk would."""
    end_s = time.perf_counter() + length_ms / 1e3
    path = Path(os.environ[_FOLDER]) / f"{os.getpid()}.written"
    with path.open("wb", buffering=0) as file:
        while time.perf_counter() < end_s:
            file.seek(0)
            file.write(bytes(_WRITE_BYTES))
            os.fsync(file.fileno())


def _backtrack(length_ms: float) -> None:
    """Block as a regular expression does that a text was made for; it keeps the interpreter."""
    end_s = time.perf_counter() + length_ms / 1e3
    while time.perf_counter() < end_s:
        re.match("(x+x+)+y", "x" * 14)


def _stall(order: Order) -> None:
    """Stall between two steps, when the engine's loop reads what the gateway sent."""
    order["due_s"] = time.perf_counter()

    def make(receive: Callable[..., Any]) -> Callable[..., Any]:
        def stalling(gateway: Any, wait_s: float | None) -> Any:
            now = _active.get("stall")
            if now is not None and time.perf_counter() >= now["due_s"]:
                now["due_s"] = time.perf_counter() + now["every_ms"] / 1e3
                _BLOCKS[now["kind"]](now["ms"])
            return receive(gateway, wait_s)

        return stalling

    _replace(sys.modules["service.process.engine_main"].GatewayConnection, "receive", make)


_BLOCKS: dict[str, Callable[[float], None]] = {
    "gc": lambda length_ms: _collect(),
    "write": _write,
    "regex": _backtrack,
}


def _deadlock(order: Order) -> None:
    def make(receive: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(gateway: Any, wait_s: float | None) -> Any:
            if "deadlock" in _active:
                native, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
                native.pthread_mutex_lock(mutex)
                native.pthread_mutex_lock(mutex)
            return receive(gateway, wait_s)

        return waiting

    _replace(sys.modules["service.process.engine_main"].GatewayConnection, "receive", make)


def _steps_fail(order: Order) -> None:
    """Fail inside the computation of a step: as the allocator would, or by a product of matrices
    whose shapes do not match."""
    order["draw"] = random.Random(order.get("seed", 0))

    def make(compute: Callable[..., Any]) -> Callable[..., Any]:
        def failing(executor: Any, plan: Any, *more: Any) -> Any:
            memory, kernel = _active.get("memory"), _active.get("kernel")
            tokens = plan.scheduled_tokens
            if memory is not None and tokens > memory["above_tokens"]:
                raise MemoryError(f"cannot allocate activations of {tokens} tokens")
            if kernel is not None and kernel["draw"].random() < kernel["share"]:
                torch = sys.modules["torch"]
                torch.mm(torch.zeros(2, 3), torch.zeros(2, 3))
            return compute(executor, plan, *more)

        return failing

    executor = _executor_in_use()
    _replace(executor, _STEPS[executor.__name__], make)


_STEPS = {"TorchExecutor": "_fill_last_tokens", "CudaExecutor": "_launch_step"}
"""Where an executor computes a step, so that what is raised there fails the step."""


def _executor_in_use() -> Any:
    """The class of the executor that the main thread's functions hold. Raises LookupError."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            kind = type(getattr(value, "executor", None))
            if kind.__name__ in _STEPS:
                return kind
        frame = frame.f_back
    raise LookupError(f"no executor of {', '.join(_STEPS)} is in use")


def _drop_facts(order: Order) -> None:
    draw = random.Random(order.get("seed", 0))

    def make(append: Callable[..., Any]) -> Callable[..., Any]:
        def dropping(lane: Any, fact: Any) -> None:
            now = _active.get("drop_facts")
            is_step = type(fact).__name__ == "StepRecorded"
            if now is None or not is_step or draw.random() >= now["share"]:
                append(lane, fact)

        return dropping

    _replace(sys.modules["telemetry.facts.recorder"].Lane, "append", make)


# --- the gateway ---------------------------------------------------------------------------


def _leak(order: Order) -> None:
    cancelled: weakref.WeakSet[Any] = weakref.WeakSet()  # queues, each of one request
    lost: dict[int, bool] = {}  # by sequence
    draw = random.Random(order.get("seed", 0))

    def make(cancel: Callable[..., Any]) -> Callable[..., Any]:
        def leaking(client: Any, seq_id: int, reason: Any) -> None:
            now = _active.get("leak")
            queue = client._queues.get(seq_id)
            if now is not None and queue is not None and str(reason) == "disconnect":
                if now["how"] == "share":
                    if lost.setdefault(seq_id, draw.random() < now["share"]):
                        return
                elif now["how"] == "all" or queue in cancelled:
                    return
                cancelled.add(queue)
            cancel(client, seq_id, reason)

        return leaking

    _replace(sys.modules["service.gateway.engine_client.client"].EngineClient, "cancel", make)


# --- orders --------------------------------------------------------------------------------

_ORDERS: dict[str, Callable[[Order], None]] = {
    "heap": _grow_heap,
    "stall": _stall,
    "deadlock": _deadlock,
    "memory": _steps_fail,
    "kernel": _steps_fail,
    "drop_facts": _drop_facts,
    "leak": _leak,
}


def _on_signal(number: int, frame: FrameType | None) -> None:
    folder = Path(os.environ[_FOLDER])
    order = json.loads((folder / f"{os.getpid()}.order").read_text())
    what, said = order["do"], str(order["number"])
    if order.get("off"):
        _active.pop(what, None)
    else:
        try:
            _ORDERS[what](order)
            _active[what] = order
        except Exception as error:  # here it would end the process: it is the drill that ends
            said += f" {type(error).__name__}: {error}"
    (folder / f"{os.getpid()}.done").write_text(said)


if _FOLDER in os.environ:
    signal.signal(SIGNAL, _on_signal)
