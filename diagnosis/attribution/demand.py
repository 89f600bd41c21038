"""What was asked for beyond the usual: more requests, longer ones, and work done before.

Chance is ruled out first. Requests come in bursts, lengths vary, a few in a row may miss the
cache; what is told apart from that is told with so many standard deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import comb

from diagnosis.attribution.charges import Charges
from diagnosis.detection.counts import Counts
from diagnosis.detection.reference import Reference
from diagnosis.detection.window import Window
from diagnosis.symptoms import Symptom

S = Symptom

# whatever makes requests late by chance is looked at in many ways before it is old; what has gone
# on for long, in few, and so what something is found in already. Between these ages it is so many
# standard deviations less by and by: at a step down, all that chance has sent would be believed
_SIGMAS, _YOUNG_SIGMAS = 3.0, 4.5
_DEMAND_SIGMAS, _YOUNG_DEMAND_SIGMAS = 3.5, 5.0
_YOUNG_S, _OLD_S = 10.0, 20.0
_LEAST_DEMAND_S = 1.5
_GROWN_DEMAND = 1.15
_GROWN_LENGTH = 1.3
_LEAST_GROWN = 3  # of one that is far from the mean, no standard deviation is true
_GROWN_CHOICES = 1.2
_SELDOM, _MANY = 1e-4, 200
_MISSED_SHARE = 0.1
# one tenant has most of what demand grew by, more than others in proportion, who pay for it
_ONE_TENANT = 0.6
_MORE_THAN_OTHERS = 1.7
_SUFFERERS = 0.3


@dataclass(slots=True)
class Asked:
    """`prompt_tokens` are those computed beyond the usual, by why; `more_requests` came, `choices`
    more were wanted of them, and answers were longer by `output_tokens` in all. `demand` is what
    more requests are to be called: one tenant's doing, if `tenant` is given."""

    demand: Symptom
    tenant: str | None
    more_requests: float
    choices: float
    output_tokens: float
    prompt_tokens: Charges
    facts: dict[str, float] = field(default_factory=dict)


def asked(window: Window, reference: Reference) -> Asked:
    """Compare the window's requests with the reference's."""
    counts, sigmas = window.counts, _sigmas(window, _YOUNG_SIGMAS, _SIGMAS)
    facts: dict[str, float] = {}
    tenant = _one_tenant(window, reference, facts)
    lasting = tenant is None
    more = _surplus(window, reference, _requests, reference.requests_per_s, lasting=lasting)
    choices = 0.0
    asked_for = counts.choices_asked
    if _are_several(asked_for, reference) and _are_more(
        asked_for, reference.choices, reference.choices_spread, _GROWN_CHOICES, sigmas
    ):
        choices = (counts.choices - reference.choices) * counts.requests
    longer = 0.0
    lengths = counts.output_lengths
    if _are_more(lengths, reference.output_tokens, reference.output_spread, _GROWN_LENGTH, sigmas):
        longer = counts.requests * (counts.output_tokens - reference.output_tokens)
    demand = S.QUEUE_OVERLOAD if tenant is None else S.UNFAIRNESS
    facts |= {
        "requests_per_s": counts.requests / window.seconds,
        "usual_requests_per_s": reference.requests_per_s,
        "output_tokens_each": counts.output_tokens,
        "usual_output_tokens_each": reference.output_tokens,
        "choices_each": counts.choices,
    }
    return Asked(
        demand=demand,
        tenant=tenant,
        more_requests=more,
        choices=choices,
        output_tokens=longer,
        prompt_tokens=_prompt_tokens(window, reference, demand, more, facts),
        facts=facts,
    )


def _prompt_tokens(
    window: Window, reference: Reference, demand: Symptom, more: float, facts: dict[str, float]
) -> Charges:
    """Longer prompts are charged to interference; whose they are pays himself, too."""
    steps, counts = window.steps, window.counts
    sigmas = _sigmas(window, _YOUNG_SIGMAS, _SIGMAS)
    fresh = 1 - reference.hit_share
    longer = fresh * _longer_prompts(counts, reference, sigmas)
    parts = {
        S.KV_THRASH: float(steps.recompute_tokens.sum()),
        S.PREFIX_CACHE_COLD: _missed(counts, reference, sigmas),
        S.PREFILL_INTERFERENCE: longer,
        demand: more * reference.prompt_tokens * fresh,
    }
    facts |= {
        "recompute_tokens": parts[S.KV_THRASH],
        "avoidable_tokens": parts[S.PREFIX_CACHE_COLD],
        "ghost_tokens": float(counts.ghost_tokens),
        "hit_share": counts.hit_share,
        "usual_hit_share": reference.hit_share,
        "prompt_tokens_each": counts.prompt_tokens,
        "usual_prompt_tokens_each": reference.prompt_tokens,
    }
    return Charges({symptom: tokens for symptom, tokens in parts.items() if tokens > 0})


def _sigmas(window: Window, young: float, old: float) -> float:
    """How far from the usual is no chance."""
    if window.is_told:
        return old
    grown = (window.seconds - _YOUNG_S) / (_OLD_S - _YOUNG_S)
    return young + min(1.0, max(0.0, grown)) * (old - young)


def _longer_prompts(counts: Counts, reference: Reference, sigmas: float) -> float:
    """Prompt tokens beyond the usual: of all, if they are longer on average, else of those few
    that are longer than any was, which many short ones may hide."""
    lengths, usual = counts.prompt_lengths, reference.prompt_tokens
    if _are_more(lengths, usual, reference.prompt_spread, _GROWN_LENGTH, sigmas):
        return len(lengths) * (counts.prompt_tokens - usual)
    limit = _GROWN_LENGTH * reference.longest_prompt
    longest = [length for length in lengths if length > limit]
    seen = bool(reference.longest_prompt) and len(longest) >= _LEAST_GROWN
    return sum(longest) - len(longest) * usual if seen else 0.0


def _missed(counts: Counts, reference: Reference, sigmas: float) -> float:
    """Prompt tokens that used to be found in the cache."""
    usual, count = reference.hit_requests_share, counts.admitted
    by_chance = sigmas * (count * usual * (1 - usual)) ** 0.5
    missed = (reference.hit_share - counts.hit_share) * counts.known_tokens
    fewer = usual * count - counts.hit_requests > max(2.0, by_chance)
    return missed if fewer and missed > _MISSED_SHARE * counts.known_tokens else 0.0


def _surplus(
    window: Window,
    reference: Reference,
    came: Callable[[Counts], int],
    per_s: float,
    *,
    lasting: bool,
) -> float:
    """How many more came than usual. None where chance may have sent them, or, if it has to be
    `lasting`, where they have come already: a burst that drains is what queues are for."""
    # where nothing was usual, nothing tells a burst from what has come to stay
    if window.seconds < (_LEAST_DEMAND_S if reference.seconds else _YOUNG_S):
        return 0.0
    total, later = came(window.counts), came(window.later)
    expected = per_s * window.seconds
    sigmas = _sigmas(window, _YOUNG_DEMAND_SIGMAS, _DEMAND_SIGMAS)
    # what is usual was counted by chance, too, and less surely the shorter it was looked at
    doubt = 1 + window.seconds / reference.seconds if reference.seconds else 1.0
    dispersion = doubt * reference.dispersion
    goes_on = _is_more(later, expected / 2, dispersion, sigmas / 2)
    goes_on = goes_on or not lasting
    sure = goes_on and _is_more(total, expected, dispersion, sigmas)
    return total - expected if sure else 0.0


def _is_more(count: float, expected: float, dispersion: float, sigmas: float) -> bool:
    by_chance = sigmas * (dispersion * max(1.0, expected)) ** 0.5
    return count > _GROWN_DEMAND * expected and count - expected > by_chance


def _are_several(asked_for: list[int], reference: Reference) -> bool:
    """Whether so many of them want more choices than usual that chance hardly sends them: where
    few ever do, two more are far from the mean. Of many requests the mean tells."""
    several, total = sum(number > reference.choices for number in asked_for), len(asked_for)
    if total > _MANY or several < _LEAST_GROWN:
        return several >= _LEAST_GROWN
    share = reference.several_share
    chance = sum(
        comb(total, count) * share**count * (1 - share) ** (total - count)
        for count in range(several, total + 1)
    )
    return chance < _SELDOM


def _are_more(values: list[int], usual: float, spread: float, times: float, sigmas: float) -> bool:
    """On average, by so many times, and by more than so many vary."""
    if not values:
        return False
    mean = sum(values) / len(values)
    return mean > times * usual and mean - usual > sigmas * spread / len(values) ** 0.5


def _requests(counts: Counts) -> int:
    return counts.requests


def _of_tenant(tenant: str, counts: Counts) -> int:
    return counts.tenant_requests[tenant]


def _one_tenant(window: Window, reference: Reference, facts: dict[str, float]) -> str | None:
    """The tenant that demand grew by, if others pay for it: a burst of his is no burst of all."""
    counts = window.counts
    usual = {
        tenant: reference.tenants_per_s.get(tenant, 0.0) * window.seconds
        for tenant in counts.tenant_requests
    }
    growth = {tenant: max(0.0, counts.tenant_requests[tenant] - usual[tenant]) for tenant in usual}
    total = sum(growth.values())
    if len(growth) < 2 or not total or not reference.tenants_per_s:
        return None
    worst = max(growth, key=lambda tenant: growth[tenant])
    came = partial(_of_tenant, worst)
    usual_per_s = usual[worst] / window.seconds
    if not _surplus(window, reference, came, usual_per_s, lasting=False):
        return None
    waited_ns = counts.first_ns.total()
    others_ns = waited_ns - counts.first_ns[worst]
    facts["worst_tenant_growth_share"] = growth[worst] / total
    facts["others_wait_share"] = others_ns / max(1, waited_ns)
    others = counts.requests - counts.tenant_requests[worst]
    pays = others_ns >= _SUFFERERS * others / max(1, counts.requests) * waited_ns
    others_usual = max(1.0, sum(usual.values()) - usual[worst])
    grown = counts.tenant_requests[worst] / max(1.0, usual[worst])
    alone = grown >= _MORE_THAN_OTHERS * others / others_usual
    return worst if growth[worst] >= _ONE_TENANT * total and alone and pays else None
