"""How long a gateway waits for the account of a sequence that has ended."""

from __future__ import annotations

from telemetry.facts.clock import MonotonicClock
from telemetry.facts.reasons import EndReason
from tests.fleet.fleet_world import GatewayWorld, NodeWorld, accounts, cancellation, run, steps


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
