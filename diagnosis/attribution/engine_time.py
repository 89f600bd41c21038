"""The engine's time beyond the baseline, by cause and by who pays for it.

Each step has a predicted length, by the cost model of the baseline. What a step took beyond that,
and what was computed beyond what the baseline's requests would need, is charged three times: once
to the engine (`taken_ns`, which makes queues), once for each sequence that decoded in the step
(`decoding_ns`) and once for each whose prompt was in it (`prompting_ns`).

The cost model holds only for steps as large as were measured (`Cost.in_range`). How slow the
machine is, is told by those. Of larger steps, what is left after that is charged to their size.
"""

from __future__ import annotations

import numpy as np

from diagnosis.attribution.charges import (
    Charges,
    EngineTime,
    charge_in_proportion,
    charge_rows,
)
from diagnosis.attribution.demand import DemandDelta, demand_delta
from diagnosis.attribution.slow_steps import charge_slowness, least_slow, residual_ns
from diagnosis.attribution.thresholds import (
    EXPENSIVE,
    FULL_STEP,
    GROWN_LENGTH,
    GROWN_MASK,
    LEAST_ENGINE_SHARE,
    LEAST_LARGER,
    LEAST_QUEUE_SHARE,
    MOST,
    SMALL_BUDGET,
)
from diagnosis.detection.reference import Reference, own_prompts_ns
from diagnosis.detection.step_cost import Cost
from diagnosis.detection.steps import Steps
from diagnosis.detection.window import Window
from diagnosis.evidence import Measurement
from diagnosis.symptoms import Symptom
from telemetry.numbers.quantiles import median

S, M = Symptom, Measurement


def engine_time(window: Window, reference: Reference, cost: Cost) -> EngineTime:
    """Charge every step of the window."""
    found = EngineTime()
    steps = window.steps
    found.busy_ns = float(steps.turn_ns.sum())
    found.prompting_total_ns = float((steps.turn_ns * steps.prompt_rows).sum())
    residual = residual_ns(found, steps, cost, least_slow(window, reference))
    charge_slowness(found, window, reference, cost, residual)
    _masks_and_samples(found, window, reference, cost)
    _work(found, window, reference, cost, residual)
    return found


def queue_contributors(found: EngineTime) -> Charges:
    """What took the engine's time beyond the baseline, and so makes a queue; empty below
    LEAST_QUEUE_SHARE."""
    contributors = Charges({symptom: ns for symptom, ns in found.taken_ns.items() if ns > 0})
    return (
        contributors
        if sum(contributors.values()) > LEAST_QUEUE_SHARE * found.busy_ns
        else Charges()
    )


def caused_share(found: EngineTime, contributors: Charges) -> float:
    """The share of what was taken beyond the baseline that has a cause: the rest went to requests
    that chance brought."""
    caused_ns = sum(contributors.values())
    return caused_ns / (caused_ns + found.by_chance_ns) if caused_ns else 0.0


def _masks_and_samples(found: EngineTime, window: Window, reference: Reference, cost: Cost) -> None:
    steps = window.steps
    tokens = max(1.0, float(steps.decode_tokens.sum()))
    mask, sample = steps.mask_ns, steps.sample_ns - cost.sample_ns(steps)
    rows = max(1.0, float(steps.decode_rows.mean()))
    baseline_ns = reference.parts_ns.get("mask", 0.0) * tokens
    costly = float((mask * steps.decode_rows).sum()) > GROWN_MASK * baseline_ns
    costly = costly and float(mask.sum()) - baseline_ns / rows > LEAST_ENGINE_SHARE * found.busy_ns
    found.facts |= {M.MASK: float(mask.sum()) / 1e6, M.SAMPLE: max(0.0, float(sample.sum())) / 1e6}
    if costly:
        charge_rows(found, S.GRAMMAR_COST, steps, mask)
    if float(sample.sum()) > LEAST_ENGINE_SHARE * found.busy_ns:
        charge_rows(found, S.HEAVY_SAMPLING, steps, sample)


def _work(
    found: EngineTime, window: Window, reference: Reference, cost: Cost, residual: np.ndarray
) -> None:
    """What was computed beyond what the baseline's requests would need."""
    steps, counts = window.steps, window.counts
    computed = max(1.0, float(steps.prompt_tokens.sum()))
    prompt_ns = cost.prompt_ns(steps)
    token_ns = float(prompt_ns.sum()) / computed if prompt_ns.any() else cost.forward[1]
    delta = demand_delta(window, reference)
    found.tenant, found.demand = delta.tenant, delta.demand
    found.demand_share = delta.more_requests / max(1, counts.requests)
    found.facts |= delta.facts
    shared_ns = prompt_ns * steps.decode_rows
    co_ns, own_ns = float(shared_ns.sum()), float(own_prompts_ns(steps, cost).sum())
    found.facts |= {M.CO_PREFILL: co_ns / 1e6, M.OWN_PREFILL: own_ns / 1e6}
    co_more_ns = co_ns - reference.parts_ns.get("co_prefill", 0.0) * float(
        steps.decode_tokens.sum()
    )
    own_more_ns = own_ns - (
        counts.admitted * reference.prompt_tokens * reference.computed_share * cost.forward[1]
    )
    prompts = _name_longer_prompts(delta.prompt_tokens, co_more_ns, own_more_ns)
    found.longer[S.QUEUE_OVERLOAD] += delta.output_tokens
    for symptom in (S.LONG_PROMPTS, S.PREFILL_INTERFERENCE):
        found.longer[symptom] += prompts.get(symptom, 0.0)
    for symptom, tokens in prompts.items():
        found.taken_ns[symptom] += tokens * token_ns
    chance_tokens = delta.by_chance * reference.prompt_tokens * reference.computed_share
    found.by_chance_ns += chance_tokens * token_ns
    _decode_work(found, window, reference, cost, delta)
    _small_steps(found, window, reference, cost)
    others = prompts if reference.seconds else Charges({S.PREFILL_INTERFERENCE: 1.0})
    larger = _larger_chunks(steps, reference, cost)
    larger_ns = float(shared_ns[larger].sum())
    expensive = co_more_ns > (EXPENSIVE - 1) * (co_ns - co_more_ns)
    several = larger.sum() >= LEAST_LARGER and not _were_cached(window, reference, larger)
    if not others and expensive and several and larger_ns > MOST * co_more_ns:
        others = Charges({S.PREFILL_INTERFERENCE: 1.0})
    if not others:
        found.fuller_ns += max(0.0, co_more_ns)
    charge_in_proportion(found.decoding_ns, others, co_more_ns)
    charge_in_proportion(found.beside_ns, others, co_more_ns)
    charge_in_proportion(found.prompting_ns, prompts, own_more_ns)
    _co_decode(found, window, reference, cost, residual)


def _larger_chunks(steps: Steps, reference: Reference, cost: Cost) -> np.ndarray:
    """(steps,) bool: those with longer parts of prompts than any in the baseline; or, where the
    budget is larger, with more prompt tokens. With the baseline's budget two prompts may come
    together in one step by chance."""
    limit = GROWN_LENGTH * cost.longest_chunk
    alone = steps.prompt_tokens > limit * steps.prompt_rows
    found: np.ndarray = alone | (steps.budget_tokens > reference.budget_tokens)
    return found & (steps.prompt_tokens > limit)


def _were_cached(window: Window, reference: Reference, larger: np.ndarray) -> bool:
    """Whether larger parts of prompts are only parts that the prefix cache held in the baseline."""
    counts = window.counts
    missed = (reference.hit_share - counts.hit_share) * counts.known_tokens
    return missed > MOST * float(window.steps.prompt_tokens[larger].sum())


def _name_longer_prompts(prompts: Charges, co_more_ns: float, own_more_ns: float) -> Charges:
    """Longer prompts are one cause, named by who loses more: the requests that decode beside them
    (PREFILL_INTERFERENCE) or their own (LONG_PROMPTS)."""
    named = Charges(prompts)
    if own_more_ns > co_more_ns and S.PREFILL_INTERFERENCE in named:
        named[S.LONG_PROMPTS] += named.pop(S.PREFILL_INTERFERENCE)
    return named


def _decode_work(
    found: EngineTime, window: Window, reference: Reference, cost: Cost, delta: DemandDelta
) -> None:
    """Output tokens beyond the baseline: more requests, longer answers, more choices, and rows of
    disconnected clients."""
    steps, each = window.steps, reference.output_tokens
    tokens = max(1.0, float(steps.decode_tokens.sum()))
    base_ns = cost.forward[0] * float((steps.decode_tokens > 0).sum())
    token_ns = (float(cost.decode_ns(steps).sum()) + base_ns) / tokens
    zombies = float((steps.zombie_rows * steps.turn_ns / np.maximum(1, steps.rows)).sum())
    found.facts[M.ZOMBIE_ROWS] = float(steps.zombie_rows.sum())
    found.taken_ns[delta.demand] += delta.more_requests * each * token_ns
    found.by_chance_ns += delta.by_chance * each * token_ns
    found.taken_ns[S.QUEUE_OVERLOAD] += delta.output_tokens * token_ns
    found.taken_ns[S.HEAVY_SAMPLING] += delta.choices * each * token_ns
    found.taken_ns[S.CANCELLATION_LEAK] += zombies


def _small_steps(found: EngineTime, window: Window, reference: Reference, cost: Cost) -> None:
    """A smaller budget cuts prompts into more chunks, and each pays the fixed cost of a step."""
    steps = window.steps.budgeted(window.started)
    if not len(steps):
        return
    budget = float(steps.budget_tokens.mean())
    if reference.seconds and budget > SMALL_BUDGET * reference.budget_tokens:
        return
    chunks = float(steps.prompt_rows.sum()) - reference.chunks * window.counts.admitted
    full = steps.prompt_tokens + steps.decode_tokens >= FULL_STEP * steps.budget_tokens
    share = float(steps.turn_ns[full].sum()) / max(1.0, float(steps.turn_ns.sum()))
    found.facts |= {M.EXTRA_CHUNKS: chunks, M.FULL_STEPS_SHARE: share, M.BUDGET_TOKENS: budget}
    fixed = cost.forward[0] / max(1.0, float(steps.forward_ns.mean()))
    if not reference.seconds and (share < MOST or fixed < MOST):
        return
    spent_ns = max(0.0, chunks) * (median(steps.turn_ns.tolist()) or 0.0)
    found.taken_ns[S.BUDGET_TOO_SMALL] += spent_ns
    found.prompting_ns[S.BUDGET_TOO_SMALL] += spent_ns


def _co_decode(
    found: EngineTime, window: Window, reference: Reference, cost: Cost, residual: np.ndarray
) -> None:
    """Other requests' decode rows in the same steps: charged to disconnected clients, to a batch
    limit that was raised, or to what makes the queue and so keeps requests in the batch longer."""
    steps, tokens = window.steps, float(window.steps.decode_tokens.sum())
    rows = np.maximum(1, steps.decode_rows)
    predicted_ns = cost.decode_ns(steps)
    left = steps.forward_ns - residual - cost.forward[0] - cost.prompt_forward_ns(steps)
    all_ns = np.where(cost.in_range(steps), predicted_ns, np.maximum(predicted_ns, left))
    own_ns = cost.forward[3] * steps.decode_tokens / rows
    co_ns = float((np.maximum(0, all_ns - own_ns) * steps.decode_rows).sum())
    excess_ns = co_ns - reference.parts_ns.get("co_decode", 0.0) * tokens
    found.facts |= {
        M.CO_DECODE: co_ns / 1e6,
        M.ROWS_EACH: float(steps.rows.mean()),
        M.USUAL_ROWS_EACH: reference.running if reference.seconds else None,
    }
    if excess_ns <= 0:
        return
    zombies = float((steps.zombie_rows / np.maximum(1, steps.rows)).mean())
    found.decoding_ns[S.CANCELLATION_LEAK] += zombies * excess_ns
    before, now = reference.started, window.started
    larger = now is not None and before is not None and now.max_seqs > before.max_seqs
    if larger and before is not None and float(steps.rows.max()) > before.max_seqs:
        found.decoding_ns[S.OVERSIZED_BATCH] += (1 - zombies) * excess_ns
        return
    contributors = queue_contributors(found)
    caused_ns = (1 - zombies) * excess_ns * caused_share(found, contributors)
    found.fuller_ns += (1 - zombies) * excess_ns - caused_ns
    charge_in_proportion(found.decoding_ns, contributors, caused_ns)
