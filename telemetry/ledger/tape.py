"""The engine's steps as a tape of exact shares, on which the ledger charges requests.

Each step owns the time from the commit of the step before to its own commit. That is cut by
its stamps, which at a pipeline deeper than one are clamped so that steps do not overlap:

    before   gap    start  host  forward    the rows    sample  mask, sampling  collected host end
      +--------------+------------+----------------------+-----------------------+------------+

Between `forward` and `sample` every nanosecond has one owner, as integers that add up: the
base of any step, each prompt row, all decode rows together, the interaction of prompts with
decodes, and what the step took longer than predicted (`slow`). In a step faster than predicted
all but `slow` shrink in proportion, so no share is negative. A step without a row, as other engines
have, is the loop's own work. A gap is the loop's turn-around up to GAP_NS; the rest of a longer one
is unattributed.

Shares are kept as running sums, so that reading a span of steps costs the same for any number of
steps and rows. Only prompt rows and masks are kept with their sequences: of the decode rows each
sequence knows its own part (`telemetry.ledger.track.Track`), and the rest is that of the others.
The tape is bounded by steps and by bytes; when it is full, the older half is dropped.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import islice

from telemetry.costs.forward_cost import ForwardCost, ForwardCostFit
from telemetry.facts.engine_records import Row, StepRecorded

CAPACITY_STEPS = 65_536
CAPACITY_BYTES = 64 * 1024 * 1024
GAP_NS = 1_000_000
_NAMED_BYTES = 512  # overhead of a step with prompts or masks


class At(IntEnum):
    """Stamps of a step, in ns. BEGUN is its own `begin_ns`, which may lie before the end of the
    step before; the others are in order."""

    BEFORE = 0
    START = 1
    FORWARD = 2
    SAMPLE = 3
    COLLECTED = 4
    END = 5
    BEGUN = 6


class Share(IntEnum):
    """Shares of a step, in ns. SHORT_GAP and LONG_GAP are before its body, the others add up to
    its body; PROMPTS and DECODES are of all such rows together."""

    HOST = 0
    BASE = 1
    INTERACTION = 2
    SLOW = 3
    PROMPTS = 4
    DECODES = 5
    SAMPLING = 6
    MASK = 7
    SHORT_GAP = 8
    LONG_GAP = 9


_STEP_BYTES = 8 * (len(At) + len(Share))


@dataclass(frozen=True, slots=True)
class Named:
    """The sequences whose prompts a step computed, with the time of each in ns, and those whose
    masks it computed."""

    step_id: int
    prompt_ids: tuple[int, ...]
    prompts_ns: tuple[int, ...]
    masked: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return _NAMED_BYTES + 80 * len(self.prompt_ids) + 40 * len(self.masked)


@dataclass(frozen=True, slots=True)
class Cut:
    """A step's forward pass, divided. `prompts_ns` has one entry for each prompt row, in order; a
    decode row has `token_ns` for each token and `context_ns` for each token of its context."""

    base_ns: int
    interaction_ns: int
    slow_ns: int
    decodes_ns: int
    prompts_ns: list[int]
    token_ns: float
    context_ns: float


def apportion(parts: Sequence[int], total: int) -> list[int]:
    """`parts` scaled to sum to `total`, by the method of largest remainders; ties go to the first.
    If all parts are zero, the first gets everything."""
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
    """The last steps, each with an index that is never reused."""

    def __init__(
        self, capacity_steps: int = CAPACITY_STEPS, capacity_bytes: int = CAPACITY_BYTES
    ) -> None:
        self._capacity_steps = capacity_steps
        self._capacity_bytes = capacity_bytes
        self._stamps = tuple(array("q") for _ in At)
        self._sums = tuple(array("q", [0]) for _ in Share)  # before each step, and after the last
        self._named: dict[int, Named] = {}
        self._named_ids = array("q")  # the steps with names, in order
        self._named_bytes = 0
        self._first = 0
        self._end_ns = 0
        self._fit = ForwardCostFit()

    @property
    def first(self) -> int:
        """Index of the oldest step that is still here."""
        return self._first

    @property
    def stop(self) -> int:
        """Index of the next step."""
        return self._first + len(self._stamps[At.END])

    @property
    def bytes(self) -> int:
        """Approximate memory in use."""
        return _STEP_BYTES * len(self._stamps[At.END]) + self._named_bytes

    def restart(self, at_ns: int) -> None:
        """A new engine started at `at_ns`: its first step begins there, not at the end of the old
        engine's last step. The cost fit starts again."""
        self._end_ns = max(self._end_ns, at_ns)
        self._fit = ForwardCostFit()

    def append(self, step: StepRecorded, constrained: set[int]) -> tuple[int, Cut]:
        """Divide a step and store its shares. `constrained` are the sequences with a grammar.
        Returns the step's index, and how its forward pass was divided."""
        if self.stop - self._first >= self._capacity_steps or self.bytes > self._capacity_bytes:
            kept_steps = self.stop - self._first
            self._drop(kept_steps - kept_steps // 2)
        stamps = self._stamps_of(step)
        forward_ns = stamps[At.SAMPLE] - stamps[At.FORWARD]
        score_ns = min(step.score_ns, forward_ns) if any(r.scored for r in step.rows) else 0
        cut = with_scores(divide(step, forward_ns - score_ns, self._fit.cost), step, score_ns)
        sampling_ns = stamps[At.COLLECTED] - stamps[At.SAMPLE]
        mask_ns = min(step.mask_ns, sampling_ns)
        gap_ns = stamps[At.START] - stamps[At.BEFORE]
        shares = (
            stamps[At.FORWARD] - stamps[At.START] + stamps[At.END] - stamps[At.COLLECTED],
            cut.base_ns,
            cut.interaction_ns,
            cut.slow_ns,
            sum(cut.prompts_ns),
            cut.decodes_ns,
            sampling_ns - mask_ns,
            mask_ns,
            min(gap_ns, GAP_NS),
            max(0, gap_ns - GAP_NS),
        )
        index = self.stop
        if cut.prompts_ns or (constrained and mask_ns):
            self._name(index, step, cut, constrained if mask_ns else set())
        for column, stamp_ns in zip(self._stamps, stamps, strict=True):
            column.append(stamp_ns)
        for column, share_ns in zip(self._sums, shares, strict=True):
            column.append(column[-1] + share_ns)
        self._end_ns = stamps[At.END]
        self._fit.learn(step, forward_ns - score_ns)
        return index, cut

    def stamp(self, index: int, column: At) -> int:
        return self._stamps[column][index - self._first]

    def stamps(self, index: int) -> list[int]:
        place = index - self._first
        return [column[place] for column in self._stamps]

    def sums(self, first: int, stop: int) -> list[int]:
        """The sum in ns of each share over the steps [first, stop)."""
        begin, end = first - self._first, stop - self._first
        return [column[end] - column[begin] for column in self._sums]

    def sum(self, share: Share, first: int, stop: int) -> int:
        column = self._sums[share]
        return column[stop - self._first] - column[first - self._first]

    def named(self, first: int, stop: int) -> Iterator[tuple[int, Named]]:
        """The steps of [first, stop) with prompts or masks, in order, with their index."""
        ids = self._named_ids
        begin, end = bisect_left(ids, first), bisect_left(ids, stop)
        for index in islice(ids, begin, end):
            yield index, self._named[index]

    def overlapping(self, begin_ns: int, end_ns: int) -> tuple[int, int]:
        """The steps [first, stop) that overlap [begin, end)."""
        first = bisect_right(self._stamps[At.END], begin_ns)
        stop = bisect_left(self._stamps[At.BEFORE], end_ns)
        return self._first + first, self._first + max(first, stop)

    def _name(self, index: int, step: StepRecorded, cut: Cut, constrained: set[int]) -> None:
        prompt_ids = tuple(row.seq_id for row in step.rows if row.is_prefill)
        masked = tuple(r.seq_id for r in step.rows if r.sampled and r.seq_id in constrained)
        named = Named(step.step_id, prompt_ids, tuple(cut.prompts_ns), masked)
        self._named[index] = named
        self._named_ids.append(index)
        self._named_bytes += named.bytes

    def _stamps_of(self, step: StepRecorded) -> list[int]:
        """The stamps in the order of `At`, none before the end of the step before."""
        stamps = [self._end_ns or step.begin_ns]
        for stamp_ns in (
            step.begin_ns,
            step.forward_ns if step.rows else step.sample_ns,
            step.sample_ns,
            step.collected_ns,
            step.committed_ns,
        ):
            stamps.append(max(stamps[-1], stamp_ns))
        stamps.append(step.begin_ns)
        return stamps

    def forget_before(self, at_ns: int) -> None:
        """Drop the steps that ended before `at_ns`."""
        self._drop(bisect_left(self._stamps[At.END], at_ns))

    def _drop(self, steps: int) -> None:
        """Drop the oldest `steps` steps."""
        for column in (*self._stamps, *self._sums):
            del column[:steps]
        self._first += steps
        gone = bisect_left(self._named_ids, self._first)
        for index in self._named_ids[:gone]:
            self._named_bytes -= self._named.pop(index).bytes
        del self._named_ids[:gone]


def with_scores(cut: Cut, step: StepRecorded, score_ns: int) -> Cut:
    """The time for scores of prompt tokens belongs to the scored prompts, by their rows."""
    if not score_ns:
        return cut
    scored = [row.scored for row in step.rows if row.is_prefill]
    scores_ns = apportion(scored, score_ns)
    prompts_ns = [own + more for own, more in zip(cut.prompts_ns, scores_ns, strict=True)]
    return replace(cut, prompts_ns=prompts_ns)


def divide(step: StepRecorded, forward_ns: int, cost: ForwardCost) -> Cut:
    """Divide `forward_ns` into base, interaction, slow, each prompt row and all decode rows
    together, as integers that add up.

    What a step took beyond the prediction is `slow`. In a step larger than any that the cost was
    fitted to, it belongs to the rows that made the step so large.
    """
    decode_tokens = context_tokens = 0
    prompts: list[Row] = []
    for row in step.rows:
        if row.is_prefill:
            prompts.append(row)
        else:
            decode_tokens += row.tokens
            context_tokens += row.context_tokens
    prompt_tokens = sum(row.tokens for row in prompts)
    token_ns, context_ns = cost.decode_token_ns, cost.context_token_ns
    predicted_ns = decode_tokens * token_ns + context_tokens * context_ns
    decodes_ns = round(predicted_ns)
    prompts_ns = [round(cost.row_ns(row)) for row in prompts]
    shared_ns = [round(cost.base_ns), round(cost.interaction_ns * prompt_tokens * decode_tokens)]
    beyond_ns = forward_ns - sum(shared_ns) - decodes_ns - sum(prompts_ns)
    extra_ns = 0
    if beyond_ns < 0:
        parts = apportion((*shared_ns, decodes_ns, *prompts_ns), forward_ns)
        shared_ns, decodes_ns, prompts_ns, beyond_ns = parts[:2], parts[2], parts[3:], 0
    elif prompt_tokens > cost.seen_prompt_tokens:
        extras_ns = apportion([row.tokens for row in prompts], beyond_ns)
        prompts_ns = [own + extra for own, extra in zip(prompts_ns, extras_ns, strict=True)]
        beyond_ns = 0
    elif decode_tokens > cost.seen_decode_tokens:
        extra_ns, beyond_ns = beyond_ns, 0
    scale = decodes_ns / predicted_ns if predicted_ns else 0.0
    each_ns = extra_ns / decode_tokens if decode_tokens else 0.0
    return Cut(
        base_ns=shared_ns[0],
        interaction_ns=shared_ns[1],
        slow_ns=beyond_ns,
        decodes_ns=decodes_ns + extra_ns,
        prompts_ns=prompts_ns,
        token_ns=token_ns * scale + each_ns,
        context_ns=context_ns * scale,
    )
