"""A decoder whose parts are computed by several ranks at once; this process is the first of them.

Steps are computed eagerly: a captured graph that sums over ranks is not there yet. A failure in the
midst of a step is the end of all ranks, because those that did not fail wait for a sum that will
not come; so it is no `StepFailed`, which an engine outlives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from service.device.backend import Backend
from service.device.cache.kv_cache import KvCache
from service.device.inputs import StepInputs
from service.device.parallel.messages import MakePages, pack, pack_step
from service.device.parallel.ranks import Ranks
from service.device.sharding.collectives import Collectives, skew_ns
from service.device.spec import ModelSpec
from service.device.torch_executor import StepDecoder
from telemetry.facts.clock import Clock


class ParallelDecoder:
    """Implements `StepDecoder` and `OtherRanks`. `own` computes rank 0's part; all ranks have met
    and have pages, each of its own heads."""

    def __init__(self, own: StepDecoder[KvCache], collectives: Collectives, ranks: Ranks) -> None:
        self._own = own
        self._collectives = collectives
        self._ranks = ranks
        self._stays_due = False

    @property
    def spec(self) -> ModelSpec:
        """Rank 0's; logits are of the whole vocabulary."""
        return self._own.spec

    @property
    def device(self) -> torch.device:
        return self._own.device

    def forward(self, inputs: StepInputs, cache: KvCache) -> torch.Tensor:
        """Compute a step with all ranks: float32 logits [samples, vocab]. Raises RankFailed."""
        if self._stays_due:  # nobody asked: the step failed after this, or was none of a plan
            self.skew_ns()
        self._ranks.send(pack_step(inputs))
        self._stays_due = True
        self._collectives.stays.begin()
        try:
            return self._own.forward(inputs, cache)
        except Exception as error:
            raise self._ranks.failure(error) from error

    def skew_ns(self) -> int:
        """Of the latest step. Raises RankFailed."""
        own_ns = self._collectives.stays.taken_ns()
        self._stays_due = False
        return skew_ns([own_ns, *self._ranks.receive_stays()])

    def close(self) -> None:
        self._ranks.close()
        self._collectives.part()


def with_ranks(
    backend: Backend[Any, KvCache], ranks: Ranks, clock: Clock
) -> Backend[ParallelDecoder, KvCache]:
    """All ranks together, of the back end that is rank 0's: `load` ends when each has loaded its
    part and they have met, `make_pages` makes as many everywhere."""
    collectives = backend.collectives
    assert collectives is not None, "a single rank has no others"

    def load() -> ParallelDecoder:
        ranks.start()
        own = backend.load()
        ranks.wait_loaded()
        collectives.meet(ranks.meeting, clock)
        return ParallelDecoder(own, collectives, ranks)

    def make_pages(blocks: int) -> KvCache:
        ranks.send(pack(MakePages(blocks)))
        return backend.make_pages(blocks)

    return replace(backend, load=load, make_pages=make_pages)
