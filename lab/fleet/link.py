"""The link between a gateway and an engine."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A frame takes `delay_ns`. A report takes up to `jitter_ns` more, so that one may pass
    another, and is lost with a chance of `report_loss`; frames of requests are neither lost nor
    reordered, as over TCP. An engine reports each `report_period_ns`, and each `whole_each`-th time
    tells all the prefixes that it holds; 0: it tells none."""

    delay_ns: int = 500_000
    jitter_ns: int = 0
    report_period_ns: int = 500 * _MS
    report_loss: float = 0.0
    whole_each: int = 16

    def report_arrives(self, made_ns: int, random: Random) -> int | None:
        """When a report comes; None: it does not."""
        if self.report_loss and random.random() < self.report_loss:
            return None
        extra_ns = random.randrange(self.jitter_ns) if self.jitter_ns else 0
        return made_ns + self.delay_ns + extra_ns
