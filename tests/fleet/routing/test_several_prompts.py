"""Prompts that are sent together, as inputs to embed, weigh as much as if each was sent alone."""

from __future__ import annotations

from service.fleet.routing.decision_replay import replay_decisions
from service.fleet.routing.engine_view import EngineView
from tests.fleet.routing.walks import Fleet

PROMPTS = 8


def view_of(fleet: Fleet) -> EngineView:
    return fleet.router._book.by_name["e0"]


def weight(fleet: Fleet) -> tuple[object, ...]:
    view = view_of(fleet)
    return (view.residents, view.rows, view.context_tokens, view.free_blocks, view.decode_ns)


def test_prompts_that_are_sent_together_are_believed_to_be_there_as_single_ones_are() -> None:
    """Before a report contains them, after one does, and when all have ended."""
    together, apart = Fleet(1), Fleet(1)
    together.send(together.request(sequences=PROMPTS, prompts=PROMPTS))
    for _ in range(PROMPTS):
        apart.send()
    assert weight(together) == weight(apart)
    assert weight(together)[:3] == (PROMPTS, PROMPTS, PROMPTS * 200)

    for fleet in (together, apart):
        fleet.report("e0", waiting=PROMPTS, prompt_tokens=PROMPTS * 200)
    assert weight(together) == weight(apart)

    for number in range(PROMPTS - 1):
        together.end_choice("r1", "e0")
        apart.end(f"r{number + 1}", "e0")
    together.end("r1", "e0")
    apart.end(f"r{PROMPTS}", "e0")
    assert weight(together) == weight(apart)
    assert weight(together)[:3] == (0, 0, 0)
    for fleet in (together, apart):
        fleet.router.check()
        assert not replay_decisions(fleet.facts).differing


def test_an_engine_with_several_prompts_to_compute_is_spared() -> None:
    """Three single prompts go to the other one, after each other."""
    fleet = Fleet(2)
    first = fleet.send(fleet.request(sequences=PROMPTS, prompts=PROMPTS))

    others = [fleet.send(fleet.request()) for _ in range(3)]
    assert first not in others
    assert not replay_decisions(fleet.facts).differing
