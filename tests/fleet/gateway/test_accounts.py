"""How long a gateway waits for the account of a sequence that has ended, and which of its sequences
it lists."""

from __future__ import annotations

from service.engine.inbox import Submit
from service.engine.plan import SamplingParams
from service.fleet.membership.members import Member
from service.gateway.fleet.link import EngineLink
from service.gateway.fleet.sent_sequence import SentSequence
from service.gateway.fleet.sent_sequences import SentSequences
from service.process.live_sequences import EVERY_NS
from telemetry.facts.clock import ManualClock, MonotonicClock
from telemetry.facts.engine_records import SequenceEnded, SequencesListed
from telemetry.facts.fleet.sequence_records import RemoteAccounted
from telemetry.facts.reasons import EndReason
from telemetry.facts.records import Fact
from telemetry.journal.live_requests import LiveRequests
from telemetry.journal.watchdog import StallWatchdog
from telemetry.pump.pump import Fold
from telemetry.requests.phase_fold import PhaseFold
from telemetry.stats.histograms import Histograms
from telemetry.stats.window_fold import WindowFold
from tests.fleet.fleet_world import (
    GatewayWorld,
    NodeWorld,
    accounts,
    cancellation,
    run,
    steps,
    until,
)

SUBMIT = Submit(seq_id=1, prompt=[], max_tokens=4, sampling=SamplingParams(seed=1))


class Ahead(MonotonicClock):
    """A clock that is moved on."""

    ahead_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.ahead_ns


def test_the_account_of_a_cancelled_sequence_is_waited_for_from_its_end_on() -> None:
    """The step in which the engine sees the cancellation may be longer than that."""

    async def case() -> None:
        async with NodeWorld() as node:
            world, clock = GatewayWorld(node), Ahead()
            world.clock = world.client.clock = clock
            async with world as gateway:
                await gateway.until(n0="ready")
                asked = gateway.ask("r", max_tokens=50)
                await steps(node, 2)
                await asked.take(ends=0, tokens=2)
                asked.cancel(EndReason.STOP_STRING)
                asked.end(EndReason.STOP_STRING)
                clock.ahead_ns = 5_000_000_000
                await cancellation(node)
                await asked.take()
                gateway.client._give_up()
                (found,) = await accounts(gateway, node)
                assert found.account is not None

    run(case)


def test_a_gateway_lists_its_sequences_once_a_minute_and_after_it_lost_facts() -> None:
    """Those whose accounts are waited for are among them."""

    async def case() -> None:
        clock = ManualClock()
        remotes = SentSequences(clock)
        link = EngineLink(Member(name="n0", host="127.0.0.1", port=1), GatewayWorld().client)
        live, ending, over = (SentSequence(number, link, 5, "r", 3, SUBMIT) for number in (1, 2, 3))
        for remote in (live, ending, over):
            remotes.begun(remote)
        for remote in (ending, over):
            remotes.ended(remote, EndReason.MAX_TOKENS, 0)
        assert remotes.accounted(link, 3) is over

        assert remotes.listed(facts_lost=0) == []
        clock.advance(EVERY_NS)
        assert remotes.listed(facts_lost=0) == [SequencesListed(EVERY_NS, (1, 2), 3)]
        assert remotes.listed(facts_lost=0) == []
        assert remotes.listed(facts_lost=7) == [SequencesListed(EVERY_NS, (1, 2), 3)]
        assert remotes.listed(facts_lost=7) == []

    run(case)


def test_a_sequence_whose_end_a_gateway_lost_is_soon_live_in_no_fold() -> None:
    """There is no engine in its process that would list it, or say that it is idle."""

    async def case() -> None:
        async with NodeWorld() as node, GatewayWorld(node) as gateway:
            facts: list[Fact] = []

            def recorded(kind: type) -> bool:
                node.telemetry.pump.run_once()
                facts.extend(gateway.lane.drain())
                return any(isinstance(fact, kind) for fact in facts)

            await gateway.until(n0="ready")
            asked = gateway.ask("r")
            await steps(node, 4)
            await asked.take()
            asked.end(EndReason.MAX_TOKENS)
            await until(lambda: recorded(SequenceEnded), "its end")
            gateway.lane.lost += 1  # as a full lane counts
            await until(lambda: recorded(SequencesListed), "a list")

            left = [one for one in facts if not isinstance(one, SequenceEnded | RemoteAccounted)]
            window, watchdog = WindowFold(Histograms()), StallWatchdog(10**9)
            phases, carried = PhaseFold(), LiveRequests()
            folds: list[Fold] = [window, watchdog, phases]
            for fold in folds:
                fold.on_facts(left)
            for fact in left:
                carried.take(fact)
            live = (window.live, watchdog.live, phases.live_sequences, carried.live)
            assert live == (0, 0, 0, 0)

    run(case)
