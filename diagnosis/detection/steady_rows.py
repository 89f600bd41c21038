"""Streams that get one token in each step, counted by step and not by row.

In a server with many streams nearly every row of a step is of a sequence that had a token in the
step before too. It gets one more, and the gap before it is the time between the two commits, which
is the same for all of them. Such a sequence is steady, and its row is plain: a decode that gives
one token. Of a step, one gap is kept for all steady sequences. Their tokens and gaps are added up
when a sequence is no longer steady, or when they are needed. Only the other rows are looked at one
by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from diagnosis.detection.late import NEVER_NS
from telemetry.facts.engine_records import Row, StepRecorded

_KEPT = 64  # gaps, until they are added up

Settle = Callable[[int, int, int, int], None]


class _Split(NamedTuple):
    """Places of the rows with one token each, by sequence, and those of the others."""

    plain: dict[int, int]
    odd: list[int]


class _Last:
    """The step that was split last: several folds ask for it in turn."""

    pair: tuple[StepRecorded | None, _Split] = (None, _Split({}, []))


def _split(step: StepRecorded) -> _Split:
    known, found = _Last.pair
    if known is not step:
        plain, odd = dict[int, int](), list[int]()
        for place, row in enumerate(step.rows):
            if row.sampled == 1 and not row.is_prefill and not row.wasted:
                plain[row.seq_id] = place
            else:
                odd.append(place)
        names = {step.rows[place].seq_id for place in odd}
        if len(names - plain.keys()) + len(plain) < len(step.rows):  # one has several rows
            plain, odd = {}, list(range(len(step.rows)))
        found = _Split(plain, odd)
        _Last.pair = (step, found)
    return found


class SteadyRows:
    """`settle` is called with a sequence, its tokens since it was settled last, the longest of the
    gaps before these, and the commit of the last one, in ns."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._since: dict[int, int] = {}  # gaps that are not those of a sequence
        self._gaps_ns: list[int] = []  # of each step
        self._last_ns = 0
        self._limit_ns = NEVER_NS

    def __len__(self) -> int:
        """Sequences that are steady."""
        return len(self._since)

    def step(self, step: StepRecorded) -> Sequence[Row]:
        """Count a step. Returns the rows to be looked at: those of sequences that are not steady,
        or all, where the gap is longer than the limit of a steady one. A sequence without a plain
        row is not steady any more."""
        since, gap_ns = self._since, step.committed_ns - self._last_ns
        if gap_ns > self._limit_ns:
            self.clear()
        elif len(self._gaps_ns) >= _KEPT:
            self.settle()
        others: Sequence[Row] = step.rows
        if since:
            plain, odd = _split(step)
            for seq_id in since.keys() - plain.keys():
                self.leave(seq_id)
            new = plain.keys() - since.keys() if len(plain) > len(since) else ()
            places = odd + [plain[seq_id] for seq_id in new]
            others = [step.rows[place] for place in sorted(places)]
        if since:
            self._gaps_ns.append(gap_ns)
        self._last_ns = step.committed_ns
        return others

    def join(self, seq_id: int, limit_ns: int) -> None:
        """It had a token in the last step. Gaps of more than `limit_ns` are to be looked at."""
        self._since[seq_id] = len(self._gaps_ns)
        self._limit_ns = min(self._limit_ns, limit_ns)

    def leave(self, seq_id: int) -> None:
        """Settle a sequence, which is not steady from now on; nothing where it was not."""
        since = self._since.pop(seq_id, None)
        if since is not None:
            gaps_ns = self._gaps_ns[since:]
            if gaps_ns:
                self._settle(seq_id, len(gaps_ns), max(gaps_ns), self._last_ns)

    def settle(self) -> None:
        """Bring all of them up to the last step."""
        tokens = len(self._gaps_ns)
        if not tokens:
            return
        worst_ns = list(accumulate(reversed(self._gaps_ns), max))[::-1]
        for seq_id, since in self._since.items():
            if since < tokens:
                self._settle(seq_id, tokens - since, worst_ns[since], self._last_ns)
            self._since[seq_id] = 0
        self._gaps_ns.clear()

    def clear(self) -> None:
        """Forget all steady streams; what they had is settled before."""
        self.settle()
        self._since.clear()
        self._limit_ns = NEVER_NS
