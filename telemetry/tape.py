"""The engine's steps as a tape of exact shares, on which the ledger charges requests.

Each step owns the time from the commit of the step before to its own commit. That is cut by
its stamps, which at a pipeline deeper than one are clamped so that steps do not overlap:

    before   gap    start  host  forward    the rows    sample  mask, sampling  collected host end
      +--------------+------------+----------------------+-----------------------+------------+

Between `forward` and `sample` every nanosecond has one owner, as integers that add up: the
base of any step, each row, the interaction of prompts with decodes, and what the step took
longer than the model foretells (`slow`). A step faster than foretold shrinks all but `slow` in
proportion, so no share is ever negative. A gap is the loop's turn-around up to GAP_NS; what is
longer has no known owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from telemetry.engine_records import StepRecorded
from telemetry.forward_cost import ForwardCost, ForwardCostFit

CAPACITY_STEPS = 65_536
GAP_NS = 1_000_000

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]


class At(IntEnum):
    """Columns of stamps, in ns."""

    BEFORE = 0
    START = 1
    FORWARD = 2
    SAMPLE = 3
    COLLECTED = 4
    END = 5


class Share(IntEnum):
    """Columns of shares of a step's body [START, END), in ns; ROWS is all rows together."""

    HOST = 6
    BASE = 7
    INTERACTION = 8
    SLOW = 9
    ROWS = 10
    SAMPLING = 11
    MASK = 12


_BEGUN = len(At) + len(Share)  # when the step was begun, which may be before the last one's end
_COLUMNS = _BEGUN + 1


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one step: (rows,) each. `masked` are the sequences whose masks were made."""

    seq_ids: Integers
    spent_ns: Integers
    prefill: np.ndarray[tuple[int], np.dtype[np.bool_]]
    masked: tuple[int, ...]
    step_id: int


def apportion(parts: Sequence[int], total: int) -> list[int]:
    """`parts` scaled to sum to `total`, by the method of largest remainders; ties go to the
    first. All zero parts leave nothing to scale by: the first gets everything."""
    whole = sum(parts)
    if whole == 0:
        return [total, *([0] * (len(parts) - 1))] if parts else []
    scaled = [part * total // whole for part in parts]
    missing = total - sum(scaled)
    order = sorted(range(len(parts)), key=lambda index: -(parts[index] * total % whole))
    for index in order[:missing]:
        scaled[index] += 1
    return scaled


class Tape:
    """The last steps. Steps are named by an index that never repeats."""

    def __init__(self, capacity: int = CAPACITY_STEPS) -> None:
        self._numbers = np.zeros((capacity, _COLUMNS), np.int64)
        self._rows: list[Rows] = []
        self._count = 0
        self._first = 0
        self._end_ns = 0
        self._fit = ForwardCostFit()

    @property
    def first(self) -> int:
        """Index of the oldest step that is still here."""
        return self._first

    def restart(self, at_ns: int) -> None:
        """A new engine is there: its first step does not begin at the old one's last."""
        self._end_ns = max(self._end_ns, at_ns)
        self._fit = ForwardCostFit()

    def append(self, step: StepRecorded, constrained: set[int]) -> tuple[int, list[int]]:
        """Cut a step up; its index, and the ns of each of its rows."""
        if self._count == len(self._numbers):
            self._drop_half()
        stamps = self._stamps(step)
        forward_ns = stamps[At.SAMPLE] - stamps[At.FORWARD]
        base, interaction, slow, rows_ns = divide(step, forward_ns, self._fit.cost)
        sampling_ns = stamps[At.COLLECTED] - stamps[At.SAMPLE]
        mask_ns = min(step.mask_ns, sampling_ns)
        host_ns = stamps[At.FORWARD] - stamps[At.START] + stamps[At.END] - stamps[At.COLLECTED]
        spent = (host_ns, base, interaction, slow, sum(rows_ns), sampling_ns - mask_ns, mask_ns)
        self._numbers[self._count] = (*stamps, *spent, step.begin_ns)
        masked = [r.seq_id for r in step.rows if r.sampled and r.seq_id in constrained]
        self._rows.append(
            Rows(
                np.array([row.seq_id for row in step.rows], np.int64),
                np.array(rows_ns, np.int64),
                np.array([row.is_prefill for row in step.rows], np.bool_),
                tuple(masked),
                step.step_id,
            )
        )
        self._count += 1
        self._end_ns = stamps[At.END]
        self._fit.learn(step, forward_ns)
        return self._first + self._count - 1, rows_ns

    def stamp(self, index: int, column: At) -> int:
        return int(self._numbers[index - self._first, column])

    def begun(self, index: int) -> int:
        """When the step was begun; before its START where another one was still in flight."""
        return int(self._numbers[index - self._first, _BEGUN])

    def rows(self, index: int) -> Rows:
        return self._rows[index - self._first]

    def numbers(self, index: int) -> list[int]:
        """All columns of one step."""
        found: list[int] = self._numbers[index - self._first].tolist()
        return found

    def sums(self, first: int, stop: int) -> list[int]:
        """Of each column over the steps [first, stop)."""
        part = self._numbers[first - self._first : stop - self._first]
        found: list[int] = part.sum(axis=0).tolist()
        return found

    def gaps(self, first: int, stop: int) -> tuple[int, int]:
        """Time before the bodies of [first, stop): turn-arounds, and what is beyond GAP_NS."""
        part = self._numbers[first - self._first : stop - self._first]
        gaps_ns = part[:, At.START] - part[:, At.BEFORE]
        short_ns = int(np.minimum(gaps_ns, GAP_NS).sum())
        return short_ns, int(gaps_ns.sum()) - short_ns

    def masked_steps(self, first: int, stop: int) -> list[int]:
        """Of [first, stop), the steps that made masks."""
        part = self._numbers[first - self._first : stop - self._first, Share.MASK]
        return [first + int(place) for place in np.nonzero(part)[0]]

    def overlapping(self, begin_ns: int, end_ns: int) -> tuple[int, int]:
        """The steps [first, stop) that own any of [begin, end)."""
        part = self._numbers[: self._count]
        first = int(np.searchsorted(part[:, At.END], begin_ns, side="right"))
        stop = int(np.searchsorted(part[:, At.BEFORE], end_ns, side="left"))
        return self._first + first, self._first + max(first, stop)

    def by_sequence(self, first: int, stop: int) -> Iterator[tuple[int, bool, int]]:
        """(sequence, whether prefill, ns) over the steps [first, stop), in order of sequence."""
        rows = self._rows[first - self._first : stop - self._first]
        if not rows:
            return
        keys = np.concatenate([(part.seq_ids << 1) | part.prefill for part in rows])
        spent_ns = np.concatenate([part.spent_ns for part in rows])
        order = np.argsort(keys, kind="stable")
        keys, spent_ns = keys[order], spent_ns[order]
        starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
        for key, total in zip(
            keys[starts].tolist(), np.add.reduceat(spent_ns, starts).tolist(), strict=True
        ):
            yield key >> 1, bool(key & 1), total

    def _stamps(self, step: StepRecorded) -> list[int]:
        """In order, none before the end of the step before."""
        stamps = [self._end_ns or step.begin_ns]
        for stamp_ns in (
            step.begin_ns,
            step.forward_ns,
            step.sample_ns,
            step.collected_ns,
            step.committed_ns,
        ):
            stamps.append(max(stamps[-1], stamp_ns))
        return stamps

    def _drop_half(self) -> None:
        half = self._count // 2
        kept = self._count - half
        self._numbers[:kept] = self._numbers[half : self._count].copy()
        del self._rows[:half]
        self._first += half
        self._count = kept


def divide(
    step: StepRecorded, forward_ns: int, cost: ForwardCost
) -> tuple[int, int, int, list[int]]:
    """Base, interaction, slow and each row's part of `forward_ns`, as integers that add up.

    What a step took beyond the foretold is a residual, `slow`; except in a step larger than any
    that the model was fitted to, where it belongs to the rows that made it so large.
    """
    prompt_tokens = [row.tokens if row.is_prefill else 0 for row in step.rows]
    decode_tokens = [0 if row.is_prefill else row.tokens for row in step.rows]
    prompts, decodes = sum(prompt_tokens), sum(decode_tokens)
    rows_ns = [round(cost.row_ns(row)) for row in step.rows]
    shared_ns = [round(cost.base_ns), round(cost.interaction_ns * prompts * decodes)]
    beyond_ns = forward_ns - sum(shared_ns) - sum(rows_ns)
    if beyond_ns < 0:
        base, interaction, *rows_ns = apportion([*shared_ns, *rows_ns], forward_ns)
        return base, interaction, 0, rows_ns
    larger = None
    if prompts > cost.seen_prompt_tokens:
        larger = prompt_tokens
    elif decodes > cost.seen_decode_tokens:
        larger = decode_tokens
    if larger is not None:
        extra_ns = apportion(larger, beyond_ns)
        rows_ns = [own + extra for own, extra in zip(rows_ns, extra_ns, strict=True)]
        beyond_ns = 0
    return shared_ns[0], shared_ns[1], beyond_ns, rows_ns
