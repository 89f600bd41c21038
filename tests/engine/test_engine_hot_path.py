"""What the engine does between two steps does not grow with what a client sent, or what is kept.

Work is counted, not timed.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lab.replay.recorded import read_runs
from lab.replay.replay_exact import replay_exactly
from lab.simulation.scenarios import Scenario, small_limits
from lab.simulation.sim_executor import SimExecutor
from lab.simulation.workload import Arrival
from lab.simulation.world import World
from service.device.sampling.sampler import Sampler
from service.engine.admission import Limits
from service.engine.draft_proposer import NgramProposer
from service.engine.inbox import Inbox, Submit
from service.engine.kv.cpu_offload import CpuOffloadIndex, Retention
from service.engine.loop import EngineLoop
from service.engine.plan import DecodeRow, SamplingParams, SlotStart
from service.engine.scheduler import Scheduler
from telemetry.facts.clock import ManualClock
from telemetry.facts.engine_records import SequenceAdmitted, SequenceQueued
from telemetry.facts.recorder import Lane
from tests.support.worlds.engine_world import World as Small


class Compared(int):
    """A token id that counts how often it is compared."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return int.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = int.__hash__


def test_a_token_is_not_compared_with_each_of_the_stop_tokens() -> None:
    stops = frozenset(Compared(5000 + number) for number in range(500))
    world = Small()
    seq_id = world.submit(4, max_tokens=8, stop_token_ids=stops)
    world.step()
    Compared.count = 0
    world.run()
    assert len(world.outputs[seq_id]) == 8
    assert Compared.count < 100


class Ops(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_logit_bias_of_many_tokens_takes_no_more_operations_than_one() -> None:
    counts = []
    for size in (1, 300):
        bias = {3 * token: (token % 7) - 3.5 for token in range(size)}
        logits = torch.zeros(1, 1000)
        sampler = Sampler(1000)
        params = SamplingParams(temperature=0.0, logit_bias=bias)
        sampler.start(SlotStart(0, 1, params, [1], (), 0, ()))
        with Ops() as ops:
            ((sampled,),) = sampler.sample([DecodeRow(1, 0, 1, [0], 0)], logits)
        counts.append(ops.count)
        assert sampled.token_id == max(range(1000), key=lambda t: (bias.get(t, 0.0), -t))
    assert counts[0] == counts[1]


class CountedRetention:
    """A policy that counts how often a block's age is asked for."""

    def __init__(self, ttl_ns: int) -> None:
        self._ttl_ns = ttl_ns
        self.asked = 0

    @property
    def ttl_ns(self) -> int:
        self.asked += 1
        return self._ttl_ns

    def slots_of(self, slots: int) -> int:
        return slots


def test_offloading_a_block_does_not_scan_all_offloaded_blocks() -> None:
    retention = CountedRetention(10**9)
    tier = CpuOffloadIndex(5000, retention)  # type: ignore[arg-type]
    for number in range(4000):
        tier.put(number.to_bytes(4), "t", number)
    retention.asked = 0
    tier.put(b"new", "t", 4000)
    assert retention.asked <= 3


class NaiveTier:
    """The same index, by a scan of everything."""

    def __init__(self, slots: int, share: int, ttl_ns: int) -> None:
        self._slots, self._share, self._ttl_ns = slots, share, ttl_ns
        self._kept: dict[bytes, tuple[str, int]] = {}  # used longest ago first

    def put(self, digest: bytes, tenant: str, now_ns: int) -> list[bytes]:
        gone = [d for d, (_, since_ns) in self._kept.items() if now_ns - since_ns > self._ttl_ns]
        for old in gone:
            del self._kept[old]
        if digest in self._kept:
            self._kept[digest] = self._kept.pop(digest)
            return gone
        own = [d for d, (owner, _) in self._kept.items() if owner == tenant]
        last = own[:1] if len(own) >= self._share else []
        if not last and len(self._kept) == self._slots:
            last = list(self._kept)[:1]
        for old in last:
            del self._kept[old]
        self._kept[digest] = (tenant, now_ns)
        return gone + last


PUTS = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from("ab"), st.integers(0, 30)), max_size=60
)


@settings(max_examples=200, deadline=None)
@given(PUTS)
def test_the_policy_decides_which_offloaded_blocks_are_dropped_in_which_order(
    puts: list[tuple[int, str, int]],
) -> None:
    tier, naive = CpuOffloadIndex(6, Retention(tenant_share=0.7, ttl_ns=40)), NaiveTier(6, 4, 40)
    now_ns = 0
    for number, tenant, passed_ns in puts:
        now_ns += passed_ns
        digest = bytes([number])
        assert tier.put(digest, tenant, now_ns)[1] == naive.put(digest, tenant, now_ns)
        tier.check()


def test_a_long_prompt_is_indexed_for_drafts_over_several_proposals() -> None:
    """At once it delayed every other sequence: 2 us a token."""
    proposer = NgramProposer()
    proposer.extend([*range(20_000), 7, 8, 9, *range(30_000, 30_100), 7, 8])
    assert proposer.propose(1) == [9], "the beginning is known, and the nearest place is not"
    proposer.extend([9])
    assert proposer.propose(1) == [10]
    for _ in range(40):
        proposer.propose(1)
    assert proposer.propose(1) == [30_000]


def test_a_short_prompt_is_indexed_before_the_first_draft() -> None:
    proposer = NgramProposer()
    proposer.extend([1, 2, 3, 4, 1, 2])
    assert proposer.propose(3) == [3, 4, 1]


class Watched(Scheduler):
    """Tells when its bookkeeping is walked."""

    checks = 0

    def check(self) -> None:
        self.checks += 1
        super().check()


def test_the_last_token_is_given_out_before_the_pool_is_checked() -> None:
    limits = Limits(
        block_tokens=4, blocks_total=64, max_model_tokens=64, max_seqs=8, budget_tokens=16,
        chunked_prefill=True, queue_limit_requests=100, queue_limit_tokens=1000,
    )  # fmt: skip
    clock, inbox, scheduler = ManualClock(), Inbox(), Watched(limits)
    loop = EngineLoop(scheduler, SimExecutor(clock, 64, 4), inbox, Lane(), clock)
    sampling = SamplingParams(temperature=0.0)
    inbox.put(Submit(seq_id=1, prompt=[1, 2], max_tokens=2, sampling=sampling))
    loop.step()
    (emission,) = loop.step()
    assert emission.end is not None
    assert scheduler.checks == 0
    loop.check_idle()
    loop.check_idle()
    assert scheduler.checks == 1


LONG = 4 * 600


def long_world() -> Small:
    return Small(
        blocks_total=2000, max_model_tokens=LONG + 64, budget_tokens=256, cache_identity="m"
    )


def test_a_long_prompt_is_not_hashed_whole_when_it_is_submitted() -> None:
    world = long_world()
    world.submit(LONG, max_tokens=2)
    world.loop.apply_commands()
    (request,) = world.scheduler.table.live.values()
    assert len(request.digests) == 512
    world.step()
    assert len(request.digests) == 512, "nothing of it was cached, so nothing more was looked for"


def test_all_of_a_long_prompt_is_found_again_although_its_aliases_were_recorded_in_parts() -> None:
    """And the record has aliases for all of it, so that a replay has the same hits."""
    world = long_world()
    for _ in range(2):
        world.submit(LONG, max_tokens=2, given=[token % 997 for token in range(LONG)])
        world.run()
    admitted = [fact for fact in world.facts if isinstance(fact, SequenceAdmitted)]
    assert [fact.hit_tokens for fact in admitted] == [0, LONG - 4]
    queued = [fact for fact in world.facts if isinstance(fact, SequenceQueued)]
    assert [len(fact.blocks or ()) for fact in queued] == [512, 512]


def test_a_record_with_long_prompts_replays_decision_by_decision() -> None:
    """Some are cancelled while they wait or are computed, before all their aliases are recorded."""
    random = Random(5)
    texts = [tuple(random.randrange(900) for _ in range(LONG)) for _ in range(2)]
    arrivals = [
        Arrival(
            at_ns=number * 40_000_000,
            prompt=texts[number % 2][: LONG - 40 * (number % 3)],
            max_tokens=3,
            cancel_ns=None if number % 3 else random.randrange(400_000_000),
        )
        for number in range(12)
    ]
    limits = small_limits(blocks_total=1500, max_model_tokens=LONG + 8, budget_tokens=512)
    scenario = Scenario(name="long", seed=1, limits=limits, arrivals=tuple(arrivals))
    facts = list(World(scenario).run().facts)
    (identity,) = [replay_exactly(run) for run in read_runs(facts)]
    assert identity.difference is None, str(identity.difference)
    hits = [fact.hit_tokens for fact in facts if isinstance(fact, SequenceAdmitted)]
    assert max(hits) > 4 * 512, "the cache had more of a prompt than its entry names"
