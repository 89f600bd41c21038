"""Which of several engines computes a prompt for the one that goes on with it, and whether one
does (`service.fleet.transfer.split`).

What is known of each is its last load report, and what was sent there since. Pure: gateways and
simulated fleets (`lab.fleet.recorded`) choose by this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from service.fleet.routing.anchors import STRIDE_BLOCKS
from service.fleet.routing.engine_view import ASSUMED_BUDGET_TOKENS, ASSUMED_COST, step_cost_at
from service.fleet.routing.prefix_index import PrefixIndex
from service.fleet.transfer.split import LinkCost, PrefillPlace, Split, choose
from service.fleet.wire.messages import Load


class Computes(NamedTuple):
    """An engine that computes prompts for others, and the way from there."""

    name: str
    load: Load
    block_tokens: int
    link: LinkCost


class Found(NamedTuple):
    """The cheapest of them for one prompt, of which it is believed to have `cached_tokens`."""

    name: str
    split: Split
    cached_tokens: int


class PrefillChoice:
    """Remembers what was sent to each engine that computes prompts."""

    def __init__(self) -> None:
        self._sent_tokens: Counter[str] = Counter()
        self._prefixes = PrefixIndex()
        self._numbers: dict[str, int] = {}
        self._last_number = 0

    def reported(self, name: str) -> None:
        """A load report has come: it has what was sent before, nearly always."""
        self._sent_tokens[name] = 0

    def left(self, name: str) -> None:
        """An engine is gone, and its cache with it."""
        self._sent_tokens.pop(name, None)
        number = self._numbers.pop(name, None)
        if number is not None:
            self._prefixes.forget(number)

    def best(
        self,
        prompt_tokens: int,
        cached_tokens: int,
        anchors: tuple[int, ...],
        here: Load,
        there: Iterable[Computes],
    ) -> Found | None:
        """For a prompt of which the engine that goes on has `cached_tokens`; None: there is no
        engine to choose."""
        found: Found | None = None
        for other in there:
            cached = self._cached(other, anchors)
            split = choose(
                prompt_tokens,
                _place(here, cached_tokens, 0),
                _place(other.load, cached, self._sent_tokens[other.name]),
                other.link,
            )
            if found is None or split.remote_ns < found.split.remote_ns:
                found = Found(other.name, split, cached)
        return found

    def sent(self, found: Found, prompt_tokens: int, anchors: tuple[int, ...]) -> None:
        """The prompt goes there, which will have its prefixes."""
        name = found.name
        self._sent_tokens[name] += max(0, prompt_tokens - found.cached_tokens)
        if name not in self._numbers:
            self._last_number += 1
            self._numbers[name] = self._last_number
        self._prefixes.add(self._numbers[name], anchors)

    def _cached(self, engine: Computes, anchors: tuple[int, ...]) -> int:
        """How much of a prompt an engine is believed to have, by what was sent there."""
        number = self._numbers.get(engine.name)
        if number is None:
            return 0
        for depth, holders in self._prefixes.matches(anchors):
            if number in holders:
                return depth * STRIDE_BLOCKS * engine.block_tokens
        return 0


def _place(load: Load, cached_tokens: int, sent_tokens: int) -> PrefillPlace:
    """Those who wait there, or whose KV is on its way, decode when it is this prompt's turn."""
    return PrefillPlace(
        cost=ASSUMED_COST if load.cost is None else step_cost_at(load.cost, load.drift),
        cached_tokens=cached_tokens,
        waiting_tokens=load.prompt_tokens + sent_tokens,
        residents=load.decode_rows + load.waiting,
        context_tokens=load.context_tokens,
        chunk_tokens=load.budget_tokens or ASSUMED_BUDGET_TOKENS,
    )
