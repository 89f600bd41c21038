"""The process of a rank that is not the first: loads its part, then computes it of every step.

Started by `service.device.parallel.ranks` as a child of the engine process, with one end of a pipe.
"""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
from multiprocessing.connection import Connection

import torch

from service.config.settings import ConfigError
from service.device.backend import Backend
from service.device.cache.kv_cache import KvCache
from service.device.models.model import Decoder
from service.device.parallel.messages import (
    Join,
    Loaded,
    MakePages,
    Met,
    NotLoaded,
    PackedStep,
    inputs_of,
    pack,
    pack_times,
    unpack_join,
    unpack_order,
)
from service.device.torch_backend import torch_backend
from service.device.weights.source import open_weights
from telemetry.facts.clock import MonotonicClock
from telemetry.host.gc_watch import settle_collector

_PR_SET_PDEATHSIG = 1


def main() -> int:
    faulthandler.enable(2)
    _end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the engine process decides when we end
    connection = Connection(int(sys.argv[1]))
    try:
        _run(connection)
    except (EOFError, ConnectionError):
        return 0  # the engine process has ended, or closed its ranks
    except ConfigError as error:
        connection.send_bytes(pack(NotLoaded(str(error), is_config=True)))
        return 2
    return 0


def _run(connection: Connection) -> None:
    join = unpack_join(connection.recv_bytes())
    device = torch.device(join.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        backend, decoder = _load(join, device)
    except (RuntimeError, MemoryError, OSError) as error:
        connection.send_bytes(pack(NotLoaded(f"{type(error).__name__}: {error}", is_config=False)))
        raise
    connection.send_bytes(pack(Loaded()))
    collectives = backend.collectives
    assert collectives is not None, "a single rank has no others"
    collectives.init_group(join.rendezvous, MonotonicClock())
    connection.send_bytes(pack(Met()))
    settle_collector()
    try:
        _serve(connection, backend, decoder, device)
    finally:
        collectives.destroy_group()


def _load(join: Join, device: torch.device) -> tuple[Backend[Decoder, KvCache], Decoder]:
    """With one thread, as the engine process does it. Raises ConfigError."""
    torch.set_num_threads(1)
    backend = torch_backend(
        join.config,
        open_weights(join.config.model),
        join.max_tokens,
        device,
        lambda stage: None,
        rank=join.rank,
    )
    decoder = backend.load()
    torch.set_num_threads(join.threads)
    return backend, decoder


def _serve(
    connection: Connection,
    backend: Backend[Decoder, KvCache],
    decoder: Decoder,
    device: torch.device,
) -> None:
    """Until the pipe is closed, which raises EOFError or ConnectionError."""
    collectives = backend.collectives
    assert collectives is not None
    pages: KvCache | None = None
    while True:
        order = unpack_order(connection.recv_bytes())
        match order:
            case MakePages():
                pages = None  # there may be no room for both
                pages = backend.make_pages(order.blocks)
            case PackedStep():
                collectives.timer.begin()
                assert pages is not None, "a step before any pages"
                decoder.forward(inputs_of(order, device), pages)
                connection.send_bytes(pack_times(collectives.timer.times_ns()))


def _end_with_parent() -> None:
    """Even in the midst of a step, when the pipe is not read."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
