"""Which of several engines computes a prompt for the one that goes on with it, and whether one
does (`service.fleet.transfer.split`).

What is known of each is its last load report, and what was sent there since. Pure: gateways and
simulated fleets (`lab.fleet.recorded`) choose by this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from service.fleet.routing.anchors import STRIDE_BLOCKS
from service.fleet.routing.engine_view import (
    ASSUMED_BUDGET_TOKENS,
    ASSUMED_COST,
    spare_ns,
    step_cost_at,
)
from service.fleet.routing.prefix_index import PrefixIndex
from service.fleet.transfer.split import LinkCost, PrefillPlace, Split, choose
from service.fleet.wire.messages import EngineLoad

_MOST_DECODE = 0.5
"""Most share of an inter-token target: engines whose decodes need more of it have no time for
prompts."""


class Computes(NamedTuple):
    """An engine that computes prompts for others, and the way from there."""

    name: str
    load: EngineLoad
    block_tokens: int
    link: LinkCost


class Decodes(NamedTuple):
    """The engine that goes on with a prompt, of which it has `cached_tokens`."""

    name: str
    load: EngineLoad
    cached_tokens: int


class Found(NamedTuple):
    """The cheapest of them for one prompt, of which it is believed to have `cached_tokens`."""

    name: str
    split: Split
    cached_tokens: int


@dataclass(slots=True)
class _Coming:
    """What was sent to an engine that decodes, and is in no report yet."""

    sequences: int = 0
    tokens: int = 0


class PrefillChoice:
    """Remembers what was sent to each engine, since an engine knows of a prompt only when a step is
    over. To those that decode: until the next report. To those that compute prompts, which get them
    from the engine that decodes: until the KV is there, or the sequence has ended."""

    def __init__(self) -> None:
        self._coming: dict[str, _Coming] = defaultdict(_Coming)
        self._away: dict[str, dict[int, int]] = defaultdict(dict)  # tokens by sequence
        self._engines: dict[int, str] = {}  # that compute the prompt of a sequence
        self._prefixes = PrefixIndex()
        self._numbers: dict[str, int] = {}
        self._last_number = 0

    def reported(self, name: str) -> None:
        """A load report has come: it has what was sent to an engine that decodes, nearly always."""
        self._coming.pop(name, None)

    def left(self, name: str) -> None:
        """An engine is gone, and its cache with it."""
        self._coming.pop(name, None)
        for seq_id in self._away.pop(name, {}):
            del self._engines[seq_id]
        number = self._numbers.pop(name, None)
        if number is not None:
            self._prefixes.forget(number)

    def computed(self, seq_id: int) -> None:
        """The prompt of a sequence is computed, or the sequence has ended."""
        name = self._engines.pop(seq_id, None)
        if name is not None:
            del self._away[name][seq_id]

    def best(
        self,
        prompt_tokens: int,
        anchors: tuple[int, ...],
        here: Decodes,
        there: Iterable[Computes],
        ttft_target_ns: int | None = None,
    ) -> Found | None:
        """For a prompt that `here` goes on with, and whose first token is promised within
        `ttft_target_ns`; None: there is no engine to choose."""
        found: Found | None = None
        local = self._here(here)
        for other in there:
            cached = self._cached(other, anchors)
            place = self._there(other, cached)
            split = choose(prompt_tokens, local, place, other.link, ttft_target_ns)
            if found is None or split.remote_ns < found.split.remote_ns:
                found = Found(other.name, split, cached)
        return found

    def sent_away(
        self, seq_id: int, found: Found, here: str, prompt_tokens: int, anchors: tuple[int, ...]
    ) -> None:
        """The prompt of a sequence goes to another engine, which will have its prefixes."""
        name = found.name
        self._coming[here].sequences += 1
        self._away[name][seq_id] = max(0, prompt_tokens - found.cached_tokens)
        self._engines[seq_id] = name
        if name not in self._numbers:
            self._last_number += 1
            self._numbers[name] = self._last_number
        self._prefixes.add(self._numbers[name], anchors)

    def sent_here(self, here: str, tokens: int) -> None:
        """A sequence goes to an engine that computes `tokens` of its prompt itself."""
        coming = self._coming[here]
        coming.sequences += 1
        coming.tokens += tokens

    def _here(self, engine: Decodes) -> PrefillPlace:
        """What computing the prompt here would meet. Sequences that compute their prompt here, wait
        here, or whose KV is on its way decode when it is this prompt's turn. Beside others the
        engine computes as much of a prompt in a step as their inter-token target leaves."""
        load, coming = engine.load, self._coming.get(engine.name) or _Coming()
        place = replace(
            _place(load, engine.cached_tokens),
            waiting_tokens=load.prompt_tokens + coming.tokens,
            residents=load.running + load.waiting + coming.sequences,
        )
        if not place.residents or load.target_ns is None:
            return replace(place, has_time=True)
        cost = place.cost
        decode_ns = cost.decode_step_ns(place.residents, place.context_tokens)
        tokens = spare_ns(cost, decode_ns, load.target_ns) / max(1, cost.prefill_token_ns)
        return replace(
            place,
            chunk_tokens=max(1, min(place.chunk_tokens, int(tokens))),
            has_time=decode_ns <= _MOST_DECODE * load.target_ns,
        )

    def _there(self, engine: Computes, cached_tokens: int) -> PrefillPlace:
        place = _place(engine.load, cached_tokens)
        away = sum(self._away.get(engine.name, {}).values())
        return replace(place, waiting_tokens=max(place.waiting_tokens, away))

    def _cached(self, engine: Computes, anchors: tuple[int, ...]) -> int:
        """How much of a prompt an engine is believed to have, by what was sent there."""
        number = self._numbers.get(engine.name)
        if number is None:
            return 0
        return self._prefixes.depth(number, anchors) * STRIDE_BLOCKS * engine.block_tokens


def _place(load: EngineLoad, cached_tokens: int) -> PrefillPlace:
    return PrefillPlace(
        cost=ASSUMED_COST if load.cost is None else step_cost_at(load.cost, load.drift),
        cached_tokens=cached_tokens,
        waiting_tokens=load.prompt_tokens,
        residents=load.decode_rows,
        context_tokens=load.context_tokens,
        chunk_tokens=load.budget_tokens or ASSUMED_BUDGET_TOKENS,
    )
