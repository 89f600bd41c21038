"""What ranks exchange within a step, and how long each of them was held up by the others there.

All ranks leave a sum together, so the longest stay in it is of the rank that came first and the
shortest of the one that came last: their difference is the skew, with no clock in common. It is
added up over all sums of a step, because each of them brings the ranks together again: at the end
of a step one cannot see any more who was late in its first layer.
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


class Stays:
    """How long this rank was in each sum of the present step."""

    def __init__(self, new_mark: Callable[[], Mark]) -> None:
        self._new_mark = new_mark
        self._marks: list[tuple[Mark, Mark]] = []
        self._used = 0

    def begin(self) -> None:
        self._used = 0

    def enter(self) -> None:
        if self._used == len(self._marks):
            self._marks.append((self._new_mark(), self._new_mark()))
        self._marks[self._used][0].record()

    def leave(self) -> None:
        self._marks[self._used][1].record()
        self._used += 1

    def taken_ns(self) -> list[int]:
        """In the order of the sums; waits for the last of them."""
        used = self._marks[: self._used]
        if used:
            used[-1][1].wait()
        return [left.after_ns(entered) for entered, left in used]


def skew_ns(stays_ns: Sequence[Sequence[int]]) -> int:
    """By how much the first ranks were before the last ones, over all sums of a step; of each
    rank its stays."""
    return sum(max(stays) - min(stays) for stays in zip(*stays_ns, strict=True))


class Collectives:
    """Implements `Partition` over torch's process group, as soon as all ranks have met there."""

    def __init__(self, rank: TensorParallelRank, device: torch.device) -> None:
        self.rank = rank
        self.device = device
        self._stays: Stays | None = None

    def meet(self, meeting: str, clock: Clock) -> None:
        """Wait for the other ranks; `meeting` is a file that does not exist, the same for all."""
        on_gpu = self.device.type == "cuda"
        # all ranks are on this machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=f"file://{meeting}",
            rank=self.rank.index,
            world_size=self.rank.count,
            device_id=torch.device("cuda", self.rank.index) if on_gpu else None,
        )
        runtime: Runtime = CudaRuntime(self.device) if on_gpu else StandInRuntime(clock)
        self._stays = Stays(runtime.mark)

    def part(self) -> None:
        """Let go of the group; nothing happens without one."""
        if self._stays is not None:
            self._stays = None
            dist.destroy_process_group()

    @property
    def stays(self) -> Stays:
        assert self._stays is not None, "the ranks have not met"
        return self._stays

    def summed(self, product: Product) -> Product:
        return _Summed(product, self)

    def gathered(self, product: Product) -> Product:
        return _Gathered(product, self)

    def add(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors, in place and on every rank the same."""
        stays = self.stays
        stays.enter()
        dist.all_reduce(part)
        stays.leave()
        return part

    def join(self, part: torch.Tensor) -> torch.Tensor:
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
class _Summed:
    """A product whose inputs are shared out to the ranks."""

    product: Product
    collectives: Collectives

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.collectives.add(self.product(x))


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A product whose outputs are shared out to the ranks."""

    product: Product
    collectives: Collectives

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.collectives.join(self.product(x))
