"""Token ids that stand for the texts of a recorded fleet.

No text is in a record. An anchor names a prefix of a prompt (`service.fleet.routing.anchors`): two
prompts that have one in common have that prefix in common. So an anchor's part of a prompt is one
token id, over and over, that belongs to the anchor alone, and what is behind the last anchor
belongs to the prompt alone: a simulated cache has the same hits.

A conversation goes on from a prompt *and its answer*, which no anchor shows. It is taken to do so
where a recorded hit ends with the block in which an earlier answer ended, whose prompt's anchors
all are the new one's too. A turn that found no cache is not known as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from lab.fleet.recorded.record import RecordedAsk
from telemetry.facts.fleet.routing_records import ANCHOR_BLOCKS

_FIRST_OF_ANCHORS, _FIRST_OF_ASKS = 1 << 40, 1 << 41


class Texts:
    """Prompts and outputs of `asks`, which are in the order of their arrival."""

    def __init__(self, asks: Sequence[RecordedAsk], block_tokens: int) -> None:
        self._stride = ANCHOR_BLOCKS * block_tokens
        self._block_tokens = block_tokens
        self._anchors: dict[int, int] = {}
        self._next_turns: dict[int, RecordedAsk] = {}
        self._numbers = {ask.seq_id: number for number, ask in enumerate(asks)}
        self._find_turns(asks)

    def prompt(self, ask: RecordedAsk) -> list[int]:
        """The token ids of a prompt, as many as were sent."""
        return [self._token(ask, place) for place in range(ask.prompt_tokens)]

    def output(self, ask: RecordedAsk, index: int) -> int:
        """The output of that index."""
        return self._token(ask, ask.prompt_tokens + index)

    def _token(self, ask: RecordedAsk, place: int) -> int:
        """The token at a place of prompt and output as one text."""
        part, anchors = place // self._stride, ask.routed.anchors
        if part < len(anchors):
            return _FIRST_OF_ANCHORS + self._anchors.setdefault(anchors[part], len(self._anchors))
        following = self._next_turns.get(ask.seq_id)
        if following is not None and place < following.prompt_tokens:
            return self._token(following, place)
        return _FIRST_OF_ASKS + self._numbers[ask.seq_id]

    def _find_turns(self, asks: Sequence[RecordedAsk]) -> None:
        by_anchor: dict[int, list[RecordedAsk]] = defaultdict(list)
        for ask in asks:
            before = self._turn_before(ask, by_anchor)
            if before is not None:
                self._next_turns[before.seq_id] = ask
            if ask.routed.anchors:
                by_anchor[ask.routed.anchors[-1]].append(ask)

    def _turn_before(
        self, ask: RecordedAsk, by_anchor: dict[int, list[RecordedAsk]]
    ) -> RecordedAsk | None:
        """The earlier text with the longest prefix, and of these the latest, at whose end its hit
        ended."""
        hit, anchors = ask.hit_tokens, ask.routed.anchors
        for count in range(min(len(anchors), hit // self._stride), 0, -1):
            for before in reversed(by_anchor[anchors[count - 1]]):
                if before.seq_id in self._next_turns or before.ended_ns is None:
                    continue
                all_tokens = before.prompt_tokens + before.tokens
                is_its_end = abs(all_tokens - hit) <= self._block_tokens
                if is_its_end and before.ended_ns <= ask.at_ns and all_tokens < ask.prompt_tokens:
                    return before
        return None
