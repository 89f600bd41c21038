"""The index of prefixes and the order by load say what plain ones say, whatever is done to them."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest

from service.fleet.routing.load_order import LoadOrder
from service.fleet.routing.prefix_index import PrefixIndex
from service.fleet.routing.prefix_runs import MOST_TOGETHER

ENGINES, STEPS = 5, 150


class Plain:
    """Each anchor by itself: who holds it, first come first, and each engine's in order of use."""

    def __init__(self) -> None:
        self.holders: dict[int, dict[int, None]] = {}
        self.held: dict[int, OrderedDict[int, None]] = {}

    def add(self, index: int, anchors: tuple[int, ...], most: int) -> None:
        held = self.held.setdefault(index, OrderedDict())
        for anchor in anchors:
            held[anchor] = None
            held.move_to_end(anchor)
            self.holders.setdefault(anchor, {})[index] = None
        self.remove(index, tuple(held)[: max(0, len(held) - most)])

    def remove(self, index: int, anchors: tuple[int, ...]) -> None:
        for anchor in anchors:
            if anchor in self.held.get(index, ()):
                del self.held[index][anchor]
                del self.holders[anchor][index]

    def replace(self, index: int, anchors: tuple[int, ...], most: int) -> None:
        held = tuple(self.held.get(index, ()))
        self.remove(index, tuple(one for one in held if one not in anchors))
        self.add(index, anchors, most)

    def matches(self, anchors: tuple[int, ...]) -> list[tuple[int, list[int]]]:
        found = [(depth, list(self.holders.get(one, ()))) for depth, one in enumerate(anchors, 1)]
        return [(depth, holders) for depth, holders in reversed(found) if holders]


def _prompt(random: Random, prompts: list[tuple[int, ...]]) -> tuple[int, ...]:
    """A new one, one that was there, the begin of one with an end of its own, or of no order."""
    old = random.choice(prompts) if prompts else ()
    new = tuple(random.getrandbits(60) for _ in range(random.choice((0, 1, 5, 30, 90))))
    match random.randrange(5):
        case 0:
            found = new
        case 1:
            found = old
        case 2:
            found = old[: random.randrange(len(old) + 1)] + new[:20]
        case 3:
            found = old[random.randrange(len(old) + 1) :] + old[:3]
        case _:
            found = tuple(random.randrange(20) for _ in range(random.randrange(12)))
    prompts.append(found)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_runs_of_anchors_hold_what_anchors_by_themselves_hold(seed: int) -> None:
    random, index, plain = Random(seed), PrefixIndex(), Plain()
    prompts: list[tuple[int, ...]] = []
    for _ in range(STEPS):
        engine, anchors = random.randrange(ENGINES), _prompt(random, prompts)
        match random.choices(range(4), (70, 15, 5, 2))[0]:
            case 0:
                most = random.choice((40, 200, 1000))
                index.add(engine, anchors, most)
                plain.add(engine, anchors, most)
            case 1:
                index.remove(engine, anchors)
                plain.remove(engine, anchors)
            case 2:
                index.replace(engine, anchors)
                plain.replace(engine, anchors, 1000)
            case _:
                index.forget(engine)
                plain.remove(engine, tuple(plain.held.get(engine, ())))
        index.check()
        _agree(index, plain, _prompt(random, prompts))


def _agree(index: PrefixIndex, plain: Plain, prompt: tuple[int, ...]) -> None:
    for engine in range(ENGINES):
        assert index.held(engine) == list(plain.held.get(engine, ()))
    all_matches, last = plain.matches(prompt), None
    by_depth = dict(all_matches)
    for depth, holders in index.matches(prompt):
        assert list(holders) == by_depth.pop(depth)
        for between in [one for one in by_depth if one > depth]:  # passed over
            assert by_depth.pop(between) == last
        last = list(holders)
    assert all(holders == last for holders in by_depth.values())
    for engine in range(ENGINES):
        right = next((depth for depth, holders in all_matches if engine in holders), 0)
        assert index.depth(engine, prompt) == right


def test_a_prompt_that_one_engine_holds_is_found_in_few_steps() -> None:
    """However long it is: a choice looks at runs, not at anchors."""
    index, anchors = PrefixIndex(), tuple(range(1000, 1000 + MOST_TOGETHER))
    index.add(1, anchors)
    assert [depth for depth, _ in index.matches(anchors)] == [MOST_TOGETHER]
    index.add(2, (*anchors[:20], 7, 8))
    assert [depth for depth, _ in index.matches(anchors)] == [MOST_TOGETHER, 20]
    assert [depth for depth, _ in index.matches((*anchors[:20], 7, 8, 9))] == [22, 20]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_by_load_is_that_of_the_keys(seed: int) -> None:
    random, order, keys = Random(seed), LoadOrder(), dict[int, int]()
    for _ in range(400):
        index, key = random.randrange(40), random.choice((0, 5, random.randrange(1 << 50)))
        if random.random() < 0.2:
            order.remove(index)
            keys.pop(index, None)
        else:
            order.set(index, key)
            keys[index] = key
        order.check()
        right = sorted(keys, key=lambda one: (keys[one], one))
        assert list(order.least(len(keys))) == right
        more = random.choice((0, 1, 1 << 49))
        if right:
            near = [one for one in right if keys[one] <= keys[right[0]] + more]
            assert order.up_to(more, 3) == near[-3:]
