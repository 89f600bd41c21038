"""What clients ask of a fleet: sessions of one or more turns, drawn from a seed.

Three traces, of shapes of our own:

    sharegpt        single requests with the lengths of `lab.load.workload.sharegpt`, whose means
                    are those of published runs on ShareGPT; outputs are cut at 200 tokens
    shared_prefix   short questions below the system prompt of a tenant; tenants by Zipf's law, with
                    more prompts than one engine's cache holds
    agentic         a system prompt of an application, then turns that each repeat all that was said
                    before and add the result of a tool, with a pause for the tool

A client caps its outputs, here at `MAX_TOKENS`; the text ends before, at a length that no router
sees. Traces that others have recorded are read by `lab.fleet.public_traces`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from random import Random

import numpy as np

from lab.load.workload import sharegpt

MAX_TOKENS = 256
_VOCAB = 50_000
_MOST_OUTPUTS = 200
_SECOND = 1_000_000_000


class Trace(StrEnum):
    """The traces, by name."""

    SHAREGPT = "sharegpt"
    SHARED_PREFIX = "shared_prefix"
    AGENTIC = "agentic"


@dataclass(frozen=True, slots=True)
class Turn:
    """`new_tokens` are added to what was said before; the answer has `output_tokens`. The next turn
    comes `pause_ns` after its end."""

    new_tokens: int
    output_tokens: int
    pause_ns: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """A client that comes at `at_ns`. Its first prompt begins with the `prefix`, which it has in
    common with others of its tenant. Its texts follow from `seed`."""

    at_ns: int
    tenant: str
    prefix: tuple[int, ...]
    turns: tuple[Turn, ...]
    seed: int
    max_tokens: int = MAX_TOKENS

    def new_tokens(self, turn: int) -> list[int]:
        """The token ids that a turn adds."""
        random = Random(self.seed * 1009 + turn)
        return random.choices(range(_VOCAB), k=self.turns[turn].new_tokens)


def sessions(
    trace: Trace, seed: int, engines: int, rate_per_s: float, span_s: float
) -> list[Session]:
    """Sessions that come in `span_s` seconds, on average `rate_per_s` for each of the engines. The
    larger the fleet, the more tenants it has."""
    random = Random(f"{trace}/{seed}/{engines}")
    times = list(_poisson(random, rate_per_s * engines, span_s))
    match trace:
        case Trace.SHAREGPT:
            return _sharegpt(random, times, seed)
        case Trace.SHARED_PREFIX:
            return _shared_prefix(random, times, tenants=6 * engines)
        case Trace.AGENTIC:
            return _agentic(random, times, applications=max(2, engines // 2))


def _poisson(random: Random, rate_per_s: float, span_s: float) -> Iterator[int]:
    at_s = random.expovariate(rate_per_s)
    while at_s < span_s:
        yield int(at_s * _SECOND)
        at_s += random.expovariate(rate_per_s)


def _sharegpt(random: Random, times: list[int], seed: int) -> list[Session]:
    rng, found = np.random.default_rng([seed, 7]), list[Session]()
    for at_ns in times:
        prompt, output = sharegpt.draw(rng)
        turn = Turn(prompt, min(output, _MOST_OUTPUTS))
        found.append(Session(at_ns, "", (), (turn,), random.getrandbits(40)))
    return found


def _shared_prefix(random: Random, times: list[int], tenants: int) -> list[Session]:
    prefixes = [_text(random, random.randint(600, 1800)) for _ in range(tenants)]
    weights = list(accumulate(1 / (rank + 4) for rank in range(tenants)))
    found = list[Session]()
    for at_ns in times:
        tenant = random.choices(range(tenants), cum_weights=weights)[0]
        turn = Turn(random.randint(20, 150), random.randint(10, 60))
        prefix = prefixes[tenant]
        found.append(Session(at_ns, f"t{tenant}", prefix, (turn,), random.getrandbits(40)))
    return found


def _agentic(random: Random, times: list[int], applications: int) -> list[Session]:
    prefixes = [_text(random, random.randint(800, 2000)) for _ in range(applications)]
    found = list[Session]()
    for at_ns in times:
        app = random.randrange(applications)
        turns = tuple(_agent_turn(random) for _ in range(random.randint(3, 10)))
        found.append(Session(at_ns, f"a{app}", prefixes[app], turns, random.getrandbits(40)))
    return found


def _agent_turn(random: Random) -> Turn:
    """The result of a tool, and a short answer that calls the next one."""
    new = min(1200, max(20, round(random.lognormvariate(5.0, 0.8))))
    return Turn(new, random.randint(15, 90), int(random.expovariate(1.0) * _SECOND))


def _text(random: Random, tokens: int) -> tuple[int, ...]:
    return tuple(random.choices(range(_VOCAB), k=tokens))
