"""The engine's time beyond the usual, and for whom: slow steps, pauses, masks, prompts, decodes.

Each step is priced at the reference's cost. What a step took beyond that, and what was computed
beyond what the reference's requests would have asked for, are charged three times over: once to
the engine (`taken_ns`, which makes queues), once for each sequence that decoded in the step and
once for each whose prompt was in it.

Prices hold only for steps as large as were seen. How slow the machine is, is told by those; of
larger ones, what is left after that goes to their size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from diagnosis.attribution.charges import Charges, shares_of
from diagnosis.attribution.demand import Asked, asked
from diagnosis.detection.reference import Cost, Reference, engine_lost, own_prompts_ns
from diagnosis.detection.steps import Steps
from diagnosis.detection.window import Window
from diagnosis.symptoms import Symptom
from telemetry.numbers.quantiles import median

S = Symptom

_LASTING_S = 5.0
# slower than foretold by less is noise of the fit
_SLOW = 1.12
_LEAST_KNOWN_STEPS = 8
# of a slow spell, the part that one kind of evidence must explain to own all of it
_MOST = 0.5
_THROTTLED = 0.2
_GROWN_LENGTH = 1.3
_DEARER = 1.2
# steps with more prompt than any had: two prompts that come at once are one
_LEAST_LARGER = 3
# of what decodes take, so that prompts tell anything
_LEAST_PROMPTS = 0.1
# of the engine's time; what takes less is one of its ups and downs
_LEAST_SHARE = 0.08
# the same for all causes together: less makes no queue
_LEAST_TAKEN = 0.03


@dataclass(slots=True)
class EngineTime:
    """`prompting_total_ns` is all of requests' time in steps with their prompts. `slow` is how
    many times longer than foretold the forward pass of a known step took. `demand_share` of the
    requests came beyond the usual, which is to be called `demand`."""

    taken_ns: Charges = field(default_factory=Charges)
    decoding_ns: Charges = field(default_factory=Charges)
    prompting_ns: Charges = field(default_factory=Charges)
    prompting_total_ns: float = 0.0
    busy_ns: float = 0.0
    slow: float = 1.0
    facts: dict[str, float] = field(default_factory=dict)
    tenant: str | None = None
    demand: Symptom = S.QUEUE_OVERLOAD
    demand_share: float = 0.0


def engine_time(window: Window, reference: Reference, cost: Cost) -> EngineTime:
    """Charge every step of the window."""
    found = EngineTime()
    steps = window.steps
    found.busy_ns = float(steps.turn_ns.sum())
    found.prompting_total_ns = float((steps.turn_ns * steps.prompt_rows).sum())
    residual = _residual(found, steps, cost)
    _slow_and_paused(found, window, reference, cost, residual)
    _masks_and_samples(found, window, reference, cost)
    _work(found, window, reference, cost, residual)
    return found


def _spread(found: EngineTime, symptom: Symptom, steps: Steps, spent: np.ndarray) -> None:
    """Time that everybody in a step pays, negative where a step was quicker."""
    for book, weight in (
        (found.taken_ns, 1.0),
        (found.decoding_ns, steps.decode_rows),
        (found.prompting_ns, steps.prompt_rows),
    ):
        book[symptom] += max(0.0, float((spent * weight).sum()))


def queue_makers(found: EngineTime) -> Charges:
    """Who took the engine's time beyond the usual, which keeps all requests longer; nobody, where
    next to nothing was taken."""
    makers = Charges({symptom: ns for symptom, ns in found.taken_ns.items() if ns > 0})
    return makers if sum(makers.values()) > _LEAST_TAKEN * found.busy_ns else Charges()


def _residual(found: EngineTime, steps: Steps, cost: Cost) -> np.ndarray:
    """(steps,) ns of each forward pass beyond its price."""
    foretold, known = cost.forward_ns(steps), cost.knows(steps)
    residual = np.where(known, steps.forward_ns - foretold, 0.0)
    priced = float(foretold[known].sum())
    if known.sum() < _LEAST_KNOWN_STEPS or not priced:
        return residual
    found.slow = float(steps.forward_ns[known].sum()) / priced
    found.facts["slow_factor"] = found.slow
    if found.slow < _SLOW:
        return np.zeros(len(steps))
    unknown = steps.forward_ns * (1 - 1 / found.slow)
    return np.where(known, residual, unknown)


def _slow_and_paused(
    found: EngineTime, window: Window, reference: Reference, cost: Cost, residual: np.ndarray
) -> None:
    """Slow passes and pauses around them, by what the machine says of the thread."""
    steps = window.steps
    around = steps.host_ns - cost.host_ns(steps)
    slow_ns, paused_ns = max(0.0, float(residual.sum())), max(0.0, float(around.sum()))
    found.facts |= {"slow": slow_ns / 1e6, "host": paused_ns / 1e6}
    waited_ns, lost_ns = _off_cpu(window, reference)
    found.facts |= {
        "run_delay": waited_ns / 1e6,
        "not_running": lost_ns / 1e6,
        "throttled": window.counts.throttled_ns / 1e6,
    }
    total_ns = slow_ns + paused_ns
    if waited_ns >= max(total_ns, _LEAST_SHARE * found.busy_ns) and _are_new(steps, cost):
        by_quota = window.counts.throttled_ns >= _THROTTLED * waited_ns
        taker = S.THROTTLED if by_quota else S.CPU_STARVATION
        _spread(found, taker, steps, steps.turn_ns * waited_ns / found.busy_ns)
        return
    if total_ns < _LEAST_SHARE * found.busy_ns:
        return
    if window.counts.throttled_ns >= _THROTTLED * total_ns:
        _spread(found, S.THROTTLED, steps, residual + around)
        return
    if waited_ns >= _MOST * total_ns:
        _spread(found, S.CPU_STARVATION, steps, residual + around)
        return
    collected_ns = float(window.counts.pauses["engine", "gc"])
    if collected_ns >= _MOST * total_ns:
        in_passes = min(1.0, max(0.0, collected_ns - paused_ns) / max(1.0, slow_ns))
        _spread(found, S.HOST_STALL, steps, in_passes * residual + around)
        residual, slow_ns = (1 - in_passes) * residual, (1 - in_passes) * slow_ns
        if slow_ns < _LEAST_SHARE * found.busy_ns:
            return
    else:
        _spread(found, S.HOST_STALL if paused_ns > 0.4 * slow_ns else S.THROTTLED, steps, around)
    cause = _slow_cause(found, window, cost, slow_ns, paused_ns, lost_ns)
    if cause is not None:
        _spread(found, cause, steps, residual)


def _are_new(steps: Steps, cost: Cost) -> bool:
    """Whether most of the time went to steps of sizes that were not seen, whose price is not
    known: then it is for the witness to say how much was lost."""
    known_ns = float(steps.turn_ns[cost.knows(steps)].sum())
    return known_ns < _MOST * float(steps.turn_ns.sum())


def _off_cpu(window: Window, reference: Reference) -> tuple[float, float]:
    """Of the engine's thread beyond the usual, scaled to the whole window: ns ready without a
    CPU, and ns neither running nor ready while there was work."""
    counts = window.counts
    if not counts.host_window_ns:
        return 0.0, 0.0
    busy_ns, lost_ns = engine_lost(window.seconds, counts, window.steps)
    scale = window.seconds * 1e9 / counts.host_window_ns
    waited_ns = counts.engine_wait_ns - reference.engine_wait_share * busy_ns
    lost_ns -= reference.engine_lost_share * busy_ns
    return max(0.0, waited_ns) * scale, max(0.0, lost_ns) * scale


def _slow_cause(
    found: EngineTime,
    window: Window,
    cost: Cost,
    slow_ns: float,
    paused_ns: float,
    lost_ns: float,
) -> Symptom | None:
    """A processor that runs less, or memory that others use: the first is stopped or slows all
    terms alike, the second slows what reads memory and hardly what computes. Without a witness
    it must have lasted and go on, since machines have slow spells of their own."""
    if lost_ns - paused_ns > _MOST * slow_ns:
        return S.THROTTLED
    if window.seconds < _LASTING_S or not _goes_on(window, cost):
        return None
    decode, prompt = _slow_by_kind(window.steps, cost)
    found.facts |= {"slow_decodes": decode, "slow_prompts": prompt}
    alike = prompt - 1 > 0.6 * (decode - 1)
    return S.THROTTLED if alike else S.MEMORY_BANDWIDTH


def _goes_on(window: Window, cost: Cost) -> bool:
    """Whether the later half of the window is still slow, as far as that can be told."""
    steps = window.steps
    half_ns = window.seconds * 1e9 / 2
    later = cost.knows(steps) & (steps.end_ns > steps.end_ns.max() - half_ns)
    if later.sum() < _LEAST_KNOWN_STEPS:
        return True
    foretold = float(cost.forward_ns(steps)[later].sum())
    return float(steps.forward_ns[later].sum()) >= _SLOW * foretold


def _slow_by_kind(steps: Steps, cost: Cost) -> tuple[float, float]:
    """How many times longer than foretold: steps that only decode, and what prompts add; 1 where
    there were too few of these to say."""
    known, foretold = cost.knows(steps), cost.forward_ns(steps)
    plain = known & (steps.prompt_tokens == 0)
    mixed = known & (steps.prompt_tokens > 0)
    if not plain.any():
        return 1.0, 1.0
    decode = float(steps.forward_ns[plain].sum() / foretold[plain].sum())
    prompts = cost.prompt_ns(steps)[mixed]
    if prompts.sum() < _LEAST_PROMPTS * foretold[plain].sum():
        return decode, 1.0
    rest = (steps.forward_ns[mixed] - decode * (foretold[mixed] - prompts)).sum()
    return decode, float(rest / max(1.0, prompts.sum()))


def _masks_and_samples(found: EngineTime, window: Window, reference: Reference, cost: Cost) -> None:
    steps = window.steps
    tokens = max(1.0, float(steps.decode_tokens.sum()))
    mask, sample = steps.mask_ns, steps.sample_ns - cost.sample_ns(steps)
    rows = max(1.0, float(steps.decode_rows.mean()))
    usual_ns = reference.parts_ns.get("mask", 0.0) * tokens
    costly = float((mask * steps.decode_rows).sum()) > 1.3 * usual_ns
    costly = costly and float(mask.sum()) - usual_ns / rows > _LEAST_SHARE * found.busy_ns
    found.facts |= {"mask": float(mask.sum()) / 1e6, "sample": max(0.0, float(sample.sum())) / 1e6}
    if costly:
        _spread(found, S.GRAMMAR_COST, steps, mask)
    if float(sample.sum()) > _LEAST_SHARE * found.busy_ns:
        _spread(found, S.HEAVY_SAMPLING, steps, sample)


def _work(
    found: EngineTime, window: Window, reference: Reference, cost: Cost, residual: np.ndarray
) -> None:
    """What was computed beyond what the reference's requests would ask for."""
    steps, counts = window.steps, window.counts
    computed = max(1.0, float(steps.prompt_tokens.sum()))
    prompt_ns = cost.prompt_ns(steps)
    token_ns = float(prompt_ns.sum()) / computed if prompt_ns.any() else cost.forward[1]
    wanted = asked(window, reference)
    found.tenant, found.demand = wanted.tenant, wanted.demand
    found.demand_share = wanted.more_requests / max(1, counts.requests)
    found.facts |= wanted.facts
    shared_ns = prompt_ns * steps.decode_rows
    co_ns, own_ns = float(shared_ns.sum()), float(own_prompts_ns(steps, cost).sum())
    found.facts |= {"co_prefill": co_ns / 1e6, "own_prefill": own_ns / 1e6}
    co_more_ns = co_ns - reference.parts_ns.get("co_prefill", 0.0) * float(
        steps.decode_tokens.sum()
    )
    own_more_ns = own_ns - (
        counts.admitted * reference.prompt_tokens * (1 - reference.hit_share) * cost.forward[1]
    )
    prompts = _by_loser(wanted.prompt_tokens, co_more_ns, own_more_ns)
    for symptom, tokens in prompts.items():
        found.taken_ns[symptom] += tokens * token_ns
    _decode_work(found, window, reference, cost, wanted)
    _small_steps(found, window, reference, cost)
    others = prompts if reference.seconds else Charges({S.PREFILL_INTERFERENCE: 1.0})
    larger = steps.prompt_tokens > _GROWN_LENGTH * cost.longest_chunk
    larger_ns = float(shared_ns[larger].sum())
    dearer = co_more_ns > (_DEARER - 1) * (co_ns - co_more_ns)
    several = larger.sum() >= _LEAST_LARGER
    if not others and dearer and several and larger_ns > _MOST * co_more_ns:
        others = Charges({S.PREFILL_INTERFERENCE: 1.0})
    _divide(found.decoding_ns, others, co_more_ns)
    _divide(found.prompting_ns, prompts, own_more_ns)
    _crowd(found, window, reference, cost, residual)


def _by_loser(prompts: Charges, co_more_ns: float, own_more_ns: float) -> Charges:
    """Longer prompts are one cause, whoever waits for them: it is called by who loses more, those
    who decode beside them or those whose they are."""
    named = Charges(prompts)
    if own_more_ns > co_more_ns and S.PREFILL_INTERFERENCE in named:
        named[S.LONG_PROMPTS] += named.pop(S.PREFILL_INTERFERENCE)
    return named


def _divide(book: Charges, parts: Mapping[Symptom, float], spent_ns: float) -> None:
    """`spent_ns` in proportion to `parts`."""
    for symptom, share in shares_of(parts).items():
        book[symptom] += max(0.0, spent_ns) * share


def _decode_work(
    found: EngineTime, window: Window, reference: Reference, cost: Cost, wanted: Asked
) -> None:
    """Tokens beyond the usual: more requests, longer answers, more choices, of clients gone."""
    steps, each = window.steps, reference.output_tokens
    tokens = max(1.0, float(steps.decode_tokens.sum()))
    base_ns = cost.forward[0] * float((steps.decode_tokens > 0).sum())
    token_ns = (float(cost.decode_ns(steps).sum()) + base_ns) / tokens
    gone = float((steps.zombie_rows * steps.turn_ns / np.maximum(1, steps.rows)).sum())
    found.facts["zombie_rows"] = float(steps.zombie_rows.sum())
    found.taken_ns[wanted.demand] += wanted.more_requests * each * token_ns
    found.taken_ns[S.QUEUE_OVERLOAD] += wanted.output_tokens * token_ns
    found.taken_ns[S.HEAVY_SAMPLING] += wanted.choices * each * token_ns
    found.taken_ns[S.CANCELLATION_LEAK] += gone


def _small_steps(found: EngineTime, window: Window, reference: Reference, cost: Cost) -> None:
    """Prompts cut into more pieces than usual pay the fixed cost of a step more often."""
    steps = window.steps
    budget = float(steps.budget_tokens.mean())
    if reference.seconds and budget > 0.7 * reference.budget_tokens:
        return
    chunks = float(steps.prompt_rows.sum()) - reference.chunks * window.counts.admitted
    full = steps.prompt_tokens + steps.decode_tokens >= 0.9 * steps.budget_tokens
    share = float(steps.turn_ns[full].sum()) / max(1.0, float(steps.turn_ns.sum()))
    found.facts |= {"extra_chunks": chunks, "full_steps_share": share, "budget_tokens": budget}
    fixed = cost.forward[0] / max(1.0, float(steps.forward_ns.mean()))
    if not reference.seconds and (share < _MOST or fixed < _MOST):
        return
    spent_ns = max(0.0, chunks) * (median(steps.turn_ns.tolist()) or 0.0)
    found.taken_ns[S.BUDGET_TOO_SMALL] += spent_ns
    found.prompting_ns[S.BUDGET_TOO_SMALL] += spent_ns


def _crowd(
    found: EngineTime, window: Window, reference: Reference, cost: Cost, residual: np.ndarray
) -> None:
    """Others' decodes in the same step: of clients gone, of a batch that may be larger than
    before, or of the queue's makers, who keep requests longer."""
    steps, tokens = window.steps, float(window.steps.decode_tokens.sum())
    rows = np.maximum(1, steps.decode_rows)
    priced = cost.decode_ns(steps)
    left = steps.forward_ns - residual - cost.forward[0] - cost.prompt_ns(steps)
    all_ns = np.where(cost.knows(steps), priced, np.maximum(priced, left))
    own_ns = cost.forward[3] * steps.decode_tokens / rows
    co_ns = float((np.maximum(0, all_ns - own_ns) * steps.decode_rows).sum())
    excess_ns = co_ns - reference.parts_ns.get("co_decode", 0.0) * tokens
    found.facts |= {
        "co_decode": co_ns / 1e6,
        "rows_each": float(steps.rows.mean()),
        "usual_rows_each": reference.running,
    }
    if excess_ns <= 0:
        return
    gone = float((steps.zombie_rows / np.maximum(1, steps.rows)).mean())
    found.decoding_ns[S.CANCELLATION_LEAK] += gone * excess_ns
    usual, now = reference.started, window.started
    larger = now is not None and usual is not None and now.max_seqs > usual.max_seqs
    if larger and usual is not None and float(steps.rows.max()) > usual.max_seqs:
        found.decoding_ns[S.OVERSIZED_BATCH] += (1 - gone) * excess_ns
        return
    _divide(found.decoding_ns, queue_makers(found), (1 - gone) * excess_ns)
