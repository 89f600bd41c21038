"""The collectives of tensor parallelism, and how long each rank was in them.

All ranks leave an all-reduce together, so the rank that came first was in it longest and the one
that came last shortest: their difference is the skew, without a clock in common. It is added up
over all all-reduces of a step, because each of them lines the ranks up again: at the end of a step
nothing shows any more which rank was late in its first layer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from service.config.settings import ConfigError, EngineConfig
from service.device.cuda.runtime import CudaRuntime, Mark, Runtime, StandInRuntime
from service.device.quantization.linear import Product
from service.device.sharding.shard import TensorParallelRank
from telemetry.facts.clock import Clock


def refuse_impossible(config: EngineConfig, device: torch.device) -> None:
    """Raise ConfigError when so many ranks cannot be had here, or not with what else is wanted."""
    count = config.tensor_parallel
    if config.kv_offload_bytes is not None:
        raise ConfigError(
            "--kv-offload copies the blocks of one rank only; leave it or --tensor-parallel out"
        )
    if not dist.is_available():
        raise ConfigError(f"--tensor-parallel {count}: this torch has no torch.distributed; use 1")
    if device.type == "cuda" and torch.cuda.device_count() < count:
        raise ConfigError(
            f"--tensor-parallel {count}: each rank needs a GPU of its own, and torch finds "
            f"{torch.cuda.device_count()}; use as many or fewer"
        )


class CollectiveTimer:
    """How long this rank was in each all-reduce of the present step."""

    def __init__(self, new_mark: Callable[[], Mark]) -> None:
        self._new_mark = new_mark
        self._marks: list[tuple[Mark, Mark]] = []
        self._used = 0

    def begin(self) -> None:
        self._used = 0

    def start(self) -> None:
        if self._used == len(self._marks):
            self._marks.append((self._new_mark(), self._new_mark()))
        self._marks[self._used][0].record()

    def stop(self) -> None:
        self._marks[self._used][1].record()
        self._used += 1

    def times_ns(self) -> list[int]:
        """One for each all-reduce, in their order; waits for the last of them."""
        used = self._marks[: self._used]
        if used:
            used[-1][1].wait()
        return [stopped.after_ns(started) for started, stopped in used]


def skew_ns(times_ns: Sequence[Sequence[int]]) -> int:
    """By how much the first ranks were before the last ones, over all all-reduces of a step;
    `times_ns` are `CollectiveTimer.times_ns` of each rank."""
    return sum(max(times) - min(times) for times in zip(*times_ns, strict=True))


def slowest_rank(times_ns: Sequence[Sequence[int]]) -> int:
    """The rank that waited least in all-reduces: the others were there before it."""
    return min(range(len(times_ns)), key=lambda rank: sum(times_ns[rank]))


class Collectives:
    """Implements `Partition` over torch's process group, from `init_group` to `destroy_group`."""

    def __init__(self, rank: TensorParallelRank, device: torch.device) -> None:
        self.rank = rank
        self.device = device
        self._timer: CollectiveTimer | None = None

    def init_group(self, rendezvous: str, clock: Clock) -> None:
        """Wait for the other ranks; `rendezvous` is the path of a file that does not exist yet."""
        on_gpu = self.device.type == "cuda"
        # all ranks are on this machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=f"file://{rendezvous}",
            rank=self.rank.index,
            world_size=self.rank.count,
            device_id=torch.device("cuda", self.rank.index) if on_gpu else None,
        )
        runtime: Runtime = CudaRuntime(self.device) if on_gpu else StandInRuntime(clock)
        self._timer = CollectiveTimer(runtime.mark)

    def destroy_group(self) -> None:
        """Nothing happens without one."""
        if self._timer is not None:
            self._timer = None
            dist.destroy_process_group()

    @property
    def timer(self) -> CollectiveTimer:
        assert self._timer is not None, "there is no process group"
        return self._timer

    def row_parallel(self, product: Product) -> Product:
        return _RowParallel(product, self)

    def column_parallel(self, product: Product) -> Product:
        return _ColumnParallel(product, self)

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors, in place and on every rank the same."""
        timer = self.timer
        timer.start()
        dist.all_reduce(part)
        timer.stop()
        return part

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """Rank 0 gets [rows, all columns] of all ranks' [rows, columns]; the others, who have no
        use for it, get back their own. Nothing is exchanged where there are no rows."""
        rows, columns = part.shape
        if not rows:
            return part.new_empty(0, columns * self.rank.count)
        if self.rank.index:
            dist.gather(part, dst=0)
            return part
        parts = [torch.empty_like(part) for _ in range(self.rank.count)]
        dist.gather(part, parts, dst=0)
        return torch.cat(parts, dim=1)


@dataclass(frozen=True, slots=True)
class _RowParallel:
    """A product whose inputs are split over the ranks."""

    product: Product
    collectives: Collectives

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.collectives.all_reduce(self.product(x))


@dataclass(frozen=True, slots=True)
class _ColumnParallel:
    """A product whose outputs are split over the ranks."""

    product: Product
    collectives: Collectives

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.collectives.gather(self.product(x))
