"""Demand beyond the baseline: more requests, longer ones, and tokens computed a second time.

Chance is ruled out first: requests come in bursts, lengths vary, and a few in a row may miss the
cache. Growth counts only beyond so many standard deviations (`attribution.thresholds`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import sqrt

from diagnosis.attribution.chance import (
    binomial_tail,
    predictive_tail,
    skewed_sigmas,
    standard_error,
)
from diagnosis.attribution.charges import Charges
from diagnosis.attribution.thresholds import (
    DEMAND_SIGMAS,
    GROWN_CHOICES,
    GROWN_DEMAND,
    GROWN_LENGTH,
    LEAST_DEMAND_S,
    LEAST_GROWN,
    LEAST_MISSED,
    MANY,
    MISSED_SHARE,
    OLD_S,
    OTHERS_SHARE,
    RARE,
    SIGMAS,
    TENANT_GROWTH,
    TENANT_SHARE,
    UNSEEN,
    YOUNG_DEMAND_SIGMAS,
    YOUNG_S,
    YOUNG_SIGMAS,
)
from diagnosis.detection.counts import Counts
from diagnosis.detection.reference import Reference
from diagnosis.detection.window import Window
from diagnosis.evidence import Measurement, Taken
from diagnosis.symptoms import Symptom

S, M = Symptom, Measurement


@dataclass(slots=True)
class DemandDelta:
    """What was requested beyond the baseline, each 0 where chance explains it: `more_requests`,
    `choices` beyond the baseline's in all, `output_tokens` longer answers in all, and
    `prompt_tokens` computed beyond the baseline's, by cause. `demand` is the symptom that
    `more_requests` are charged to: UNFAIRNESS where they come from one `tenant`. `by_chance` are
    requests beyond the baseline that are no cause, and take the engine's time all the same."""

    demand: Symptom
    tenant: str | None
    more_requests: float
    by_chance: float
    choices: float
    output_tokens: float
    prompt_tokens: Charges
    facts: Taken = field(default_factory=dict)


def demand_delta(window: Window, reference: Reference) -> DemandDelta:
    """Compare the window's requests with those of the baseline."""
    counts, sigmas = window.counts, _sigmas(window, YOUNG_SIGMAS, SIGMAS)
    facts: Taken = {}
    tenant = _one_tenant(window, reference, facts)
    lasting = tenant is None
    more = _surplus(window, reference, _requests, reference.requests_per_s, lasting=lasting)
    choices = 0.0
    requested = counts.choices_requested
    if _more_ask_for_choices(requested, reference) and _mean_grew(
        requested,
        reference.choices,
        standard_error(reference.choices_spread, len(requested), _known_requests(reference)),
        GROWN_CHOICES,
        sigmas,
    ):
        choices = (counts.choices - reference.choices) * counts.requests
    demand = S.QUEUE_OVERLOAD if tenant is None else S.UNFAIRNESS
    facts |= {
        M.REQUESTS_PER_S: counts.requests / window.seconds,
        M.USUAL_REQUESTS_PER_S: _usual(reference, reference.requests_per_s),
        M.OUTPUT_TOKENS_EACH: counts.output_tokens if counts.output_lengths else None,
        M.USUAL_OUTPUT_TOKENS_EACH: _usual(reference, reference.output_tokens),
        M.CHOICES_EACH: counts.choices if requested else None,
    }
    return DemandDelta(
        demand=demand,
        tenant=tenant,
        more_requests=more,
        by_chance=0.0 if more else _beyond(window, reference),
        choices=choices,
        output_tokens=_longer_outputs(counts, reference, sigmas),
        prompt_tokens=_prompt_tokens(window, reference, demand, more, facts),
        facts=facts,
    )


def _beyond(window: Window, reference: Reference) -> float:
    """Requests beyond the baseline's rate; 0 before it is learnt."""
    usual = reference.requests_per_s * window.seconds
    return max(0.0, window.counts.requests - usual) if reference.seconds else 0.0


def _prompt_tokens(
    window: Window, reference: Reference, demand: Symptom, more: float, facts: Taken
) -> Charges:
    """Prompt tokens computed beyond the baseline, by cause. Longer prompts go to interference here;
    `engine_time` renames them to LONG_PROMPTS where their own requests lose more."""
    steps, counts = window.steps, window.counts
    sigmas = _sigmas(window, YOUNG_SIGMAS, SIGMAS)
    started, fresh = window.started, reference.computed_share
    is_blind = started is not None and "shadow_cache" in started.unobserved
    longer = fresh * _longer_prompts(counts, reference, sigmas)
    again = float(steps.recompute_tokens.sum())
    is_more = again > MISSED_SHARE * float(steps.prompt_tokens.sum())
    parts = {
        S.KV_THRASH: again if is_more else 0.0,
        S.PREFIX_CACHE_COLD: _missed(counts, reference, sigmas),
        S.PREFILL_INTERFERENCE: longer,
        demand: more * reference.prompt_tokens * fresh,
    }
    facts |= {
        M.RECOMPUTE_TOKENS: again,
        M.AVOIDABLE_TOKENS: _usual(reference, parts[S.PREFIX_CACHE_COLD]),
        M.GHOST_TOKENS: None if is_blind else float(counts.ghost_tokens),
        M.HIT_SHARE: counts.hit_share if counts.known_tokens else None,
        M.USUAL_HIT_SHARE: _usual(reference, reference.hit_share),
        M.PROMPT_TOKENS_EACH: counts.prompt_tokens if counts.prompt_lengths else None,
        M.USUAL_PROMPT_TOKENS_EACH: _usual(reference, reference.prompt_tokens),
    }
    return Charges({symptom: tokens for symptom, tokens in parts.items() if tokens > 0})


def _usual(reference: Reference, value: float) -> float | None:
    """Nothing is usual before a baseline is learnt."""
    return value if reference.seconds else None


def _sigmas(window: Window, young: float, old: float) -> float:
    """How many standard deviations rule chance out: `young` up to YOUNG_S, `old` from OLD_S on or
    beside a finding, and linear between, since at a step down all that chance has sent would
    count at once."""
    if window.has_finding:
        return old
    grown = (window.seconds - YOUNG_S) / (OLD_S - YOUNG_S)
    return young + min(1.0, max(0.0, grown)) * (old - young)


def _longer_prompts(counts: Counts, reference: Reference, sigmas: float) -> float:
    """Prompt tokens beyond the baseline: of all sequences if their mean grew, else of the few that
    are longer than any in the baseline, which a mean over many short ones hides."""
    lengths, baseline = counts.prompt_lengths, reference.prompt_tokens
    sigmas = skewed_sigmas(sigmas, reference.prompt_skew, len(lengths))
    error = standard_error(reference.prompt_spread, len(lengths), reference.prompts)
    if _lengths_grew(lengths, baseline, error, sigmas):
        return len(lengths) * (counts.prompt_tokens - baseline)
    limit = GROWN_LENGTH * reference.longest_prompt
    longest = [length for length in lengths if length > limit]
    seen = bool(reference.longest_prompt) and _are_more(
        len(longest), len(lengths), reference.longer_prompts, reference.prompts
    )
    return sum(longest) - len(longest) * baseline if seen else 0.0


def _longer_outputs(counts: Counts, reference: Reference, sigmas: float) -> float:
    """Output tokens beyond the baseline: of all requests if the mean of those that ended grew, else
    of the sequences that run and have more already than nearly any in the baseline."""
    lengths, baseline = counts.output_lengths, reference.output_tokens
    sigmas = skewed_sigmas(sigmas, reference.output_skew, len(lengths))
    error = standard_error(reference.output_spread, len(lengths), reference.outputs)
    if _lengths_grew(lengths, baseline, error, sigmas):
        return counts.requests * (counts.output_tokens - baseline)
    running = counts.open_lengths
    usual = reference.long_output or baseline + SIGMAS * reference.output_spread
    limit = max(GROWN_LENGTH * baseline, usual)
    longest = [length for length in running if length > limit]
    older = reference.longer_outputs_share * reference.outputs
    seen = bool(reference.seconds) and _are_more(
        len(longest), len(running), older, reference.outputs
    )
    return sum(longest) - len(longest) * baseline if seen else 0.0


def _are_more(count: int, total: int, seen: float, known: int) -> bool:
    """Whether at least LEAST_GROWN of a total are long, and more than chance makes so where `seen`
    of `known` were in the baseline. 0 `known`: a baseline of an older version, with no number."""
    if count < LEAST_GROWN or not known:
        return count >= LEAST_GROWN
    return predictive_tail(count, total, seen, known) < UNSEEN


def _missed(counts: Counts, reference: Reference, sigmas: float) -> float:
    """Prompt tokens that the prefix cache held in the baseline and does not now."""
    missed = (reference.hit_share - counts.hit_share) * counts.known_tokens
    is_part = missed > MISSED_SHARE * counts.known_tokens
    return missed if is_part and _more_miss(counts, reference, sigmas) else 0.0


def _more_miss(counts: Counts, reference: Reference, sigmas: float) -> bool:
    """Whether the number of admitted requests without a hit is no chance: by the tail of counts, as
    few miss where most hit. A baseline of an older version does not say of how many it is: then by
    `sigmas` standard deviations."""
    count, baseline, known = counts.admitted, reference.hit_requests_share, reference.admissions
    misses, usual = count - counts.hit_requests, (1 - baseline) * count
    if misses - usual <= LEAST_MISSED:
        return False
    if known:
        return predictive_tail(misses, count, (1 - baseline) * known, known) < RARE
    return misses - usual > sigmas * sqrt(count * baseline * (1 - baseline))


def _surplus(
    window: Window,
    reference: Reference,
    came: Callable[[Counts], int],
    per_s: float,
    *,
    lasting: bool,
) -> float:
    """How many more came than at the rate `per_s`; 0 where chance explains them. If `lasting`, also
    0 where the later half of the window has no more: a burst that drains is what queues are for."""
    # without a baseline, only time tells a burst from a lasting rate
    if window.seconds < (LEAST_DEMAND_S if reference.seconds else YOUNG_S):
        return 0.0
    total, later = came(window.counts), came(window.later_half)
    expected = per_s * window.seconds
    sigmas = _sigmas(window, YOUNG_DEMAND_SIGMAS, DEMAND_SIGMAS)
    # the rate itself is an estimate, with more variance the shorter the reference is
    doubt = 1 + window.seconds / reference.seconds if reference.seconds else 1.0
    dispersion = doubt * reference.dispersion
    goes_on = _count_grew(later, expected / 2, dispersion, sigmas / 2)
    goes_on = goes_on or not lasting
    sure = goes_on and _count_grew(total, expected, dispersion, sigmas)
    return total - expected if sure else 0.0


def _count_grew(count: float, expected: float, dispersion: float, sigmas: float) -> bool:
    by_chance = sigmas * (dispersion * max(1.0, expected)) ** 0.5
    return count > GROWN_DEMAND * expected and count - expected > by_chance


def _more_ask_for_choices(requested: list[int], reference: Reference) -> bool:
    """Whether the number of requests with more choices than in the baseline is no chance, by the
    binomial tail: where few ever have more, two of them are far from the mean already. Of more
    than MANY requests the mean alone decides."""
    several, total = sum(number > reference.choices for number in requested), len(requested)
    if total > MANY or several < LEAST_GROWN:
        return several >= LEAST_GROWN
    share = reference.several_share
    return binomial_tail(several, total, share) < RARE


def _known_requests(reference: Reference) -> int:
    return round(reference.requests_per_s * reference.seconds)


def _mean_grew(
    values: list[int], baseline: float, error: float, times: float, sigmas: float
) -> bool:
    """Whether the mean grew `times` over, and by more than `sigmas` standard errors."""
    if not values:
        return False
    mean = sum(values) / len(values)
    return mean > times * baseline and mean - baseline > sigmas * error


def _lengths_grew(lengths: list[int], baseline: float, error: float, sigmas: float) -> bool:
    """Whether their mean grew, and not by one or two of them alone: a baseline of a minute may have
    none of the long prompts that come now and then."""
    others = sorted(lengths)[: 1 - LEAST_GROWN]
    return _mean_grew(lengths, baseline, error, GROWN_LENGTH, sigmas) and (
        sum(others) > GROWN_LENGTH * baseline * len(others)
    )


def _requests(counts: Counts) -> int:
    return counts.requests


def _of_tenant(tenant: str, counts: Counts) -> int:
    return counts.tenant_requests[tenant]


def share_grew(counts: Counts, reference: Reference, tenant: str, sigmas: float) -> bool:
    """Whether the tenant's share of the requests grew by more than chance. In a surge all tenants
    send more, and one of them most: given how many came in all, a tenant's number is binomial."""
    count, known = counts.requests, reference.requests_per_s * reference.seconds
    before = reference.tenants_per_s.get(tenant, 0.0) * reference.seconds
    share = (before + 1) / (known + 2)  # Laplace's rule of succession: never 0 or 1
    by_chance: float = (count * share * (1 - share) * (1 + count / (known + 2))) ** 0.5
    return counts.tenant_requests[tenant] - count * share > sigmas * by_chance


def _one_tenant(window: Window, reference: Reference, facts: Taken) -> str | None:
    """The tenant that made most of the growth, if it grew more than the others and they wait for
    it; None otherwise."""
    counts = window.counts
    baseline = {
        tenant: reference.tenants_per_s.get(tenant, 0.0) * window.seconds
        for tenant in counts.tenant_requests
    }
    growth = {
        tenant: max(0.0, counts.tenant_requests[tenant] - requests)
        for tenant, requests in baseline.items()
    }
    total = sum(growth.values())
    if len(growth) < 2 or not total or not reference.tenants_per_s:
        return None
    worst = max(growth, key=lambda tenant: growth[tenant])
    came = partial(_of_tenant, worst)
    usual_per_s = baseline[worst] / window.seconds
    if not _surplus(window, reference, came, usual_per_s, lasting=False):
        return None
    if not share_grew(counts, reference, worst, _sigmas(window, YOUNG_SIGMAS, DEMAND_SIGMAS)):
        return None
    waited_ns = counts.first_ns.total()
    others_ns = waited_ns - counts.first_ns[worst]
    facts[M.WORST_TENANT_GROWTH_SHARE] = growth[worst] / total
    facts[M.OTHERS_WAIT_SHARE] = others_ns / max(1, waited_ns)
    others = counts.requests - counts.tenant_requests[worst]
    pays = others_ns >= OTHERS_SHARE * others / max(1, counts.requests) * waited_ns
    others_baseline = max(1.0, sum(baseline.values()) - baseline[worst])
    grown = counts.tenant_requests[worst] / max(1.0, baseline[worst])
    alone = grown >= TENANT_GROWTH * others / others_baseline
    return worst if growth[worst] >= TENANT_SHARE * total and alone and pays else None
