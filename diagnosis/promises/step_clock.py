"""Where the engine's time went, as running sums that are read like a clock.

Each step adds its time to what it computed (prompts, decodes, its fixed cost and so on), and to
the reason for which the head of the queue waited meanwhile. What an interval between two steps
went to is the difference of two readings, so it costs the same for any number of steps and of
requests. The parts have the names of the ledger (`telemetry.requests.account.Part`), which is
exact but is made only when a request has ended; here decodes are not split by owner, and the split
of a step is that of the fitted cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from telemetry.costs.step_load import StepLoad, attention_pairs, load_of_step
from telemetry.facts.engine_records import Row, StepCostSet, StepRecorded
from telemetry.facts.reasons import WaitReason
from telemetry.requests.account import Part

PROMPTS, DECODES = Part.CO_PREFILL.value, "decodes"
BASE, HOST = Part.BASE.value, Part.HOST.value
ENGINE = (
    PROMPTS, DECODES, BASE, HOST, Part.SAMPLE.value, Part.MASK.value,
    Part.SLOW_STEP.value,
)  # fmt: skip
WAITS = tuple(f"wait: {reason.value}" for reason in WaitReason)
NEXT_STEP = "wait: next_step"
_WAIT_AT = {reason: place for place, reason in enumerate(WaitReason)}


class Reading(NamedTuple):
    """Sums in ns since the start: of the parts ENGINE, and of the reasons WAITS."""

    engine: tuple[float, ...]
    waits: tuple[float, ...]


START = Reading((0.0,) * len(ENGINE), (0.0,) * len(WAITS))


class Rows(NamedTuple):
    """The predicted ns of a step's prompts, row by row, and of its decodes."""

    prompts: dict[int, float]
    decodes: float
    scale: float  # of the prediction to what the step took
    score_row_ns: float = 0.0  # of each row that is scored


class StepClock:
    """`now` is the reading at the last commit, `turn_ns` the time of the last step, from the commit
    before it."""

    def __init__(self) -> None:
        self.now = START
        self.turn_ns = 0
        self.cost: StepCostSet | None = None
        self.capped_ns: Counter[str] = Counter()  # in which a tenant was at its limit
        self._commit_ns: int | None = None

    def idle(self) -> None:
        """The engine has nothing to do: the time until its next step is nobody's."""
        self._commit_ns = None

    def step(self, step: StepRecorded, in_queue: Mapping[int, str], prompts: Iterable[Row]) -> Rows:
        """Add a step; `in_queue` are sequences that wait for their first row, with their tenants,
        and all rows of its prompts are in `prompts`. Without a fitted cost the forward pass is
        split by tokens."""
        since_ns = step.begin_ns if self._commit_ns is None else self._commit_ns
        self.turn_ns = max(1, step.committed_ns - min(since_ns, step.begin_ns))
        self._commit_ns = step.committed_ns
        load = load_of_step(step)
        rows = self._predicted(load, prompts)
        forward_ns = float(max(0, min(self.turn_ns, step.sample_ns - step.forward_ns)))
        score_ns = min(float(step.score_ns), forward_ns)
        forward_ns -= score_ns
        sampled_ns = step.collected_ns - step.sample_ns
        left_ns = self.turn_ns - forward_ns - score_ns
        sampling_ns = float(max(0, min(left_ns, sampled_ns)))
        mask_ns = min(float(step.mask_ns), sampling_ns)
        prompts_ns = sum(rows.prompts.values())
        scale = forward_ns / max(1.0, prompts_ns + rows.decodes)
        if self.cost is not None:
            scale = min(1.0, scale)
        prompts_ns, decodes_ns = prompts_ns * scale, rows.decodes * scale
        rest_ns = forward_ns - prompts_ns - decodes_ns
        base_ns = min(rest_ns, float(self.cost.base_ns)) if self.cost is not None else rest_ns
        parts = (
            prompts_ns + score_ns,
            decodes_ns,
            base_ns,
            self.turn_ns - forward_ns - score_ns - sampling_ns,
            sampling_ns - mask_ns,
            mask_ns,
            rest_ns - base_ns,
        )
        score_row_ns = score_ns and score_ns / max(1, load.scored_rows)
        engine = tuple(a + b for a, b in zip(self.now.engine, parts, strict=True))
        self.now = Reading(engine, self._waits(step, in_queue))
        return rows._replace(scale=scale, score_row_ns=score_row_ns)

    def _predicted(self, load: StepLoad, rows: Iterable[Row]) -> Rows:
        cost, prompts = self.cost, dict[int, float]()
        for row in rows:
            if row.is_prefill:
                prompts[row.seq_id] = prompts.get(row.seq_id, 0.0) + _prompt_ns(cost, row)
        decodes = float(load.decode_tokens)  # by tokens, until there is a fit
        if cost is not None:
            decodes *= cost.decode_row_ns
            decodes += load.context_tokens * cost.context_token_ns
        return Rows(prompts, decodes, 1.0)

    def _waits(self, step: StepRecorded, in_queue: Mapping[int, str]) -> tuple[float, ...]:
        """Sequences in the queue wait for what blocks its head, those of a tenant at its limit for
        that limit."""
        waits = list(self.now.waits)
        is_head = True
        for skip in step.skips:
            tenant = in_queue.get(skip.seq_id)
            if tenant is None:
                continue
            if skip.reason is WaitReason.POLICY:
                self.capped_ns[tenant] += self.turn_ns
            elif is_head:
                waits[_WAIT_AT[skip.reason]] += self.turn_ns
                is_head = False
        return tuple(waits)


def _prompt_ns(cost: StepCostSet | None, row: Row) -> float:
    if cost is None:
        return float(row.tokens)
    pairs = attention_pairs(row.tokens, row.context_tokens)
    return row.tokens * cost.prefill_token_ns + pairs * cost.pair_ns


def went_to(begin: Reading, end: Reading) -> Counter[str]:
    """The parts of the engine's time between two readings, in ns."""
    found: Counter[str] = Counter()
    for name, before, after in zip(ENGINE, begin.engine, end.engine, strict=True):
        if after > before:
            found[name] += round(after - before)
    return found


def waited_for(begin: Reading, end: Reading) -> Counter[str]:
    """The reasons for which the head of the queue waited between two readings, in ns."""
    found: Counter[str] = Counter()
    for name, before, after in zip(WAITS, begin.waits, end.waits, strict=True):
        if after > before:
            found[name] += round(after - before)
    return found


def fitted(parts: Counter[str], length_ns: int, rest: str) -> Counter[str]:
    """The parts in an interval of `length_ns`: shrunk where they are longer, the rest where they
    are shorter is `rest`."""
    total = parts.total()
    if total > length_ns:
        parts = Counter({name: ns * length_ns // total for name, ns in parts.items()})
    parts[rest] += length_ns - parts.total()
    return +parts
