"""Which engine computes a prompt, by what was reported and what was sent since."""

from __future__ import annotations

from service.fleet.routing.prefill_choice import Computes, Decodes, PrefillChoice
from service.fleet.transfer.split import LinkCost
from service.fleet.wire.messages import EngineLoad
from telemetry.facts.engine_records import StepCostSet
from telemetry.facts.fleet.kv_transfer_records import Way

LINK = LinkCost(token_bytes=1000, bytes_per_ns=1.0, delay_ns=1000, digest_byte_ns=0.1)
IDLE = EngineLoad()
HERE = Decodes("d", IDLE, 0)
TWO = [Computes(name, IDLE, 16, LINK) for name in ("p0", "p1")]


def test_what_was_sent_counts_until_its_prompt_is_computed() -> None:
    """A report says nothing: an engine in a long step knows nothing of it."""
    choice = PrefillChoice()

    def chosen(seq_id: int) -> str:
        found = choice.best(1000, (), HERE, TWO)
        assert found is not None
        choice.sent_away(seq_id, found, HERE.name, 1000, ())
        return found.name

    assert [chosen(seq_id) for seq_id in range(4)] == ["p0", "p1", "p0", "p1"]
    chosen(4)
    choice.reported("p0")
    assert chosen(5) == "p1"
    choice.computed(0)
    choice.computed(2)
    assert chosen(6) == "p0"


def test_a_prefix_that_was_sent_is_believed_to_be_there_until_the_engine_leaves() -> None:
    choice = PrefillChoice()
    found = choice.best(1000, (7, 8), HERE, TWO[1:])
    assert found is not None
    assert found.cached_tokens == 0
    choice.sent_away(0, found, HERE.name, 1000, (7, 8))
    choice.computed(0)

    again = choice.best(1000, (7, 9), HERE, TWO)
    assert again is not None
    assert (again.name, again.cached_tokens) == ("p1", 64)

    choice.left("p1")
    without = choice.best(1000, (7, 9), HERE, TWO)
    assert without is not None
    assert without.cached_tokens == 0


def test_those_whose_kv_is_on_its_way_are_harmed_as_those_who_decode_already() -> None:
    """So are those whose prompt is computed there: all will decode before this prompt's turn."""
    decoding, coming = (
        EngineLoad(running=3, decode_rows=3, context_tokens=30),
        EngineLoad(waiting=3),
    )
    harms = []
    for here in (IDLE, decoding, coming, EngineLoad(running=3)):
        found = PrefillChoice().best(1000, (), Decodes("d", here, 0), TWO)
        assert found is not None
        harms.append(found.split.harm_ns)
    assert harms[0] == 0
    assert harms[1] == harms[2] == harms[3] > 0


def test_beside_others_a_prompt_takes_the_steps_that_their_inter_token_target_leaves() -> None:
    """Ten milliseconds a token, and 40 of 91 are left by 51 for who decodes: four tokens a step."""
    cost = StepCostSet(
        at_ns=0, step_id=0, base_ns=50_000_000, prefill_token_ns=10_000_000,
        decode_row_ns=1_000_000, context_token_ns=0,
    )  # fmt: skip
    local_ms = []
    for target_ns in (None, 91_000_000):
        here = EngineLoad(
            running=1, decode_rows=1, budget_tokens=512, target_ns=target_ns, cost=cost
        )
        found = PrefillChoice().best(100, (), Decodes("d", here, 0), TWO)
        assert found is not None
        local_ms.append(found.split.local_ns // 1_000_000)
    assert local_ms == [51 + 1_000, 25 * 51 + 1_000]


def test_without_an_engine_there_is_nothing_to_choose() -> None:
    assert PrefillChoice().best(1000, (), HERE, []) is None


def test_a_prompt_that_was_sent_to_the_decoding_engine_is_there_before_its_report() -> None:
    """It waits there, and decodes beside the next one."""
    choice = PrefillChoice()
    choice.sent_here("d", 1000)
    found = choice.best(1000, (), HERE, TWO)
    assert found is not None
    assert found.split.way is Way.REMOTE
    choice.reported("d")
    again = choice.best(1000, (), HERE, TWO)
    assert again is not None
    assert again.split.way is Way.LOCAL


def test_those_who_decode_have_time_for_a_prompt_if_they_need_half_of_their_target() -> None:
    """A step of the four of them takes 54 ms. The other engine is late by its queue."""
    cost = StepCostSet(
        at_ns=0, step_id=0, base_ns=50_000_000, prefill_token_ns=1_000_000,
        decode_row_ns=1_000_000, context_token_ns=0,
    )  # fmt: skip
    busy = Computes("p", EngineLoad(prompt_tokens=1_000, budget_tokens=512, cost=cost), 16, LINK)
    ways = []
    for target_ns in (None, 109_000_000, 107_000_000):
        here = EngineLoad(
            running=4, decode_rows=4, budget_tokens=512, target_ns=target_ns, cost=cost
        )
        found = PrefillChoice().best(500, (), Decodes("d", here, 0), [busy], 1_500_000_000)
        assert found is not None
        assert found.split.remote_ns > 1_500_000_000 > found.split.local_ns
        assert found.split.remote_ns < found.split.local_ns + found.split.harm_ns
        ways.append(found.split.way)
    assert ways == [Way.LOCAL, Way.LOCAL, Way.REMOTE]
