"""What a fault is: something that edits a life before it is lived."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random

from lab.twins.life import Life, Span
from lab.twins.traffic import Setting
from telemetry.facts.records import Fact


def _no_preparation(setting: Setting, draw: Random) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One mechanism of one class.

    `prepare` makes a server of the kind that can suffer from it, healthy still; `strike` is the
    fault itself, in a span of the life. A fault of the configuration has `worsen` instead: it
    makes a bad setting of a good one, given the facts of a life under the good one, and is there
    from the start. `victims` tells whom the culprits hurt, where that is known only afterwards.
    """

    prepare: Callable[[Setting, Random], None] = _no_preparation
    strike: Callable[[Life, Span, Random], None] | None = None
    worsen: Callable[[Setting, Sequence[Fact], Random], None] | None = None
    victims: Callable[[Sequence[Fact], Collection[str]], frozenset[str]] | None = None


Mechanisms = dict[str, Fault]
"""Ways in which one thing goes wrong, the usual one first."""
