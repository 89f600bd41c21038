"""The gateway's owner of limits that change: what is in force is what the engine has confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from lab.simulation.scenarios import small_limits
from service.engine.inbox import SetLimits
from service.engine.limits_record import LimitError, record_of
from service.gateway.engine_client.runtime_limits import EngineGone, RuntimeLimitsOwner
from telemetry.facts.engine_records import EngineStarted, LimitsSet
from telemetry.facts.limits import LimitsView, LimitValue


def started(at_ns: int = 0, **limits: object) -> EngineStarted:
    return EngineStarted(
        at_ns=at_ns, pid=1, model="m", backend="b", dtype="d", pipeline_depth=1,
        **record_of(small_limits(**limits)),
    )  # fmt: skip


class Engine:
    """What the owner has sent, and the facts that come back when a test says so."""

    def __init__(self, confirm_s: float = 5.0, **limits: object) -> None:
        self.sent: list[SetLimits] = []
        self.owner = RuntimeLimitsOwner(self.sent.append, confirm_s)
        self.owner.engine_started(started(**limits))
        self.now_ns = 0

    def confirm(self, command: SetLimits) -> None:
        self.now_ns += 1_000_000_000
        fact = LimitsSet(self.now_ns, 0, command.limits, command.changed, command.by, command.why)
        self.owner.limits_set(fact)

    def restart(self, **limits: object) -> None:
        self.owner.engine_ended()
        self.owner.engine_started(started(self.now_ns, **limits))

    def confirm_all(self) -> None:
        while self.sent:
            self.confirm(self.sent.pop(0))

    async def change(self, by: str = "me", why: str = "", **values: LimitValue) -> None:
        """A change that the engine confirms."""
        waiting = asyncio.create_task(self.owner.change(values, by, why))
        await asyncio.sleep(0)
        self.confirm_all()
        await waiting

    @property
    def view(self) -> LimitsView:
        found = self.owner.view(self.now_ns)
        assert found is not None
        return found

    @property
    def changed(self) -> dict[str, LimitValue]:
        return {name: one.value for name, one in self.view.limits.items() if one.changed}


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_a_change_is_in_force_when_the_engine_says_so_and_not_before() -> None:
    async def test() -> None:
        engine = Engine()
        waiting = asyncio.create_task(engine.owner.change({"max_num_seqs": 3}, "me", "why not"))
        await asyncio.sleep(0)
        assert (engine.changed, waiting.done()) == ({}, False)
        engine.confirm_all()
        await waiting
        assert engine.changed == {"max_num_seqs": 3}
        limit = engine.view.limits["max_num_seqs"]
        assert limit.changed is not None
        assert (limit.at_start, limit.changed.by, limit.changed.why) == (8, "me", "why not")

    run(test())


def test_changes_that_are_on_their_way_are_not_taken_back_by_the_next() -> None:
    async def test() -> None:
        engine = Engine()
        first = asyncio.create_task(engine.owner.change({"max_num_seqs": 3}, "me", ""))
        second = asyncio.create_task(engine.owner.change({"queue_limit": 7}, "you", ""))
        await asyncio.sleep(0)
        engine.confirm_all()
        await asyncio.gather(first, second)
        assert engine.changed == {"max_num_seqs": 3, "queue_limit": 7}
        assert [list(one.limits) for one in engine.view.changes] == [
            ["max_num_seqs"],
            ["queue_limit"],
        ]

    run(test())


def test_a_fact_that_was_lost_delays_no_later_change() -> None:
    async def test() -> None:
        engine = Engine(confirm_s=0.05)
        with pytest.raises(TimeoutError):
            await engine.owner.change({"max_num_seqs": 3}, "me", "")
        engine.sent.clear()
        await engine.change(queue_limit=7)
        assert engine.changed == {"max_num_seqs": 3, "queue_limit": 7}

    run(test())


def test_an_engine_that_ends_first_loses_the_change() -> None:
    async def test() -> None:
        engine = Engine()
        waiting = asyncio.create_task(engine.owner.change({"max_num_seqs": 3}, "me", ""))
        await asyncio.sleep(0)
        engine.sent.clear()
        engine.restart()
        with pytest.raises(EngineGone):
            await waiting
        assert (engine.changed, engine.sent) == ({}, [])

    run(test())


def test_a_new_engine_gets_what_was_in_force_and_says_who_had_set_it() -> None:
    async def test() -> None:
        engine = Engine()
        await engine.change(max_num_seqs=3, max_batched_tokens=4, itl_target_ms=50.0)
        await engine.change(by="you", why="a flood", tenant_weights={"a": 2.0})
        engine.restart()
        assert engine.changed == {}
        (again,) = engine.sent
        assert (again.by, again.why) == ("restart", "limits in force before the engine restarted")
        engine.confirm_all()
        assert engine.changed == {
            "max_batched_tokens": 4, "max_num_seqs": 3, "itl_target_ms": 50.0,
            "tenant_weights": {"a": 2.0},
        }  # fmt: skip
        weights = engine.view.limits["tenant_weights"].changed
        assert weights is not None
        assert (weights.by, weights.why) == ("you", "a flood")
        assert engine.view.changes[-1].set.by == "restart"

    run(test())


def test_limits_survive_an_engine_that_dies_before_it_has_them() -> None:
    async def test() -> None:
        engine = Engine()
        await engine.change(max_num_seqs=3)
        for _ in range(2):
            engine.restart()
        engine.sent.pop(0)  # it died with the engine that got it
        engine.confirm_all()
        assert engine.changed == {"max_num_seqs": 3}

    run(test())


def test_what_the_new_engine_cannot_have_is_dropped_and_said() -> None:
    """A value that depends on the one that is dropped may still be possible."""

    async def test() -> None:
        engine = Engine(draft_tokens=3)
        await engine.change(max_num_seqs=6, max_batched_tokens=7, speculative_tokens=2)
        engine.restart(max_seqs=4)
        engine.confirm_all()
        assert engine.changed == {"max_batched_tokens": 7}
        why = engine.view.changes[-1].set.why
        assert "not any more: max_num_seqs: 1 to 4" in why
        assert "speculative_tokens: 0, since" in why
        engine.restart(max_seqs=4)
        assert engine.sent[-1].changed == ("max_batched_tokens",)

    run(test())


def test_auto_has_the_cap_of_the_start_or_another_one_and_keeps_it() -> None:
    async def test() -> None:
        engine = Engine()
        await engine.change(max_batched_tokens=9)
        await engine.change(max_batched_tokens="auto")
        assert engine.view.limits["max_auto_tokens"].value == 16
        await engine.change(max_auto_tokens=12, max_batched_tokens="auto")
        assert engine.changed == {"max_batched_tokens": "auto", "max_auto_tokens": 12}
        engine.restart()
        engine.confirm_all()
        assert engine.changed == {"max_batched_tokens": "auto", "max_auto_tokens": 12}
        await engine.change(max_batched_tokens=16)
        assert engine.changed == {}
        with pytest.raises(LimitError, match="only with max_batched_tokens auto"):
            await engine.change(max_auto_tokens=12)

    run(test())


def test_a_limit_that_is_what_it_was_is_no_change() -> None:
    async def test() -> None:
        engine = Engine()
        await engine.owner.change({"max_num_seqs": 8}, "me", "")
        assert engine.sent == []
        await engine.change(max_num_seqs=3)
        await engine.change(max_num_seqs=8)
        assert (engine.changed, len(engine.view.changes)) == ({}, 2)
        engine.restart()
        assert engine.sent == []

    run(test())


def test_the_last_changes_are_kept_and_no_more() -> None:
    async def test() -> None:
        engine = Engine()
        for number in range(40):
            await engine.change(queue_limit=number + 1, why=str(number))
        assert [one.set.why for one in engine.view.changes] == [str(n) for n in range(8, 40)]

    run(test())
