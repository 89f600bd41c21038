"""What the executor asks of a device beyond tensors: graphs, marks in its stream of work, memory
that it copies from and to by itself.

`StandInRuntime` is a CPU that keeps the same promises, so that everything around the kernels can
be tested without a GPU: a graph is its function run again over the same memory, and work is done
when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from telemetry.facts.clock import Clock

_WARM_UPS = 2


class Graph(Protocol):
    """Work that was captured; its inputs and outputs are tensors that stay where they are."""

    def replay(self) -> None: ...


class Mark(Protocol):
    """A place in the stream of work."""

    def record(self) -> None:
        """Behind all that was asked for until now."""
        ...

    def is_reached(self) -> bool:
        """Whether all before it is done already."""
        ...

    def wait(self) -> None:
        """Until all before it is done."""
        ...

    def after_ns(self, earlier: Mark) -> int:
        """Device time between two marks that are both done."""
        ...


class Runtime(Protocol):
    """One device."""

    @property
    def device(self) -> torch.device: ...

    def capture(self, run: Callable[[], None]) -> Graph:
        """`run` may be called several times before; it must not wait for the device."""
        ...

    def mark(self, in_graph: bool = False) -> Mark:
        """One that is recorded `in_graph` is recorded again whenever that is replayed."""
        ...

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of the host that copies need not wait for."""
        ...

    def release_unused(self) -> None:
        """Give back what is kept for later, so that pieces become one again."""
        ...


class CudaRuntime:
    """Implements `Runtime` with torch's CUDA. Graphs share one pool, so the largest has to be
    captured first."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, run: Callable[[], None]) -> Graph:
        current = torch.cuda.current_stream(self.device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            for _ in range(_WARM_UPS):
                run()
        current.wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        return graph

    def mark(self, in_graph: bool = False) -> Mark:
        return _CudaMark(in_graph)

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def release_unused(self) -> None:
        torch.cuda.empty_cache()


class _CudaMark:
    def __init__(self, in_graph: bool) -> None:
        more = {"external": True} if in_graph else {}
        self._event = torch.cuda.Event(enable_timing=True, **more)  # type: ignore[no-untyped-call]

    def record(self) -> None:
        self._event.record()

    def is_reached(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()

    def after_ns(self, earlier: Mark) -> int:
        assert isinstance(earlier, _CudaMark)
        return int(earlier._event.elapsed_time(self._event) * 1e6)


class StandInRuntime:
    """Implements `Runtime` on a CPU. `replays` counts what was replayed, `released` how often
    memory was given back."""

    device = torch.device("cpu")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.captured = 0
        self.replays = 0
        self.released = 0

    def capture(self, run: Callable[[], None]) -> Graph:
        run()
        self.captured += 1
        return _RerunGraph(self, run)

    def mark(self, in_graph: bool = False) -> Mark:
        del in_graph
        return _HostMark(self._clock)

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def release_unused(self) -> None:
        self.released += 1


class _RerunGraph:
    def __init__(self, runtime: StandInRuntime, run: Callable[[], None]) -> None:
        self._runtime, self._run = runtime, run

    def replay(self) -> None:
        self._runtime.replays += 1
        self._run()


class _HostMark:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_ns: int | None = None

    def record(self) -> None:
        self._at_ns = self._clock.now_ns()

    def is_reached(self) -> bool:
        return self._at_ns is not None

    def wait(self) -> None:
        assert self._at_ns is not None, "nothing was recorded"

    def after_ns(self, earlier: Mark) -> int:
        assert isinstance(earlier, _HostMark)
        assert self._at_ns is not None
        assert earlier._at_ns is not None
        return self._at_ns - earlier._at_ns
