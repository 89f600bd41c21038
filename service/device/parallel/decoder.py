"""A decoder that is computed by several tensor-parallel ranks at once; this process is rank 0.

Steps are computed eagerly: there is no captured graph with an all-reduce yet. A failure within a
step ends all ranks, because those that did not fail wait for an all-reduce that will not come; so
it is no `StepFailed`, which an engine survives.
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
from service.device.sharding.collectives import Collectives, skew_ns, slowest_rank
from service.device.spec import ModelSpec
from service.device.step_decoder import StepDecoder
from telemetry.facts.clock import Clock


class ParallelDecoder:
    """Implements `StepDecoder` and `OtherRanks`. `own` computes rank 0's part; all ranks are in
    the process group and have pages, each of its own heads."""

    def __init__(self, own: StepDecoder[KvCache], collectives: Collectives, ranks: Ranks) -> None:
        self._own = own
        self._collectives = collectives
        self._ranks = ranks
        self._times_due = False

    @property
    def spec(self) -> ModelSpec:
        """Rank 0's; logits are of the whole vocabulary."""
        return self._own.spec

    @property
    def device(self) -> torch.device:
        return self._own.device

    @property
    def adapters(self) -> None:
        """Other ranks are not told of any."""

    def forward(self, inputs: StepInputs, cache: KvCache) -> torch.Tensor:
        """Compute a step with all ranks: float32 logits [samples, vocab]. Raises RankFailed."""
        if self._times_due:  # not read: the step failed afterwards, or was none of a plan
            self.skew_ns()
        self._ranks.send(pack_step(inputs))
        self._times_due = True
        self._collectives.timer.begin()
        try:
            return self._own.forward(inputs, cache)
        except Exception as error:
            raise self._ranks.failure(error) from error

    def skew_ns(self) -> tuple[int, int]:
        """Of the latest step, and the rank that waited least. Raises RankFailed."""
        own_ns = self._collectives.timer.times_ns()
        self._times_due = False
        times_ns = [own_ns, *self._ranks.receive_times()]
        return skew_ns(times_ns), slowest_rank(times_ns)

    def close(self) -> None:
        self._ranks.close()
        self._collectives.destroy_group()


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
        collectives.init_group(ranks.rendezvous, clock)
        ranks.wait_met()
        return ParallelDecoder(own, collectives, ranks)

    def make_pages(blocks: int) -> KvCache:
        ranks.send(pack(MakePages(blocks)))
        return backend.make_pages(blocks)

    return replace(backend, load=load, make_pages=make_pages)
