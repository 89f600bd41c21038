"""Which engine computes a prompt, by what was reported and what was sent since."""

from __future__ import annotations

from service.fleet.routing.prefill_choice import Computes, PrefillChoice
from service.fleet.transfer.split import LinkCost
from service.fleet.wire.messages import Load

LINK = LinkCost(token_bytes=1000, bytes_per_ns=1.0, delay_ns=1000, digest_byte_ns=0.1)
IDLE = Load()
TWO = [Computes(name, IDLE, 16, LINK) for name in ("p0", "p1")]


def test_what_was_sent_counts_until_the_next_report() -> None:
    choice = PrefillChoice()

    def chosen() -> str:
        found = choice.best(1000, 0, (), IDLE, TWO)
        assert found is not None
        choice.sent(found, 1000, ())
        return found.name

    assert [chosen() for _ in range(4)] == ["p0", "p1", "p0", "p1"]
    chosen()
    choice.reported("p0")
    assert chosen() == "p0"


def test_a_prefix_that_was_sent_is_believed_to_be_there_until_the_engine_leaves() -> None:
    choice = PrefillChoice()
    found = choice.best(1000, 0, (7, 8), IDLE, TWO[1:])
    assert found is not None
    assert found.cached_tokens == 0
    choice.sent(found, 1000, (7, 8))
    choice.reported("p1")

    again = choice.best(1000, 0, (7, 9), IDLE, TWO)
    assert again is not None
    assert (again.name, again.cached_tokens) == ("p1", 64)

    choice.left("p1")
    without = choice.best(1000, 0, (7, 9), IDLE, TWO)
    assert without is not None
    assert without.cached_tokens == 0


def test_those_whose_kv_is_on_its_way_are_harmed_as_those_who_decode_already() -> None:
    """They will be there before this prompt is computed."""
    decoding, coming = Load(running=3, decode_rows=3, context_tokens=30), Load(waiting=3)
    harms = []
    for here in (IDLE, decoding, coming):
        found = PrefillChoice().best(1000, 0, (), here, TWO)
        assert found is not None
        harms.append(found.split.harm_ns)
    assert harms[0] == 0
    assert harms[1] == harms[2] > 0


def test_without_an_engine_there_is_nothing_to_choose() -> None:
    assert PrefillChoice().best(1000, 0, (), IDLE, []) is None
