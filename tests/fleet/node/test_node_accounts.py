"""The account of a sequence goes to the gateway that sent it, whoever has its id next."""

from __future__ import annotations

from functools import partial

from service.composition.node.accounts import Accounts
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.fleet.sequence_records import RemoteAccount
from tests.fleet.fleet_world import (
    GatewayWorld,
    NodeWorld,
    accounts,
    cancellation,
    run,
    steps,
    until,
)


class Still(MonotonicClock):
    """A clock by which no account is late."""

    def now_ns(self) -> int:
        return 1


def gateway_of(node: NodeWorld) -> GatewayWorld:
    world = GatewayWorld(node)
    world.clock = world.client.clock = Still()
    return world


async def account_at(gateway: GatewayWorld, node: NodeWorld) -> RemoteAccount:
    """What the gateway was told of its one sequence."""
    (found,) = await accounts(gateway, node)
    assert found.account is not None
    return found.account


def test_two_gateways_that_use_one_id_in_turn_get_the_accounts_of_their_own_sequences() -> None:
    """The first account is not drawn up when the second sequence ends."""

    async def case() -> None:
        async with NodeWorld() as node, gateway_of(node) as one, gateway_of(node) as other:
            await one.until(n0="ready")
            await other.until(n0="ready")
            first = one.ask("r")
            await steps(node, 4)
            await first.take()
            between_ns = node.clock.now_ns()
            second = other.ask("r")
            await steps(node, 4)
            await second.take()

            assert (await account_at(one, node)).last_emission_ns <= between_ns
            assert (await account_at(other, node)).received_ns >= between_ns
            assert set(node.telemetry.timelines) == {"r"}  # the second had the same id there

    run(case)


def test_the_account_of_a_sequence_whose_gateway_has_left_goes_to_no_other_gateway() -> None:
    async def case() -> None:
        async with NodeWorld() as node, gateway_of(node) as other:
            leaving = gateway_of(node)
            await leaving.__aenter__()
            await leaving.until(n0="ready")
            await other.until(n0="ready")
            leaving.ask("r")
            await steps(node, 1)
            await leaving.__aexit__()
            await until(lambda: node.listener.gateways == 1, "it has left")
            await cancellation(node)
            between_ns = node.clock.now_ns()
            second = other.ask("r")
            await steps(node, 4)
            await second.take()

            assert (await account_at(other, node)).received_ns >= between_ns

    run(case)


def test_accounts_that_never_come_are_given_up_from_the_oldest_on() -> None:
    """So what is kept of them is bounded, whatever is recorded."""

    async def case() -> None:
        given_up: list[int] = []

        def send(number: int, account: RemoteAccount | None) -> None:
            given_up.append(number)

        waiting = Accounts()
        for number in range(8200):
            waiting.expect("r", number, partial(send, number))
        assert given_up == list(range(8))

    run(case)
