"""How many prompt tokens a step may compute beside its decodes.

With a fixed budget: what the decodes leave of it. With an automatic one, or with a target for the
inter-token latency: as many as fit, by the fitted cost of a step, into the time that the tightest
target in the step leaves. So decodes keep their target, and prompts get all the time that is left.
TensorRT-LLM sizes chunks dynamically too; here the cost is measured on this machine, refitted while
it runs, and corrected by the speed of the last steps. A request that may come bounds prompts too,
each class by its own bound (`service.engine.planning.targets`).

Where the decodes alone come near the target or miss it, prompts still get a share of the step, or
the queue would grow without end: a quarter of the step, and half of it once the decodes miss the
target or a prompt is overdue (`service.engine.planning.slack`). A step is then at most
twice as long as its decodes. What a step takes longer for having prompts at all is part of their
share, unless it alone makes the step miss the target: then the share comes on top, or such steps
would compute next to nothing, one after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

from service.engine.inbox import SetStepCost
from service.engine.plan import Plan, StepOutcome
from service.engine.planning.plan_load import load_of_plan
from service.engine.planning.targets import Bounds
from telemetry.costs.step_load import StepLoad, attention_pairs
from telemetry.numbers.quantiles import median

TILE_TOKENS = 4  # rows that the kernels of our decoder compute together
# of the decodes' time, where the target leaves less than that
LEAST_SHARE = 1 / 3
LATE_SHARE = 1.0
FINISH_SHARE = 1 / 3  # of the margin that the spread keeps, for the last tokens of a prompt
RECENT_STEPS = 5  # their median: two long steps in a row are no slow machine
_MOST_DRIFT = 4.0


def predicted_ns(cost: SetStepCost, load: StepLoad) -> float:
    """The time of a step by its fitted cost."""
    mixed_ns = cost.mixed_ns if load.prompt_tokens else 0
    return (
        cost.decode_step_ns(load.decode_rows, load.context_tokens)
        + mixed_ns
        + cost.prefill_token_ns * load.prompt_tokens
        + cost.pair_ns * load.pairs
    )


def drift_of(fitted: SetStepCost | None, steps: Sequence[tuple[StepLoad, int]]) -> float:
    """How much longer than by the fit the last steps took: the median of `RECENT_STEPS` loads
    and their ns. 1 without a fit, and while there were fewer."""
    if fitted is None or len(steps) < RECENT_STEPS:
        return 1.0
    around_ns = fitted.around_ns
    drift = median(
        [(span_ns + around_ns) / max(1.0, predicted_ns(fitted, load)) for load, span_ns in steps]
    )
    assert drift is not None
    return min(_MOST_DRIFT, max(1 / _MOST_DRIFT, drift))


class StepCostModel:
    """The fitted cost, corrected by what the last steps took beside it.

    Machines change their speed within seconds, a fit follows within hundreds of steps. The
    correction is a function of recorded durations, so it is the same in an exact replay. So is
    `score_row_ns`, what scoring a prompt token took in the last step that did it: it is not part of
    the fit.
    """

    def __init__(self) -> None:
        self.fitted: SetStepCost | None = None
        self.drift = 1.0
        self.stretch = 1.0  # time of a step over the time of its prompts, in the last step
        self.score_row_ns = 0.0
        self._steps: deque[tuple[StepLoad, int]] = deque(maxlen=RECENT_STEPS)

    def set(self, fitted: SetStepCost) -> None:
        """Use another fit from now on."""
        self.fitted = fitted
        self._correct()

    def learn(self, plan: Plan, outcome: StepOutcome) -> None:
        """A step has been computed."""
        scored_rows = sum(chunk.reads.scored_rows for chunk in plan.prefills)
        if scored_rows:
            self.score_row_ns = outcome.score_ns / scored_rows
        span_ns = outcome.sample_ns - outcome.forward_ns - outcome.score_ns
        if span_ns <= 0:
            return
        self._steps.append((load_of_plan(plan), span_ns))
        self._correct()

    def _correct(self) -> None:
        self.drift = drift_of(self.fitted, self._steps)

    @property
    def prompt_token_ns(self) -> float:
        """The time that a prompt token takes while decodes share the steps; 0 without a fit."""
        if self.fitted is None:
            return 0.0
        return self.drift * self.stretch * self.fitted.prefill_token_ns

    def predicted_ns(self, load: StepLoad) -> float | None:
        """The time of a step at the present speed; None without a fit."""
        return None if self.fitted is None else self.drift * predicted_ns(self.fitted, load)

    def unbounded(self) -> None:
        """No target bounds the next step: a prompt token takes the time that it takes alone."""
        self.stretch = 1.0

    def prompt_time(
        self, load: StepLoad, bounds: Bounds, overdue: bool, tile_rows: int = 0
    ) -> PromptTime | None:
        """The time for prompts in a step with the decodes of `load`; None without a fit or a bound.
        `overdue`: some of the prompts are. `tile_rows` are those of `Limits`."""
        fitted, target_ns = self.fitted, bounds.tightest_ns
        if fitted is None or target_ns is None:
            self.unbounded()
            return None
        decode_ns = self.drift * fitted.decode_step_ns(load.decode_rows, load.context_tokens)
        most_ns = inf if bounds.decodes_ns is None else bounds.decodes_ns / fitted.spread
        spare_ns = min(most_ns, target_ns) - decode_ns
        self.stretch = 1.0 + decode_ns / max(spare_ns, decode_ns * LEAST_SHARE, 1.0)
        share = LATE_SHARE if overdue or decode_ns > most_ns else LEAST_SHARE
        spent_ns = self.drift * fitted.mixed_ns
        is_late_anyway = decode_ns + spent_ns > most_ns
        return PromptTime(
            decode_ns=decode_ns,
            least_ns=share * decode_ns + (spent_ns if is_late_anyway else 0.0),
            most_ns=most_ns,
            finish_ns=FINISH_SHARE * (bounds.decodes_ns - most_ns) if bounds.decodes_ns else 0.0,
            spent_ns=spent_ns,
            token_ns=self.drift * fitted.prefill_token_ns,
            pair_ns=self.drift * fitted.pair_ns,
            score_row_ns=self.score_row_ns,
            spread=fitted.spread,
            tile_rows=tile_rows,
        )


@dataclass(slots=True, kw_only=True)
class PromptTime:
    """The time for prompts in one step, in ns, while the step is planned.

    decode_ns     predicted time of the step's decodes
    least_ns      what prompts get even if the target leaves less
    most_ns       bound on the whole step (inf: none); a prompt's own bound may be tighter
    finish_ns     more that is allowed if it completes a prompt, which else waits a whole step
    spent_ns      used in this step already
    token_ns, pair_ns, score_row_ns   cost of a prompt token, an attention pair, a scored row
    spread        nearly every step takes at most this times its prediction
    tile_rows     rows that kernels compute together; 0: no tiles
    used          whether the step has a chunk

    Where kernels compute `tile_rows` rows together, a step that ends with a part of a tile takes
    about as long as one that ends with all of it, which the fit does not know: such a step ends
    with the nearest whole tile.
    """

    decode_ns: float
    least_ns: float
    most_ns: float
    finish_ns: float
    spent_ns: float
    token_ns: float
    pair_ns: float
    score_row_ns: float = 0.0
    spread: float = 1.0
    tile_rows: int = 0
    used: bool = False

    def tokens(
        self,
        remaining: int,
        context: int,
        most: int,
        bound_ns: float = inf,
        scores: bool = False,
        before: int = 0,
    ) -> int:
        """How many of a prompt's `remaining` tokens after `context` to compute: what fits into the
        time, in whole tiles unless it is the rest; of the first prompt at least a tile. `scores`:
        the tokens are scored too. `before` tokens are in the step already."""
        wanted = min(remaining, most)
        room_ns = max(self.least_ns, min(self.most_ns, bound_ns) - self.decode_ns) - self.spent_ns
        token_ns = self.token_ns + self.score_row_ns * scores
        whole_ns = room_ns + self.finish_ns
        if wanted == remaining and self._fitting(whole_ns, context, token_ns) >= wanted:
            return wanted
        fitting = self._fitting(room_ns, context, token_ns)
        if fitting >= wanted:
            return wanted
        whole = self._whole_tiles(int(fitting), before)
        if not whole and not self.used:
            whole = TILE_TOKENS
        return min(wanted, whole)

    def _whole_tiles(self, fitting: int, before: int) -> int:
        """The nearest whole tile: it takes as long as the part of it that fits."""
        tile = self.tile_rows
        if tile:
            whole = (before + fitting + tile // 2) // tile * tile - before
            if whole > 0:
                return whole
        return fitting // TILE_TOKENS * TILE_TOKENS

    def take(self, tokens: int, context: int, scored_rows: int = 0) -> None:
        """A chunk was added to the step, of which so many rows are scored."""
        self.used = True
        self.spent_ns += self.score_row_ns * scored_rows
        self.spent_ns += self.token_ns * tokens + self.pair_ns * attention_pairs(tokens, context)

    def _fitting(self, left_ns: float, context: int, token_ns: float) -> float:
        """The n tokens whose time, with that of their attention pairs, is `left_ns`."""
        if left_ns <= 0:
            return 0.0
        linear = token_ns + self.pair_ns * context
        root = sqrt(linear * linear + 2 * self.pair_ns * left_ns)
        return 2 * left_ns / max(linear + root, 1e-9)
