"""What a gateway knows of each sequence that it has sent to an engine."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from telemetry.facts.engine_records import SequencesListed
from telemetry.facts.fleet.routing_records import RequestRouted
from telemetry.facts.fleet.sequence_records import SequenceSent

_KEPT = 65_536


@dataclass(slots=True, eq=False)
class Sequence:
    """Stamps are the gateway's. `anchors` name prefixes of its prompt; the engine had
    `had_tokens` of it before. What is not known yet is None. `outputs` have come. `busy_ns` is
    the engine's time in steps when it was admitted (`steps`)."""

    seq_id: int
    request_id: str
    engine: str
    sent_ns: int
    prompt_tokens: int
    anchors: tuple[int, ...] = ()
    had_tokens: int = 0
    admitted_ns: int | None = None
    computed_tokens: int | None = None
    busy_ns: int = 0
    first_ns: int | None = None
    outputs: int = 0

    @property
    def to_compute_tokens(self) -> int:
        """The tokens of its prompt to compute: all, as long as nothing is known of what was found
        there."""
        return self.prompt_tokens if self.computed_tokens is None else self.computed_tokens

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.outputs


class Sequences:
    """The sequences that are at engines. A sequence belongs to the request that was routed to that
    engine at that moment; further sequences of a request have no route of their own."""

    def __init__(self) -> None:
        self.live: OrderedDict[int, Sequence] = OrderedDict()
        self._routed: RequestRouted | None = None
        self._had_tokens = 0

    def routed(self, fact: RequestRouted, had_tokens: int) -> None:
        self._routed, self._had_tokens = fact, had_tokens

    def sent(self, fact: SequenceSent) -> Sequence | None:
        """The first sequence of a request that was routed; None: another one of it, of which the
        prompt is not known."""
        routed, self._routed = self._routed, None
        if routed is None or (routed.engine, routed.at_ns) != (fact.engine, fact.at_ns):
            return None
        found = Sequence(
            fact.seq_id,
            routed.request_id,
            routed.engine,
            fact.at_ns,
            routed.prompt_tokens,
            routed.anchors,
            self._had_tokens,
        )
        self.live[fact.seq_id] = found
        if len(self.live) > _KEPT:
            self.live.popitem(last=False)
        return found

    def listed(self, fact: SequencesListed) -> None:
        """The end of a sequence that is not listed was lost."""
        for seq_id in fact.over(list(self.live)):
            del self.live[seq_id]

    def left(self, engine: str) -> None:
        """An incarnation of an engine is gone, with all that was there."""
        for seq_id in [one.seq_id for one in self.live.values() if one.engine == engine]:
            del self.live[seq_id]

    def lost(self) -> None:
        """Facts of the gateway are missing: first tokens and ends of those that are live may be
        among them."""
        self.live.clear()
