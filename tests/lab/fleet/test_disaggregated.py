"""Prefill and decode apart in virtual time: invariants hold whatever fails, and each of them finds
a build that breaks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace as with_fields
from typing import Any

import pytest
from msgspec.structs import replace

from lab.fleet.disaggregated.network import LinkModel
from lab.fleet.disaggregated.scenario import MS, SECOND, STATES, Ask, Fault, Scenario, scenario_of
from lab.fleet.disaggregated.world import Builds, World
from lab.replay.recorded import read_runs
from lab.replay.replay_exact import replay_exactly
from lab.simulation.evidence import InvariantViolated
from lab.simulation.sim_executor import LinearCost
from service.engine.admission import Limits
from service.engine.inbox import ReleaseKv
from service.engine.plan import Emission, Sample
from service.engine.scheduler import Scheduler
from service.engine.sequences.request import Request
from service.fleet.transfer.actions import Action, Arrived, Checked, Send, Tell
from service.fleet.transfer.decode_side import DecodeSide, Receiving
from service.fleet.transfer.epochs import SeenEpochs
from service.fleet.transfer.messages import Abort, Begin, Fenced, Layout, PeerId
from service.fleet.transfer.prefill_side import PrefillSide
from service.fleet.transfer.sending import PrefillSideSettings, Sending
from service.fleet.transfer.transport import STAGING_BYTES
from service.process.kv_exchange import DECODE_PATIENCE, PREFILL_PATIENCE
from telemetry.facts.reasons import EndReason
from telemetry.requests.kv_accounts import KvPart

SEEDS = range(80)


def test_every_invariant_holds_in_worlds_with_every_fault() -> None:
    """And most faults find the state that they wait for."""
    ends: Counter[EndReason] = Counter()
    hit = admitted = 0
    for seed in SEEDS:
        report = World(scenario_of(seed)).run()
        ends += report.ends
        hit += len(report.hit)
        admitted += report.admitted

    assert hit > len(SEEDS) / 3
    assert admitted > len(SEEDS)
    assert ends[EndReason.ENGINE_DIED]


def test_seeds_go_through_every_fault_in_every_state() -> None:
    wanted = {(fault, *state) for fault in Fault for state in STATES}
    found = {
        (fault.fault, fault.side, fault.state)
        for seed in range(2 * len(wanted))
        for fault in scenario_of(seed).faults
    }

    assert len(wanted) >= 30
    assert found == wanted


def test_a_world_is_a_function_of_its_scenario() -> None:
    one, other = (World(scenario_of(4)).run() for _ in range(2))

    assert one.journals == other.journals


@pytest.mark.parametrize("seed", range(20, 24))
def test_every_engine_of_a_world_is_replayed_exactly(seed: int) -> None:
    for facts in World(scenario_of(seed)).run().journals:
        (run,) = read_runs(facts)
        identity = replay_exactly(run)
        assert identity.holds, identity.difference


def test_a_transfer_whose_prompt_waits_15_s_in_the_other_queue_is_admitted() -> None:
    """Its lease is 10 s in production, and goes on while the other engine says that it waits."""
    limits = Limits(
        block_tokens=4, blocks_total=40, max_model_tokens=64, max_seqs=2, budget_tokens=4,
        chunked_prefill=True, queue_limit_requests=10, queue_limit_tokens=1000,
        prefix_cache=False, cache_identity="simulated",
    )  # fmt: skip
    ahead = Ask(at_ns=0, prompt=tuple(range(20)), max_tokens=2, remote=True)
    waits = Ask(at_ns=SECOND, prompt=tuple(range(100, 108)), max_tokens=2, remote=True)
    scenario = Scenario(
        seed=0,
        asks=(ahead, waits),
        limits=limits,
        cost=LinearCost(prefill_token_ns=SECOND),
        decode_patience=DECODE_PATIENCE,
        prefill_patience=PREFILL_PATIENCE,
    )
    world = World(scenario)
    report = world.run()

    assert report.admitted == 2
    assert world.invariants.accounts[-1].parts[KvPart.QUEUE] > 15 * SECOND


@pytest.mark.parametrize("staging_bytes", [20, 200, 1200])
def test_prompts_that_wait_longer_for_room_than_their_lease_are_admitted(
    staging_bytes: int,
) -> None:
    """Their blocks take six seconds; a block has 68 bytes."""
    limits = Limits(
        block_tokens=4, blocks_total=80, max_model_tokens=64, max_seqs=4, budget_tokens=64,
        chunked_prefill=True, queue_limit_requests=10, queue_limit_tokens=1000,
        prefix_cache=False, cache_identity="simulated",
    )  # fmt: skip
    prompts = [tuple(range(100 * n, 100 * n + 40)) for n in range(3)]
    scenario = Scenario(
        seed=0,
        asks=tuple(Ask(at_ns=0, prompt=one, max_tokens=2, remote=True) for one in prompts),
        limits=limits,
        link=LinkModel(block_ns=200 * MS),
        prefill_patience=PrefillSideSettings(staging_bytes=staging_bytes),
    )
    report = World(scenario).run()

    assert report.admitted == 3
    assert report.landed_blocks == 30


class SaysEndsTwice(Scheduler):
    def cancel(self, seq_id: int, reason: EndReason) -> None:
        if seq_id in self.table.live:
            super().cancel(seq_id, reason)
            self.log.emit(Emission(seq_id, None, reason))


class KeepsHits(Scheduler):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.table.give_up_blocks = self._forget  # type: ignore[method-assign]

    def _forget(self, request: Request) -> None:
        request.blocks, request.awaits_kv, request.cached_blocks = [], False, 0


class NeverReleases(DecodeSide):
    def _free(self, one: Receiving) -> list[Action]:
        return [a for a in super()._free(one) if not isinstance(a, Tell)]


class FreesAtTheEndOfTheLease(DecodeSide):
    def _fence(self, one: Receiving, now_ns: int) -> list[Action]:
        return [*super()._fence(one, now_ns), Tell(ReleaseKv(one.epoch))]


class BelievesSeals(DecodeSide):
    def _checked(self, one: Receiving, event: Checked, now_ns: int) -> list[Action]:
        return super()._checked(one, Checked(event.epoch, 0), now_ns)


class SendsAnotherToken(PrefillSide):
    def _seal_if_arrived(self, one: Sending, now_ns: int) -> list[Action]:
        one.first = one.first and Sample(one.first.token_id + 1)
        return super()._seal_if_arrived(one, now_ns)


class CountsTwice(PrefillSide):
    def _seal_if_arrived(self, one: Sending, now_ns: int) -> list[Action]:
        actions = super()._seal_if_arrived(one, now_ns)
        if one.seal is None:
            return actions
        remote = replace(one.seal.remote, queue_ns=2 * one.seal.remote.elapsed_ns + 10**9)
        one.seal = replace(one.seal, remote=remote)
        return [Send(one.peer, one.seal) if isinstance(a, Send) else a for a in actions]


class ForgetsEpochs(PrefillSide):
    def _seen_of(self, peer: PeerId) -> SeenEpochs:
        return SeenEpochs()


class SaysFencedAtOnce(PrefillSide):
    def _stop(self, one: Sending) -> list[Action]:
        return [*super()._stop(one), Send(one.peer, Fenced(one.epoch))]


class IgnoresAborts(PrefillSide):
    def _arrived(self, event: Arrived, now_ns: int) -> list[Action]:
        if isinstance(event.message, Abort):
            return []
        return super()._arrived(event, now_ns)


class PushesAtOnce(PrefillSide):
    def __init__(
        self, layout: Layout, number: Callable[[Begin], int], patience: PrefillSideSettings
    ) -> None:
        super().__init__(layout, number, with_fields(patience, staging_bytes=STAGING_BYTES))


BROKEN = [
    (1, 5, Builds(scheduler=SaysEndsTwice)),
    (2, 0, Builds(scheduler=KeepsHits)),
    (3, 0, Builds(decode_side=NeverReleases)),
    (4, 7, Builds(decode_side=FreesAtTheEndOfTheLease)),
    (5, 6, Builds(decode_side=BelievesSeals)),
    (6, 0, Builds(prefill_side=SendsAnotherToken)),
    (7, 0, Builds(prefill_side=CountsTwice)),
    (8, 0, Builds(prefill_side=ForgetsEpochs)),
    (8, 9, Builds(prefill_side=SaysFencedAtOnce)),
    (9, 57, Builds(prefill_side=IgnoresAborts)),
    (10, 3, Builds(prefill_side=PushesAtOnce)),
]
"""The invariant that each breaks, and a seed whose world shows it."""


@pytest.mark.parametrize(("number", "seed", "builds"), BROKEN)
def test_a_broken_build_is_found_by_the_invariant_that_it_breaks(
    number: int, seed: int, builds: Builds
) -> None:
    with pytest.raises(InvariantViolated) as found:
        World(scenario_of(seed), builds).run()

    assert found.value.number == number


def test_the_worlds_that_show_broken_builds_are_healthy_without() -> None:
    for seed in {seed for _, seed, _ in BROKEN}:
        World(scenario_of(seed)).run()
