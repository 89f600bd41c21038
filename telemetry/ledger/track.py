"""What the ledger keeps of a live sequence."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

from telemetry.requests.account import Part

MAX_STALLS = 64


class Culprit(NamedTuple):
    """The sequence that made a token late, by a prompt (CO_PREFILL) or by masks (CO_MASK), and the
    step in which it took most."""

    part: Part
    seq_id: int
    step_id: int


class LateTokens:
    """The late tokens of one sequence that have a culprit: the longest MAX_STALLS gaps."""

    def __init__(self) -> None:
        self._longest: list[tuple[int, int, int, Culprit]] = []

    def add(self, begin_ns: int, end_ns: int, culprit: Culprit) -> None:
        entry = (end_ns - begin_ns, -begin_ns, end_ns, culprit)
        if len(self._longest) < MAX_STALLS:
            heapq.heappush(self._longest, entry)
        else:
            heapq.heappushpop(self._longest, entry)

    def culprits(self) -> dict[int, Culprit]:
        """Culprits by the stamp of the late token."""
        return {end_ns: culprit for _, _, end_ns, culprit in self._longest}


@dataclass(slots=True)
class Track:
    """The rows of a sequence on the tape: `steps` are the indices of the steps with a row of it,
    and `decoded_ns` the running sum of its decode rows' time up to and including each of those.

    `split` has, by step, how the time of a prompt row divides (see `builder.split_prompt`). The
    last token came at `token_ns` from step `token_step`; a gap above `late_ns` makes a token late
    (None: the request's class is not known). The client did not read in `pause`, its last pause.
    """

    seq_id: int
    hit_tokens: int | None = None
    ghost_tokens: int = 0
    steps: array[int] = field(default_factory=lambda: array("q"))
    decoded_ns: array[int] = field(default_factory=lambda: array("q"))
    decode_ns: int = 0
    split: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    late_ns: int | None = None
    token_ns: int = 0
    token_step: int = -1
    paused_at_ns: int | None = None
    pause: tuple[int, int] = (0, 0)
    late: LateTokens = field(default_factory=LateTokens)

    def paused(self, at_ns: int) -> None:
        if self.paused_at_ns is None:
            self.paused_at_ns = at_ns

    def resumed(self, at_ns: int) -> None:
        if self.paused_at_ns is not None:
            self.pause = (self.paused_at_ns, at_ns)
            self.paused_at_ns = None

    def decodes_ns(self, first: int, stop: int) -> int:
        """Time of its decode rows in the steps [first, stop), in ns."""
        begin, end = bisect_left(self.steps, first), bisect_left(self.steps, stop)
        if begin == end:
            return 0
        return self.decoded_ns[end - 1] - (self.decoded_ns[begin - 1] if begin else 0)
