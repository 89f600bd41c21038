"""Steps as columns: what was computed, how long each part took, how many rows of each kind."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import NamedTuple

import numpy as np

from diagnosis.detection.holders import Held
from telemetry.costs.cost_model import BASELINE, Term
from telemetry.costs.step_load import load_of_step
from telemetry.facts.engine_records import EngineStarted, StepRecorded

# linear terms of the cost model of a step, in the order of their columns in `StepRow`
FEATURES = tuple(term.value for term in BASELINE.terms if term is not Term.ROW_STEPS)


class StepRow(NamedTuple):
    """One step. `turn_ns` is from the commit of the step before (after idling: from its own begin)
    to its commit: the sum of forward, score (of prompt tokens), sample, mask and host. `pairs` are
    (prompt token, token that it attends to); `interaction` is the interaction term, prompt tokens
    times decode tokens. `zombie_rows` are rows whose client has disconnected. `timed`: a latency
    target bounded the step's prompts, so that `budget_tokens` is what its time allowed.
    `long_tokens` are tokens of prompts much longer than those of the baseline. Of `blocks_total`
    blocks, `slow_blocks` and `zombie_blocks` are held for slow clients and for those that have
    gone, `short` where somebody waits for blocks (`detection.holders`). By the device's clock it
    was busy for `device_ns`, and idle before that for `bubble_ns`; the other ranks waited `skew_ns`
    for the slowest. NaN: not measured."""

    end_ns: int
    turn_ns: int
    forward_ns: int
    sample_ns: int
    mask_ns: int
    host_ns: int
    prompt_tokens: int
    pairs: float
    decode_tokens: int
    context_tokens: int
    interaction: int
    sampled_rows: int
    prompt_rows: int
    decode_rows: int
    running: int
    paused: int
    zombie_rows: int
    recompute_tokens: int
    budget_tokens: int
    timed: bool
    long_tokens: int = 0
    blocks_total: int = 0
    slow_blocks: int = 0
    zombie_blocks: int = 0
    short: bool = False
    slow_recompute_tokens: int = 0
    device_ns: float = nan
    bubble_ns: float = nan
    skew_ns: float = nan
    slowest_rank: float = nan
    score_ns: int = 0


def row_of(
    step: StepRecorded,
    turn_ns: int,
    held: Held,
    *,
    paused: int,
    zombie_rows: int,
    recompute_tokens: int,
    long_tokens: int,
) -> StepRow:
    """The row of a step's fact; what is known of its sequences comes with it."""
    load, device = load_of_step(step), _device_of(step)
    since_ns = step.committed_ns - turn_ns
    forward_ns = max(0, step.sample_ns - max(step.forward_ns, since_ns))
    score_ns = min(step.score_ns, forward_ns, turn_ns)
    forward_ns -= score_ns
    sample_ns = max(0, step.collected_ns - max(step.sample_ns, since_ns))
    mask_ns = min(step.mask_ns, sample_ns)
    forward_ns = min(forward_ns, turn_ns - score_ns)
    return StepRow(
        end_ns=step.committed_ns,
        turn_ns=turn_ns,
        forward_ns=forward_ns,
        sample_ns=sample_ns - mask_ns,
        mask_ns=mask_ns,
        host_ns=max(0, turn_ns - forward_ns - score_ns - sample_ns),
        prompt_tokens=load.prompt_tokens,
        pairs=load.pairs,
        decode_tokens=load.decode_tokens,
        context_tokens=load.context_tokens,
        interaction=load.interaction,
        sampled_rows=load.sampled_rows,
        prompt_rows=len(step.rows) - load.decode_rows,
        decode_rows=load.decode_rows,
        running=step.running,
        paused=paused,
        zombie_rows=zombie_rows,
        recompute_tokens=recompute_tokens,
        budget_tokens=step.budget_tokens,
        timed=step.target_ns is not None,
        long_tokens=long_tokens,
        blocks_total=step.blocks_total,
        slow_blocks=held.slow_blocks,
        zombie_blocks=held.zombie_blocks,
        short=held.short,
        slow_recompute_tokens=held.slow_recompute_tokens,
        device_ns=device.device_ns,
        bubble_ns=device.bubble_ns,
        skew_ns=device.skew_ns,
        slowest_rank=device.slowest_rank,
        score_ns=score_ns,
    )


class _DeviceColumns(NamedTuple):
    """What the device's clock says of one step, as columns of `StepRow`. NaN: not measured."""

    device_ns: float = nan
    bubble_ns: float = nan
    skew_ns: float = nan
    slowest_rank: float = nan


def _device_of(step: StepRecorded) -> _DeviceColumns:
    device = step.device
    return _DeviceColumns(
        device_ns=nan if device is None else device.busy_ns,
        bubble_ns=_or_nan(None if device is None else device.bubble_ns),
        skew_ns=_or_nan(step.rank_skew_ns),
        slowest_rank=_or_nan(step.slowest_rank),
    )


def _or_nan(value: int | None) -> float:
    return nan if value is None else value


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a window, one array a column of `StepRow`, float64."""

    table: np.ndarray

    def __len__(self) -> int:
        return len(self.table)

    def __getattr__(self, name: str) -> np.ndarray:
        place = _PLACES.get(name)
        if place is None:
            raise AttributeError(name)
        column: np.ndarray = self.table[:, place]
        return column

    @property
    def features(self) -> np.ndarray:
        """(steps, 6), the columns of FEATURES."""
        first = _PLACES[FEATURES[0]]
        found: np.ndarray = self.table[:, first : first + len(FEATURES)]
        return found

    def budgeted(self, started: EngineStarted | None) -> Steps:
        """The steps whose budget was configured: by a number of tokens, or by a target that was set
        for all requests. An automatic budget is as large as the time of the step allows."""
        if started is not None and started.itl_target_ns is not None:
            return self
        return Steps(self.table[self.timed == 0])

    @property
    def rows(self) -> np.ndarray:
        """(steps,) rows of each step."""
        total: np.ndarray = self.prompt_rows + self.decode_rows
        return total


_PLACES = {name: place for place, name in enumerate(StepRow._fields)}


class StepLog:
    """A ring of the last steps in order of their ends; a range is a view, without a copy."""

    def __init__(self, kept: int = 20_000) -> None:
        self._table = np.zeros((2 * kept, len(_PLACES)))
        self._kept = kept
        self._size = 0

    def append(self, row: StepRow) -> None:
        if self._size == len(self._table):
            self._table[: self._kept] = self._table[self._kept :]
            self._size = self._kept
        self._table[self._size] = row
        self._size += 1

    def between(self, begin_ns: int, end_ns: int) -> Steps:
        """Steps that ended within [begin, end)."""
        ends = self._table[: self._size, 0]
        first, last = np.searchsorted(ends, (begin_ns, end_ns))
        return Steps(self._table[first:last])
